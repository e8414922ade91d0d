"""PyTorch's functions that rename, join, cut and repeat elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import CallError, ShapeError, UsageError
from weft.ops.rules import axis_of
from weft.tensor import arrays, views
from weft.tensor.core import Tensor
from weft.tensor.shapes import broadcast_tensors as spread
from weft.torch.bits import reread
from weft.torch.expected import want
from weft.torch.tensor import function_only, method_only, public

_span = slice


def many(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """view(2, 3) and view((2, 3)) alike."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes
    for n in given:
        if isinstance(n, float):
            raise UsageError(f"a size of {n}; sizes are whole numbers, such as {int(n)}")
    return tuple(int(n) for n in given)


@public
def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """The same elements in row-major order, in `shape`; one size may be -1."""
    return Tensor.reshape(input, many(sizes if shape is None else (shape,)))


@method_only
def view(input: Tensor, *size: Any) -> Tensor:
    """The same elements in row-major order; with a dtype, their bits (on the host)."""
    if len(size) == 1 and isinstance(size[0], dt.DType):
        made: Tensor = reread(input, size[0])
        return made
    made = Tensor.reshape(input, many(size))
    if views.restrided(input.shape, views.strides(input), made.shape) is None:
        raise UsageError(
            f"view: {input._known()} has strides {list(views.strides(input))}, so that no view has "
            f"the shape {list(made.shape)}; use reshape, or contiguous() first"
        )
    return made


@public
def resize_as_(input: Tensor, the_template: Tensor, *, memory_format: Any = None) -> Tensor:
    """Gives `input` the shape of another tensor, as `resize_` does."""
    return Tensor.resize_(input, the_template.shape)


@public
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Axes start_dim..end_dim as one."""
    n = max(input.ndim, 1)
    fits = not -n <= start_dim < n or not -n <= end_dim < n or start_dim % n <= end_dim % n
    want(fits, "flatten", f"start_dim {start_dim}, end_dim {end_dim}", "an end after the start")
    return Tensor.flatten(input, start_dim, end_dim)


@public
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """An axis divided into several."""
    return Tensor.unflatten(input, dim, sizes)


@public
def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """Drops axes of size 1, or only the named ones among them; other axes stay."""
    if dim is None:
        return Tensor.squeeze(input)
    named = [dim] if isinstance(dim, int) else list(dim)
    if not input.ndim:
        return input[...]
    at = [axis_of("squeeze", d, input.ndim) for d in named]
    return Tensor.squeeze(input, [a for a in at if input.shape[a] == 1])


@public
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A new axis of size 1."""
    return Tensor.unsqueeze(input, dim)


@public
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    return Tensor.transpose(input, dim0, dim1) if input.ndim else input[...]


swapaxes = swapdims = transpose


@public
def t(input: Tensor) -> Tensor:
    """A matrix transposed; a vector as it is."""
    return Tensor.t(input)


@public
def permute(input: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """Axis i of the result is axis dims[i]."""
    return Tensor.permute(input, many(axes if dims is None else (dims,)))


@public
def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """Axes moved to other positions."""
    return arrays.moveaxis(input, source, destination)


moveaxis = movedim


@method_only
def expand(input: Tensor, *size: Any, implicit: bool = False) -> Tensor:
    """Repeated along size-1 and new leading axes; -1 keeps a size."""
    return Tensor.expand(input, many(size))


@public
def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """`expand` to a shape."""
    return Tensor.expand(input, tuple(size))


@method_only
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Expanded to another tensor's shape."""
    return Tensor.expand(input, other.shape)


@method_only
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """Reshaped to another tensor's shape."""
    return Tensor.reshape(input, other.shape)


view_as = reshape_as


@function_only
def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors expanded to their common shape."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], Sequence) else tensors
    return spread(*given)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The common shape of shapes."""
    return np.broadcast_shapes(*(tuple(s) if isinstance(s, Sequence) else (s,) for s in shapes))


@method_only
def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """The sum over the axes along which `size` was broadcast."""
    from weft.torch import reductions

    wanted = many(size)
    lead = input.ndim - len(wanted)
    axes = [*range(lead), *(i + lead for i, n in enumerate(wanted) if n != input.shape[i + lead])]
    made = reductions.sum(input.unsqueeze(0), [0, *(a + 1 for a in axes)])
    return made.reshape(wanted)


@public
def ravel(input: Tensor) -> Tensor:
    """All axes as one."""
    return Tensor.reshape(input, -1)


@method_only
def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor in row-major order."""
    return Tensor.contiguous(input)


@public
def clone(input: Tensor, memory_format: Any = None) -> Tensor:
    """A copy, through which gradients flow."""
    return Tensor.clone(input)


@public
def flip(input: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """Reversed along axes, `dims`."""
    if not axes and dims is None:
        raise CallError("flip: the axes are missing; give them, such as flip(0)")
    return Tensor.flip(input, many(axes if dims is None else (dims,)))


@public
def fliplr(input: Tensor) -> Tensor:
    """Axis 1 reversed."""
    return Tensor.flip(input, 1)


@public
def flipud(input: Tensor) -> Tensor:
    """Axis 0 reversed."""
    return Tensor.flip(input, 0)


@public
def roll(input: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """Moved along axes, what falls off coming back; of the flattened elements without axes."""
    named = (dims,) if isinstance(dims, int) else tuple(dims)
    return arrays.roll(input, shifts, named or None)


@public
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned k times by 90 degrees in the plane of two axes, from the first towards the second."""
    a, b = (axis_of("rot90", d, input.ndim) for d in dims)
    if a == b:
        raise ShapeError(f"rot90: dims {tuple(dims)} name one axis twice")
    turns = k % 4
    if turns == 2:
        return Tensor.flip(input, (a, b))
    if turns == 1:
        return Tensor.flip(input.transpose(a, b), a)
    return Tensor.flip(input, a).transpose(a, b) if turns else input.clone()


@method_only
def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """The whole repeated along each axis, new ones first."""
    times = many(repeats)
    if len(times) < input.ndim:
        raise ShapeError(f"repeat: {list(times)} for {input.ndim} axes; give one per axis")
    return arrays.tile(input, times)


@public
def tile(input: Tensor, *counts: Any, dims: Any = None) -> Tensor:
    """The whole repeated along each axis (`dims`); missing counts are 1."""
    return arrays.tile(input, many(counts if dims is None else (dims,)))


@public
def repeat_interleave(
    input: Tensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each slice along an axis repeated, side by side; `repeats` may be one count per slice."""
    x, axis = (input.reshape(-1), 0) if dim is None else (input, dim)
    if isinstance(repeats, Tensor):
        repeats = repeats.tolist()
        repeats = repeats if isinstance(repeats, list) else [repeats]
        repeats = repeats * x.shape[axis] if len(repeats) == 1 else repeats
        return x.take(np.repeat(np.arange(x.shape[axis], dtype=np.int32), repeats), axis)
    return Tensor.repeat_interleave(x if x.ndim else x.reshape(1), repeats, axis)
