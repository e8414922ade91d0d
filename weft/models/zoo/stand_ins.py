"""Stand-ins for operators that pick elements by computed places, in the proof of `rows`: each reads
the same rows as the operator, by sums along the axes that it picks from."""

from __future__ import annotations

from typing import Any

from weft.core.dtypes import float32, int32
from weft.importers.steps import filled
from weft.models.arch.layers import Pass
from weft.models.arch.traced import Replay
from weft.tensor.core import Tensor


class Mixed(Exception):
    """An operator joins rows, or is not known to keep them apart."""


class StandIns(Replay):
    """A pass with stand-ins for what the engine computes, and for operators that pick."""

    def __init__(self, p: Pass) -> None:
        super().__init__(p)
        self.own = {
            **{f"weft.{name}.default": getattr(self, name) for name in _OWN},
            **{f"aten.{name}.default": getattr(self, name) for name in _BY_NAME},
            **{f"aten.{name}": getattr(self, fn) for name, fn in _OVERLOADS.items()},
        }

    def given(self, *values: Any) -> list[Any]:
        return [filled(value, self) for value in values]

    def attention(self, *args: Any) -> Any:
        q, k, v = self.given(*args[:3])
        total = sum((_total(x, (1, 3)) for x in (k, v)), _total(q, (1, 3)))  # [B, 1, T, 1]
        batch, heads, rows, _ = q.shape
        return total.transpose(1, 2).expand((batch, rows, heads, v.shape[3]))

    def short_conv(self, x: Any, taps: Any) -> Any:
        rows, w = self.given(x, taps)
        return _total(rows, (2,)).expand(rows.shape) + _total(w, (0, 1)).reshape((1, 1, 1))

    def recurrence(self, *args: Any) -> Any:
        given = [x for x in self.given(*args[:5]) if x is not None]
        flat = (x.reshape((*x.shape[:2], -1, 1)) for x in given)
        total = sum(_total(x, (2,)) for x in flat)  # [B, T, 1, 1]
        return total.expand(given[2].shape)

    def picked(self, x: Any, w: Any, chosen: Any, turned: bool) -> Any:
        rows, numbers = self.given(x, chosen)
        wide = self.p.w[self.body.tensors[w.name]].shape
        out = _total(rows, (2,)) + numbers.cast(float32).unsqueeze(2)
        return out.expand((*numbers.shape, wide[1]))

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        x, w = self.given(input, weight)
        last = x.ndim - 1
        return _total(x, (last,)).expand((*x.shape[:-1], w.shape[0]))

    def embedding(self, weight: Any, indices: Any, *rest: Any) -> Any:
        w, ids = self.given(weight, indices)
        return ids.cast(float32).unsqueeze(ids.ndim).expand((*ids.shape, w.shape[1]))

    def gather(self, input: Any, dim: int, index: Any, *rest: Any, **more: Any) -> Any:
        x, at = self.given(input, index)
        axis = dim % x.ndim
        fits = all(n == m for i, (n, m) in enumerate(zip(x.shape, at.shape)) if i != axis)
        if not fits:
            raise Mixed("aten.gather takes part of the rows")
        out = _total(x, (axis,)).expand(at.shape) + at.cast(float32)
        return out.cast(x.dtype)

    def topk(self, input: Any, k: int, dim: int = -1, *rest: Any, **more: Any) -> Any:
        (x,) = self.given(input)
        axis = dim % x.ndim
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        out = _total(x, (axis,)).expand(shape)
        return out.cast(x.dtype), out.cast(int32)

    def sort(self, input: Any, dim: int = -1, *rest: Any, **more: Any) -> Any:
        return self.topk(input, filled(input, self).shape[dim], dim)

    def argsort(self, input: Any, dim: int = -1, *rest: Any, **more: Any) -> Any:
        return self.sort(input, dim)[1]

    def scatter(self, input: Any, dim: int, index: Any, src: Any, *rest: Any, **more: Any) -> Any:
        x, at, new = self.given(input, index, src)
        axis = dim % x.ndim
        out = x.cast(float32) + _total(at, (axis,)).expand(x.shape)
        if isinstance(new, Tensor):
            out = out + _total(new, (axis,)).expand(x.shape)
        return out.cast(x.dtype)


_OWN = ("attention", "picked", "short_conv", "recurrence")
_BY_NAME = ("linear", "embedding", "gather", "topk", "sort", "argsort")
_OVERLOADS = {
    "scatter.src": "scatter", "scatter.value": "scatter", "scatter_.src": "scatter",
    "scatter_.value": "scatter", "scatter_add.default": "scatter",
    "scatter_add_.default": "scatter",
}  # fmt: skip


def _total(x: Any, axes: tuple[int, ...]) -> Any:
    return x.cast(float32).sum(axes, keepdims=True)
