"""The 64-bit integers that are computed in 32 bits, and the check that none of them overflows.

A device has int32 for ONNX's int64. A value that wraps there would be wrong without an error. So
each sum, product or cast that makes such an integer is computed in float32 as well: a result that
wrapped is at least 2^31 off. On the CPU the graph then runs again with 64 bits; elsewhere it is an
error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.errors import DTypeError
from weft.importers.onnx.table import NodeCall, Rule, Value
from weft.tensor.core import Tensor

BITS = 2.0**31
BELOW = BITS - 128  # the float32 before it
# results of 64 bits, whatever the operands are
_INDICES = {("ArgMax", 0), ("ArgMin", 0), ("TopK", 1), ("MaxPool", 1)}
# the operands that give a result its type, if not all do
_DATA = {
    "Where": (1, 2), "OneHot": (2,), "Gather": (0,), "GatherElements": (0,), "GatherND": (0,),
    "ScatterND": (0,), "ScatterElements": (0,), "Scatter": (0,), "Compress": (0,),
    "EmbedLayerNormalization": (), "QuantizeLinear": (), "DequantizeLinear": (),
}  # fmt: skip
_SUMS = "ReduceSum ReduceProd ReduceSumSquare ReduceL1 CumSum CumProd MatMul Gemm Einsum"
_WRAPS = {"Add", "Sub", "Mul", "Neg", "Abs", "Pow", "Sum", "Div", "BitShift", *_SUMS.split()}


class Beyond32(DTypeError):
    """An integer of 64 bits where there are 32."""


def fits(x: np.ndarray) -> bool:
    """True unless these are integers of 64 bits of which 32 do not hold one."""
    return x.dtype != np.int64 or not x.size or (int(x.min()) >= -BITS and int(x.max()) < BITS)


class Longs:
    """The int32 tensors of a run that represent int64, and the checks of them."""

    def __init__(self) -> None:
        self._seen: dict[int, Tensor] = {}
        self.checks: list[tuple[str, Tensor]] = []  # a node's place, and whether it wrapped

    def mark(self, x: Value) -> None:
        """Notes that x represents int64, if it is int32."""
        if isinstance(x, Tensor) and x.dtype is dt.int32:
            self._seen[id(x)] = x

    def holds(self, x: Value) -> bool:
        """True if x is int64, or represents it."""
        if isinstance(x, Tensor):
            return x.dtype is dt.int64 or id(x) in self._seen
        return isinstance(x, np.ndarray) and x.dtype == np.int64

    def after(self, place: str, call: NodeCall, rule: Rule, values: list[Value], made: Any) -> Any:
        """The results of a node, the 64-bit ones marked and checked."""
        results = made if isinstance(made, tuple) else (made,)
        if not any(isinstance(r, Tensor) and r.dtype is dt.int32 for r in results):
            return made
        if call.op in ("Cast", "CastLike"):
            return self._cast(place, call, values, made)
        chosen = _DATA.get(call.op, tuple(i for i in range(len(values)) if i not in rule.host))
        long = any(self.holds(values[i]) for i in chosen if i < len(values))
        for i, result in enumerate(results):
            if long or (call.op, i) in _INDICES:
                self.mark(result)
        if long and call.op in _WRAPS and not call.domain:
            self._check(place, _shadow(call, rule, values) - results[0].cast(dt.float32), BITS / 2)
        return made

    def _cast(self, place: str, call: NodeCall, values: list[Value], made: Tensor) -> Tensor:
        x = values[0]
        to_long = call.get("to") == 7 if call.op == "Cast" else self.holds(values[1])
        made = made._wrap(made.value) if made is x else made
        if to_long:
            self.mark(made)
            if isinstance(x, Tensor) and x.dtype.is_float:
                self._check(
                    place, x.detach().cast(dt.float32), float(np.nextafter(np.float32(BITS), 0))
                )
        return made

    def _check(self, place: str, off: Tensor, most: float) -> None:
        self.checks.append((place, (off.abs() > most).any()))

    def verdict(self) -> Tensor | None:
        """All checks of the run in one tensor of bools; None without checks."""
        return weft.stack([flag for _, flag in self.checks], 0) if self.checks else None

    def settle(self) -> None:
        """Raises Beyond32 for a check that failed, at once."""
        found = self.verdict()
        if found is not None:
            refuse([p for p, _ in self.checks], found)


def refuse(places: list[str], flags: Tensor) -> None:
    """Raises Beyond32 that names the first node whose flag is set."""
    wrong = np.flatnonzero(flags.numpy())
    if wrong.size:
        raise Beyond32(
            f"node {places[wrong[0]]}: an int64 result beyond 32 bits, which compiled functions "
            "and devices do not have; call the model by itself, on the CPU: from_onnx(path)"
        )


def _shadow(call: NodeCall, rule: Rule, values: list[Value]) -> Tensor:
    """The node's results for its operands as float32."""
    floats = [
        v if v is None or i in rule.host
        else v.detach().cast(dt.float32) if isinstance(v, Tensor)
        else call.tensor(v.astype(np.float32))
        for i, v in enumerate(values)
    ]  # fmt: skip
    if call.op == "BitShift":
        factor = 1.0 if call.get("direction") == "LEFT" else -1.0
        return floats[0] * (floats[1] * factor * float(np.log(2))).exp()
    made: Tensor = rule.fn(call, *floats)
    return made
