"""Operators on sizes, which are Python numbers when a graph runs, and checks that graphs carry."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from weft.core.errors import ShapeError
from weft.importers.aten.table import TABLE, AtenRule, aten
from weft.tensor.core import Tensor


@aten("sym_size.int", "size.int")
def size(self: Tensor, dim: int) -> int:
    return self.shape[dim]


@aten("sym_numel", "numel")
def numel(self: Tensor) -> int:
    return self.size


@aten(
    "_assert_tensor_metadata", "_assert_async", "_assert_async.msg", "sym_constrain_range",
    "sym_constrain_range_for_size",
)  # fmt: skip
def nothing(*args: Any, **kwargs: Any) -> None:
    """Repeats what the exporter has checked."""


@aten("_assert_scalar")
def check(self: Any, assert_msg: str) -> None:
    if not self:
        raise ShapeError(assert_msg)


def _take(values: Any, index: int) -> Any:
    return values[index]


_SYMBOLS: dict[str, Callable[..., Any]] = {
    "_operator.getitem": _take,
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow", "eq", "ne",
                     "lt", "le", "gt", "ge", "and_", "or_", "not_")
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    "torch.sym_max": lambda a, b: max(a, b),  # the built-in functions have no signature
    "torch.sym_min": lambda a, b: min(a, b),
    "torch.sym_float": lambda a: float(a),
    "torch.sym_int": lambda a: int(a),
    "torch.sym_not": operator.not_,
    "torch.sym_ite": lambda b, t, f: t if b else f,
    "torch.sym_sum": lambda args: sum(args),
}  # fmt: skip
for _name, _fn in _SYMBOLS.items():
    TABLE[_name] = AtenRule(_fn)
