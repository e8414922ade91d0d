"""The rules of recorded calls give what the primitives' own rules give: bits, dtypes and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.core import dtypes as dt
from weft.ops.primitive import PRIMITIVES
from weft.ops.short_rules import short_rule

SHAPE = (3, 4, 5)
CASES: list[tuple[str, dict[str, Any]]] = [
    *[(op, {"axes": axes}) for op in ("sum", "max") for axes in ((0,), (2,), (0, 2), (0, 1, 2))],
    *[("argmax", {"axis": axis}) for axis in range(3)],
    *[("cast", {"dtype": d}) for d in dt.ALL if d not in (dt.float16, dt.bfloat16)],
    ("reshape", {"shape": (15, 4)}), ("transpose", {"perm": (2, 0, 1)}),
    ("slice", {"starts": (2, 1, 0), "stops": (-1, 1, 5), "steps": (-1, 1, 2)}),
]  # fmt: skip


def values(dtype: dt.DType, special: bool) -> np.ndarray:
    found = np.random.default_rng(0).uniform(-90, 90, SHAPE)
    if special and dtype.is_float:
        found.flat[:6] = np.nan, np.inf, -np.inf, 3e9, -3e9, -0.0
    with np.errstate(all="ignore"):
        return found.astype(dtype.numpy)


@pytest.mark.parametrize("op,attrs", CASES, ids=lambda x: str(x))
@pytest.mark.parametrize("special", [False, True])
def test_as_the_primitive(op: str, attrs: dict[str, Any], special: bool) -> None:
    own = PRIMITIVES[op].numpy
    assert own is not None
    found = 0
    for dtype in dt.ALL:
        if dtype.kind == "bool" and op in ("sum", "max", "argmax"):
            continue
        x = values(dtype, special)
        # recorded with other values of the same shape and dtype
        rule = short_rule(op, [values(dtype, False)], attrs)
        if rule is None:
            continue
        found += 1
        with np.errstate(all="ignore"):
            want, got = np.asarray(own(x, **attrs)), np.asarray(rule(x))
        assert got.dtype == want.dtype and got.shape == want.shape, dtype
        assert got.tobytes() == want.tobytes(), dtype
        assert np.shares_memory(got, x) == np.shares_memory(want, x), dtype
    assert found


def test_one_line_and_products() -> None:
    line = np.array([1, np.nan, 3], np.float32)
    rule = short_rule("argmax", [line], {"axis": 0})
    assert rule is not None and np.asarray(rule(line)).dtype == np.int32 and rule(line) == 1
    for dtype in (dt.float32, dt.float64, dt.int32):
        a, b = values(dtype, False), values(dtype, False).swapaxes(1, 2)
        rule, own = short_rule("dot", [a, b], {"out_dtype": dtype}), PRIMITIVES["dot"].numpy
        assert rule is not None and own is not None
        assert rule(a, b).tobytes() == own(a, b, out_dtype=dtype).tobytes()
    assert short_rule("dot", [line.astype(np.int8)] * 2, {"out_dtype": dt.int32}) is None
