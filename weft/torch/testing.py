"""torch.testing: comparison of tensors with PyTorch's tolerances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.tensor.core import Tensor

_TOLERANCES = {
    dt.float16: (1e-3, 1e-5), dt.bfloat16: (1.6e-2, 1e-5), dt.float32: (1.3e-6, 1e-5),
    dt.float64: (1e-7, 1e-7),
}  # fmt: skip


def assert_close(
    actual: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None,
    equal_nan: bool = False, check_device: bool = True, check_dtype: bool = True,
    check_layout: bool = True, check_stride: bool = False, msg: Any = None,
) -> None:  # fmt: skip
    """Raises AssertionError unless two tensors, or numbers, or containers of them, are close:
    |actual - expected| <= atol + rtol * |expected|, by default with tolerances of their dtype."""
    if (rtol is None) != (atol is None):
        raise UsageError("assert_close: give both rtol and atol, or neither")
    if isinstance(expected, Mapping):
        _hold(set(actual) == set(expected), "the keys differ", msg)
        pairs = [(actual[k], expected[k]) for k in expected]
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        _hold(len(actual) == len(expected), "the lengths differ", msg)
        pairs = list(zip(actual, expected))
    else:
        given = (rtol, atol, equal_nan, check_dtype)
        _hold(not (found := _difference(actual, expected, *given)), found, msg)
        return
    for a, b in pairs:
        assert_close(
            a, b, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=check_dtype, msg=msg
        )


def _hold(holds: bool, why: str, msg: Any) -> None:
    if not holds:
        raise AssertionError(msg(why) if callable(msg) else msg or f"assert_close: {why}")


def _difference(
    actual: Any, expected: Any, rtol: float | None, atol: float | None, nan: bool, dtypes: bool
) -> str:
    """The differences, as text; empty if all is close."""
    kinds = [x.dtype for x in (actual, expected) if isinstance(x, Tensor)]
    a, b = (np.asarray(x.detach() if isinstance(x, Tensor) else x) for x in (actual, expected))
    if a.shape != b.shape:
        return f"shapes {list(a.shape)} and {list(b.shape)} differ"
    if dtypes and len(kinds) == 2 and kinds[0] != kinds[1]:
        return f"dtypes {kinds[0].name} and {kinds[1].name} differ"
    if rtol is None or atol is None:
        exact = (0.0, 0.0) if b.dtype.kind in "iub" else _TOLERANCES[dt.float64]
        found = [_TOLERANCES.get(d, (0.0, 0.0)) for d in kinds] or [exact]
        rtol, atol = max(r for r, _ in found), max(t for _, t in found)
    wrong = ~np.isclose(a.astype(np.float64), b.astype(np.float64), rtol, atol, equal_nan=nan)
    if not wrong.any():
        return ""
    with np.errstate(all="ignore"):
        most = np.abs(a.astype(np.float64) - b.astype(np.float64))[wrong].max()
    return f"{wrong.sum()} of {wrong.size} elements differ, by up to {most:.3g}"


def __dir__() -> list[str]:
    return ["assert_close"]
