"""`weft check` must catch a device that is wrong: these devices are, on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from weft.backends.interp import InterpDevice
from weft.conform import device as device_level, kernels
from weft.conform.check import check_device
from weft.conform.report import Report, run_checks, support_table
from weft.core.caps import PRESETS

CAPS = ("cpu-avx512", "webgpu", "hip-wave64")


@pytest.mark.parametrize("name", CAPS)
def test_the_interpreter_passes_device_and_kernels(name: str) -> None:
    report = check_device(InterpDevice(PRESETS[name]), ("device", "kernels"))
    failed = [c for c in report.cases if c.status == "fail"]
    assert not failed, failed[:3]
    assert len(report.cases) > 100 and report.ok


class Drifting(InterpDevice):
    """Adds one in the last place to every float it reads back."""

    def read(self, buffer: Any, shape: Any, dtype: Any, offset: int = 0) -> np.ndarray:
        out = super().read(buffer, shape, dtype, offset)
        if out.size:
            out.view(np.uint8).ravel()[-1] ^= 1
        return out


class Forgetful(InterpDevice):
    """Plays nothing."""

    def submit(self, bound: Any, scalars: Sequence[int]) -> None:
        return None


@pytest.mark.parametrize("broken", [Drifting, Forgetful])
def test_a_wrong_device_fails(broken: type[InterpDevice]) -> None:
    report = Report("broken:0", "on purpose")
    device = broken(PRESETS["webgpu"])
    for _ in run_checks(report, "device", device_level.checks(device)):
        pass
    assert not report.ok
    assert "FAILED" in support_table([report])


def test_what_never_ran_is_said() -> None:
    """Until there is a report of it."""
    never = "| {} | compiled and interpreted, never run on hardware | - |"
    table = support_table([Report("cpu:0", "here")])
    assert never.format("cuda") in table and never.format("hip") in table
    table = support_table([Report("cuda:0", "H100")])
    assert never.format("cuda") not in table and never.format("hip") in table


def test_an_empty_report_is_not_a_pass() -> None:
    assert not Report("x", "y").ok


def test_an_exception_is_one_failure_and_the_rest_goes_on() -> None:
    def boom() -> float:
        raise RuntimeError("first line\nsecond line")

    report = Report("x", "y")
    list(run_checks(report, "kernels", iter([("a", boom), ("b", lambda: 0.0)])))
    assert [c.status for c in report.cases] == ["fail", "ok"]
    assert report.cases[0].message == "RuntimeError: first line"


def test_samples_hold_the_corners() -> None:
    data = kernels.sample(kernels.dt.int8)
    assert {-128, 127, 0, 1} <= set(data.tolist())
