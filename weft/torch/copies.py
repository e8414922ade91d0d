"""Names under which PyTorch has functions a second time: copies instead of views, unchecked forms,
and what is nothing for real numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.importers.aten import TABLE
from weft.tensor import views
from weft.tensor.core import Tensor
from weft.torch import diagonals, joining, shaping
from weft.torch.expected import want
from weft.torch.tensor import function_only, method_only, public


def _copied(name: str, of: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        made = of(*args, **kwargs)
        return tuple(x.clone() for x in made) if isinstance(made, tuple) else made.clone()

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__doc__ = f"`{name.removesuffix('_copy')}`, as a copy."
    return function_only(function)


expand_copy = _copied("expand_copy", shaping.expand)
permute_copy = _copied("permute_copy", shaping.permute)
squeeze_copy = _copied("squeeze_copy", shaping.squeeze)
t_copy = _copied("t_copy", shaping.t)
transpose_copy = _copied("transpose_copy", shaping.transpose)
unfold_copy = _copied("unfold_copy", joining.unfold)
unsqueeze_copy = _copied("unsqueeze_copy", shaping.unsqueeze)
view_copy = _copied("view_copy", shaping.view)
diagonal_copy = _copied("diagonal_copy", diagonals.diagonal)
narrow_copy = public(_copied("narrow_copy", joining.narrow))
split_with_sizes_copy = _copied("split_with_sizes_copy", joining.split_with_sizes)
unbind_copy = _copied("unbind_copy", joining.unbind)
alias_copy = _copied("alias_copy", shaping.clone)
unsafe_chunk = public(_copied("unsafe_chunk", joining.chunk))
unsafe_split = public(_copied("unsafe_split", joining.split))


@public
def conj(input: Tensor) -> Tensor:
    """The tensor itself: weft has real numbers only."""
    return input


@public
def conj_physical(input: Tensor) -> Tensor:
    """The tensor itself: weft has real numbers only."""
    return input


@public
def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: weft has real numbers only."""
    return input


@public
def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself: nothing is negated later."""
    return input


@public
def real(input: Tensor) -> Tensor:
    """The tensor itself: weft has real numbers only."""
    return input


@public
def adjoint(input: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return input.transpose(-1, -2)


@public
def is_floating_point(input: Tensor) -> bool:
    """True for floats."""
    return input.dtype.is_float


@function_only
def is_tensor(obj: Any) -> bool:
    """True for a tensor."""
    return isinstance(obj, Tensor)


@public
def is_nonzero(input: Tensor) -> bool:
    """True if the only element is not zero."""
    return bool(input)


@public
def is_complex(input: Tensor) -> bool:
    """False: weft has real numbers only."""
    return False


# -- strides, by which PyTorch names places of memory


@public
def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A copy of the elements at offset + sum of index * stride of a contiguous tensor."""
    want(min(stride, default=0) >= 0, "as_strided", f"stride {list(stride)}", "0 or more each")
    return (
        input.reshape(-1)
        .take(_places(size, stride, storage_offset or 0).reshape(-1), 0)
        .reshape(tuple(size))
    )


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> np.ndarray:
    at = np.full(tuple(size), offset, np.int32)
    for axis, (n, step) in enumerate(zip(size, stride)):
        line = [1] * len(size)
        line[axis] = n
        at = at + (np.arange(n, dtype=np.int32) * step).reshape(line)
    return at


@function_only
def as_strided_copy(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """`as_strided`, which copies."""
    return as_strided(input, size, stride, storage_offset)


@public
def as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:  # fmt: skip
    """A copy in which the elements that `as_strided` reads are those of src."""
    from weft.torch.scattering import put

    at = Tensor(_places(size, stride, storage_offset or 0).reshape(-1))
    return put(input, at, src.cast(input.dtype))


@method_only
def stride(input: Tensor, dim: int | None = None) -> Any:
    """The elements between neighbours along each axis, in the memory that views share."""
    found = views.strides(input)
    return found if dim is None else found[dim]


@method_only
def is_contiguous(input: Tensor, memory_format: Any = None) -> bool:
    """True for a tensor in row-major order, unlike a transposed view."""
    return views.is_contiguous(input.shape, views.strides(input))


@method_only
def item(input: Tensor) -> Any:
    """The only element as a Python number."""
    return Tensor.item(input)


# -- operators of ATen


def _aten(name: str, target: str) -> Callable[..., Any]:
    run = TABLE[f"aten.{target}"].run

    def function(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        made = run(input, *args, **kwargs)
        return tuple(x.cast(input.dtype) for x in made) if isinstance(made, tuple) else made

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__doc__ = f"ATen's operator {target}."
    return function_only(function)


constant_pad_nd = _aten("constant_pad_nd", "constant_pad_nd.default")
native_layer_norm = _aten("native_layer_norm", "native_layer_norm.default")
native_group_norm = _aten("native_group_norm", "native_group_norm.default")


@function_only
def frombuffer(
    buffer: Any, *, dtype: DType, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """The bytes of an object as a vector, which is a copy."""
    array = np.frombuffer(buffer, dtype.numpy, count, offset).copy()
    made = Tensor(array)
    return made.requires_grad_() if requires_grad else made
