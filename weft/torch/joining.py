"""PyTorch's functions that join and cut tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import CallError, ShapeError
from weft.importers.aten import movement
from weft.ops.rules import axis_of
from weft.tensor import arrays
from weft.tensor.core import Tensor
from weft.tensor.shapes import cat as join
from weft.torch.expected import want, want_rank
from weft.torch.tensor import function_only, method_only, public, together, whole

_span = slice


# -- joining


@function_only
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors joined along an axis; those of shape [0] are skipped."""
    if isinstance(tensors, Tensor):
        raise CallError("cat: give a list or a tuple of tensors, not one tensor")
    return movement.cat(together(*tensors), dim).clone()


concat = concatenate = cat


@function_only
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    return movement.stack(together(*tensors), dim)


def _at_least(n: int) -> Any:
    def function(*tensors: Any) -> Any:
        given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], Sequence) else tensors
        made = tuple(_grown(x, n) for x in given)
        return made[0] if len(tensors) == 1 and isinstance(tensors[0], Tensor) else made

    function.__name__ = function.__qualname__ = f"atleast_{n}d"
    function.__doc__ = f"Tensors of fewer axes, given {n}."
    return function_only(function)


def _grown(x: Tensor, n: int) -> Tensor:
    if x.ndim >= n:
        return x[...]
    if x.ndim == 2:
        return x.unsqueeze(-1)
    if x.ndim == 1:
        return x.unsqueeze(0) if n == 2 else x.reshape(1, -1, 1)
    return x.reshape([1] * n)


atleast_1d, atleast_2d, atleast_3d = _at_least(1), _at_least(2), _at_least(3)


@function_only
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along axis 1 (vectors along axis 0)."""
    given = [_grown(x, 1) for x in tensors]
    return cat(given, 0 if given[0].ndim == 1 else 1)


@function_only
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along axis 0, vectors as rows."""
    return cat([_grown(x, 2) for x in tensors], 0)


row_stack = vstack


@function_only
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along axis 2."""
    return cat([_grown(x, 3) for x in tensors], 2)


@function_only
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along axis 1, vectors as columns."""
    return cat([x.reshape(-1, 1) if x.ndim < 2 else x for x in tensors], 1)


@function_only
def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with these matrices along its diagonal."""
    blocks = [_grown(x, 2) for x in together(*tensors)]
    width, at, rows = builtin_sum(b.shape[1] for b in blocks), 0, []
    for b in blocks:
        rows.append(b.pad([(0, 0), (at, width - at - b.shape[1])]))
        at += b.shape[1]
    return join(rows, 0)


builtin_sum = sum


@function_only
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Vectors spread to a grid."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], Sequence) else tensors
    return tuple(arrays.meshgrid(*(_grown(x, 1) for x in given), indexing=indexing))


@function_only
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All choices of one element of each vector, one per row."""
    for x in tensors:
        want_rank("cartesian_prod", x, 1)
    if len(tensors) == 1:
        return tensors[0].clone()
    grids = arrays.meshgrid(*tensors, indexing="ij")
    return stack([g.reshape(-1) for g in grids], 1)


@function_only
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements of a vector in order, one per row."""
    of = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    at = np.array(list(of(range(input.shape[0]), r)), np.int32).reshape(-1, r)
    return input.take(at.reshape(-1), 0).reshape(at.shape if r else (0,))


# -- cutting


@public
def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along an axis: of one size, or one size each."""
    if split_size_or_sections == 0 and not tensor.shape[dim]:
        return (tensor[...],)
    return Tensor.split(tensor, split_size_or_sections, dim)


@public
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along an axis, by their sizes."""
    return Tensor.split(input, list(split_sizes), dim)


@public
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of equal size (the last may be smaller)."""
    return Tensor.chunk(input, chunks, dim)


@public
def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces that begin at these indices, or the given number of nearly equal pieces."""
    n = input.shape[dim]
    given = indices_or_sections
    given = given.tolist() if isinstance(given, Tensor) else given
    if isinstance(given, int):
        small, more = divmod(n, given)
        sizes = [small + 1] * more + [small] * (given - more)
        return Tensor.split(input, sizes, dim)
    cuts = [0, *(_span(i, None).indices(n)[0] for i in given), n]
    return tuple(Tensor.narrow(input, dim, a, max(b - a, 0)) for a, b in itertools.pairwise(cuts))


@public
def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Pieces along axis 1 (of a vector along axis 0)."""
    return _even("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1)


@public
def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Pieces along axis 0."""
    want(input.ndim > 1, "vsplit", f"{input._known()}", "two or more axes")
    return _even("vsplit", input, indices_or_sections, 0)


@public
def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Pieces along axis 2."""
    want(input.ndim > 2, "dsplit", f"{input._known()}", "three or more axes")
    return _even("dsplit", input, indices_or_sections, 2)


def _even(name: str, input: Tensor, sections: Any, dim: int) -> tuple[Tensor, ...]:
    """Pieces that begin at these indices, or a number of equal ones."""
    even = not isinstance(sections, int) or (sections > 0 and input.shape[dim] % sections == 0)
    want(even, name, f"{sections} pieces of {input.shape[dim]}", "a number that divides the axis")
    return tensor_split(input, sections, dim)


@public
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without it."""
    return Tensor.unbind(input, dim)


@public
def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """Elements start..start+length-1 along an axis; a negative start counts from the end."""
    n = input.shape[dim]
    start = int(start)
    if not -n <= start <= n:
        raise ShapeError(f"narrow: start {start} is out of range for axis {dim} of size {n}")
    return Tensor.narrow(input, dim, start + n if start < 0 else start, length)


@public
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice at `index` of an axis, without the axis."""
    return Tensor.select(input, dim, index)


@method_only
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements, `step` apart, along a new last axis."""
    from weft.importers.aten.indexing import windows

    if not input.ndim:
        return input.reshape(1)[:size]
    n = input.shape[axis_of("unfold", dimension, input.ndim)]
    if not 0 <= size <= n or step < 1:
        raise ShapeError(f"unfold: size {size}, step {step} for an axis of size {n}")
    return windows(input, dimension, size, step)


@function_only
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of a vector's elements as columns, the highest first."""
    want(x.ndim == 1, "vander", f"{x._known()}", "a vector")
    x = x if x.dtype.is_float else x.cast(whole(x))
    n = x.shape[-1] if N is None else N
    powers = np.arange(n) if increasing else np.arange(n)[::-1]
    columns = [x ** int(p) if p else x * 0 + 1 for p in powers]
    return stack(columns, -1) if columns else x.new_zeros((*x.shape, 0))
