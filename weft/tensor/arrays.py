"""The array API's functions that make and move arrays (Python array API standard 2024.12), as
`weft.concat`, ... An operand is a Tensor or a NumPy array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import ShapeError, UsageError
from weft.host.boundary import torch_form
from weft.host.foreign import is_foreign
from weft.ops.rules import axes_of, axis_of, integers
from weft.tensor import shapes
from weft.tensor.core import Tensor, from_dlpack, tensor
from weft.tensor.elementwise import as_tensor
from weft.tensor.sets import repeats_as_indices

Operand = Any  # a Tensor or a NumPy array
Axes = int | Sequence[int] | None

pi, e, inf, nan, newaxis = math.pi, math.e, math.inf, math.nan, None

# -- creation and dtypes


def asarray(
    data: Any, /, dtype: Any = None, device: Any = None, copy: bool | None = None
) -> Tensor:
    """`data` as a Tensor: the same object if it already has the dtype and device, else a copy.
    copy=True copies always. copy=False shares the memory of a NumPy array or a DLPack object, and
    raises UsageError where it would have to copy.

    >>> x = weft.tensor([1.0])
    >>> weft.asarray(x) is x
    True
    """
    if copy is False:
        return _uncopied(data, dtype, device)
    if isinstance(data, Tensor) and copy:
        made = data.astype(dtype)
        return made if device is None else made.to(device)
    if isinstance(data, Tensor) and (dtype is None or data.dtype == as_dtype(dtype)):
        return data if device is None else data.to(device)
    return tensor(data, dtype=dtype, device=device)


def _uncopied(data: Any, dtype: Any, device: Any) -> Tensor:
    plain = isinstance(data, np.ndarray)
    t = data if isinstance(data, Tensor) else Tensor(data) if plain else None
    if t is None and is_foreign(data):
        t = from_dlpack(data)
    if t is None or asarray(t, dtype, device) is not t:
        raise UsageError(
            f"asarray: copy=False, but {type(data).__name__} as {dtype or 'it is'} on "
            f"{device or 'its device'} takes a copy; leave copy out"
        )
    return t


def meshgrid(*arrays: Operand, indexing: str = "xy") -> list[Tensor]:
    """Coordinate arrays of 1-d arrays: [len(a0), len(a1), ...], the first two axes exchanged for
    indexing="xy". Raises ShapeError, UsageError."""
    given = [as_tensor(a) for a in arrays]
    if any(a.ndim != 1 for a in given):
        raise ShapeError(f"meshgrid: shapes {[list(a.shape) for a in given]}; give 1-d arrays")
    if indexing not in ("xy", "ij"):
        raise UsageError(f'meshgrid: indexing={indexing!r}; use "xy" or "ij"')
    shape = tuple(a.size for a in given)
    grids = []
    for i, a in enumerate(given):
        grid = a.reshape([a.size if j == i else 1 for j in range(len(given))]).expand(shape)
        grids.append(grid.transpose(0, 1) if indexing == "xy" and len(given) > 1 else grid)
    return grids


def astype(x: Operand, dtype: Any, /, copy: bool = True, device: Any = None) -> Tensor:
    """A copy with the values as another dtype (see Tensor.cast; None leaves theirs), on `device` if
    given; copy=False gives x itself where it has both."""
    t = as_tensor(x)
    made = t.astype(dtype) if copy else t.cast(dtype)
    return made if device is None else made.to(device)


# -- movement


def concat(arrays: Sequence[Operand], /, axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis (flattened first with axis=None), in their promoted dtype."""
    given = [as_tensor(a) for a in arrays]
    if axis is None:
        given, axis = [a.reshape(-1) for a in given], 0
    out: Tensor = shapes.cat(given, axis)
    return out


