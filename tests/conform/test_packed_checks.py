"""What `weft check` says of packed weights: that devices are right, and that a wrong one is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.conform import models, packed
from weft.conform.report import CheckResult, DeviceReport, run_checks
from weft.core.caps import PRESETS
from weft.program.device import Device


def outcome(device: Device, *names: str) -> list[CheckResult]:
    """The checks whose names contain one of `names` (all when empty)."""
    checks = [c for c in packed.checks(device) if not names or any(n in c[0] for n in names)]
    return list(run_checks(DeviceReport("x", "y"), "templates", iter(checks)))


@pytest.mark.parametrize("name", ["webgpu", pytest.param("cpu-avx512", marks=pytest.mark.slow)])
def test_the_interpreter_passes(name: str) -> None:
    found = outcome(InterpDevice(PRESETS[name]))
    assert len(found) == 30 and all(c.status == "ok" for c in found), found


class Dulled(InterpDevice):
    """Loses the lowest bit of every byte that it is given as bytes."""

    def write(self, buffer: Any, data: np.ndarray, offset: int = 0) -> None:
        super().write(buffer, data & 0xFE if data.dtype == np.uint8 else data, offset)


def test_a_wrong_code_is_found() -> None:
    found = outcome(Dulled(PRESETS["webgpu"]), "Q4_0", "Q5_0")
    assert len(found) == 4 and all(c.status == "fail" for c in found), found


def test_a_packed_model_decodes_as_the_oracle() -> None:
    checks = [run for name, run in models.checks(get("cpu")) if "packed" in name]
    assert [0 < check() < most for check, most in zip(checks, (1e-3, 2e-2))] == [True, True]
