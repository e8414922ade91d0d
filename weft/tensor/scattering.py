"""Rows joined with what is written onto them: by products, maxima and minima."""

from __future__ import annotations

from collections.abc import Callable

from weft import ops
from weft.core.errors import UsageError
from weft.ops.windows import greatest, least
from weft.tensor.base import place, values
from weft.tensor.core import Tensor
from weft.tensor.create import arange
from weft.tensor.shapes import cat

_JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda a, b: a * b,
    "max": Tensor.maximum,
    "min": Tensor.minimum,
}


DENSE = 1 << 20  # elements that are compared with all rows


def scatter_join(
    x: Tensor, index: Tensor, rows: Tensor, how: str, include_self: bool = True
) -> Tensor:
    """x[N, ...] with rows[r] joined to row index[r] (int32 [R]) by "mul", "max" or "min". Rows of
    one place are joined to each other first, then to the row of x unless `include_self` is False.
    Indices outside 0..N-1 are dropped.

    Few rows are joined by one reduction over all of them for each place. Many are sorted by place,
    so that the rows of a place are neighbours. Each row joins the row before it, then the row two
    before it, four, and so on (Hillis and Steele 1986). After log2(R) rounds the last row of each
    place holds the result, and only that row is written.
    """
    if how not in _JOINS:
        raise UsageError(f"reduction {how!r:.40}; expected one of {', '.join(_JOINS)}")
    join, count = _JOINS[how], index.shape[0]
    if not count or not x.size:
        return x._fresh()
    if x.size * count <= DENSE:
        return _dense(x, index, rows, how, include_self)
    order = index.argsort(0)
    at, value = index.take(order, 0), rows.take(order, 0)
    column = (-1, *[1] * (value.ndim - 1))
    step = 1
    while step < count:
        same = at.narrow(0, step, count - step) == at.narrow(0, 0, count - step)
        mine = value.narrow(0, step, count - step)
        joined = join(value.narrow(0, 0, count - step), mine)
        mixed = same.reshape(column).where(joined, mine)
        value = cat([value.narrow(0, 0, step), mixed], 0)
        step *= 2
    line = arange(count, device=place(x))
    behind = at.take((line + 1).minimum(count - 1), 0)
    last = (at != behind) | (line == count - 1)
    if include_self:
        value = join(x.take(at.maximum(0).minimum(x.shape[0] - 1), 0), value)
    target = last.where(at, -1)
    return Tensor(ops.update(*values("update", (x, target, value))))


def _dense(x: Tensor, index: Tensor, rows: Tensor, how: str, include_self: bool) -> Tensor:
    count = x.shape[0]
    line = arange(count, device=place(x)).reshape(-1, 1)
    hit = line == index.reshape(1, -1)  # [N, R]
    wide = hit.reshape(*hit.shape, *[1] * (x.ndim - 1))
    nothing: float | int = 1
    if how != "mul":
        nothing = least(x.dtype) if how == "max" else greatest(x.dtype)
    seen = wide.where(rows.unsqueeze(0), nothing)
    fold = {"mul": Tensor.prod, "max": Tensor.max, "min": Tensor.min}[how]
    made = fold(seen, 1)
    if include_self:
        return _JOINS[how](x, made)
    return hit.any(1).reshape(-1, *[1] * (x.ndim - 1)).where(made, x)