def unstack(x: Operand, /, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which they lack.

    >>> [t.tolist() for t in weft.unstack(weft.tensor([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    t = as_tensor(x)
    a = axis_of("unstack", axis, t.ndim)
    return tuple(t.narrow(a, i, 1).squeeze(a) for i in range(t.shape[a]))


def reshape(x: Operand, /, shape: int | Sequence[int], copy: bool | None = None) -> Tensor:
    """The same elements in row-major order; one size may be -1. copy=True gives no view, copy=False
    raises UsageError where there is none. Raises ShapeError.

    >>> weft.reshape(weft.arange(6), (2, -1)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    t = as_tensor(x)
    made = t.reshape(shape)
    if copy is False and t.size and made._view is None:
        raise UsageError(f"reshape: copy=False, but {t._known()} as {shape} takes a copy")
    return made._fresh() if copy else made


def permute_dims(x: Operand, /, axes: Sequence[int]) -> Tensor:
    """Axis i of the result is axis axes[i]."""
    return as_tensor(x).permute(axes)


def matrix_transpose(x: Operand, /) -> Tensor:
    """The last two axes exchanged."""
    return as_tensor(x).mT


def moveaxis(
    x: Operand, source: int | Sequence[int], destination: int | Sequence[int], /
) -> Tensor:
    """Axes moved to other positions, the rest in their order. Raises ShapeError."""
    t = as_tensor(x)
    sources, targets = (axes_of("moveaxis", given, t.ndim) for given in (source, destination))
    if len(sources) != len(targets):
        raise ShapeError(f"moveaxis: {source} to {destination}; give as many different axes")
    order = [a for a in range(t.ndim) if a not in sources]
    for target, axis in sorted(zip(targets, sources)):
        order.insert(target, axis)
    return t.permute(order)


def expand_dims(x: Operand, /, axis: int | Sequence[int] = 0) -> Tensor:
    """New axes of size 1 at these positions of the result. Raises ShapeError."""
    t = as_tensor(x)
    given = integers("expand_dims", "axis", axis)
    for a in sorted(axes_of("expand_dims", given, t.ndim + len(given))):
        t = t.unsqueeze(a)
    return t


@torch_form(lambda x, **options: as_tensor(x).squeeze(**options))
def squeeze(x: Operand, /, axis: int | Sequence[int]) -> Tensor:
    """Without these axes, which must have size 1."""
    return as_tensor(x).squeeze(axis)


def broadcast_to(x: Operand, /, shape: Sequence[int]) -> Tensor:
    """Repeated along size-1 and new leading axes."""
    return as_tensor(x).expand(tuple(shape))


def broadcast_arrays(*arrays: Operand) -> list[Tensor]:
    """The tensors expanded to their common shape."""
    return list(shapes.broadcast_tensors(*map(as_tensor, arrays)))


def flip(x: Operand, /, axis: Axes = None) -> Tensor:
    """Reversed along the axes: all by default, none for an empty sequence."""
    t = as_tensor(x)
    return t.flip() if axis is None else t.flip(axis)


def roll(x: Operand, /, shift: int | Sequence[int], axis: Axes = None) -> Tensor:
    """Moved along the axes, what falls off coming back at the other end (of the flattened
    elements with axis=None)."""
    t = as_tensor(x)
    if axis is None:
        return roll(t.reshape(-1), shift, 0).reshape(t.shape) if t.size else t
    axes, shifts = integers("roll", "axis", axis), integers("roll", "shift", shift)
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for by, name in zip(shifts, axes):
        a = axis_of("roll", name, t.ndim)
        cut = -by % t.shape[a] if t.shape[a] else 0
        if cut:
            parts = [t.narrow(a, cut, t.shape[a] - cut), t.narrow(a, 0, cut)]
            t = shapes.cat(parts, a)
    return t._fresh()


def tile(x: Operand, repetitions: Sequence[int], /) -> Tensor:
    """The whole repeated along each axis; missing axes are added in front."""
    t = as_tensor(x)
    given = integers("tile", "repetitions", repetitions)
    times = [1] * (t.ndim - len(given)) + list(given)
    t = t.reshape([1] * (len(times) - t.ndim) + list(t.shape))
    pairs = [n for axis in zip(times, t.shape) for n in axis]
    ones = [n for size in t.shape for n in (1, size)]
    out = t.reshape(ones).expand(pairs).reshape([n * size for n, size in zip(times, t.shape)])
    return out._fresh()


def repeat(x: Operand, repeats: int | Operand, /, axis: int | None = None) -> Tensor:
    """Each slice along an axis repeated, side by side (of the flattened with axis=None): so often,
    or each as often as a tensor of counts says, which is read on the host. Raises ShapeError, and
    TraceError for such a tensor inside weft.compile.

    >>> weft.repeat(weft.tensor([1, 2]), weft.tensor([1, 3])).tolist()
    [1, 2, 2, 2]
    """
    t = as_tensor(x)
    t, axis = (t.reshape(t.size), 0) if axis is None else (t, axis)
    if isinstance(repeats, int | np.integer) and not isinstance(repeats, bool):
        return t.repeat_interleave(int(repeats), axis)
    size = t.shape[axis_of("repeat", axis, t.ndim)]
    return t.take(repeats_as_indices(t, repeats, size), axis)
