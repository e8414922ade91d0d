"""Devices that lack something, and what ran on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft import Tensor
from weft.backends.interp import InterpDevice
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.program.parted import PartedSession

NARROW = frozenset({dt.float16, dt.bfloat16})
X = np.random.default_rng(5).standard_normal((4, 8)).astype(np.float32)


def lacking(**changes: Any) -> InterpDevice:
    return InterpDevice(replace(PRESETS["webgpu"], **changes))


def no_halves() -> InterpDevice:
    return lacking(dtypes=PRESETS["webgpu"].dtypes - NARROW)


def session_of(compiled: Any) -> Any:
    return compiled._kept.entries()[-1].session


def counts(compiled: Any) -> tuple[int, int, int]:
    """Parts, transfers and bytes moved so far."""
    session = session_of(compiled)
    assert isinstance(session, PartedSession)
    return len(session.sessions), session.transfers, session.moved


def same(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    assert got.shape == want.shape and got.dtype is want.dtype
    g, w = (t.to("cpu").numpy().astype(np.float64) for t in (got, want))
    np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)
