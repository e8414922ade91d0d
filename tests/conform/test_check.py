"""`weft check` must catch a device that is wrong: these devices are, on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.backends.interp import InterpDevice
from weft.cli.main import invoke
from weft.conform import device as device_level, kernels
from weft.conform.check import check_device
from weft.conform.report import DeviceReport, run_checks, support_table, table_of
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
    report = DeviceReport("broken:0", "on purpose")
    device = broken(PRESETS["webgpu"])
    for _ in run_checks(report, "device", device_level.checks(device)):
        pass
    assert not report.ok
    assert "FAILED" in support_table([report])


def test_what_never_ran_is_said() -> None:
    """Until there is a report of it."""
    never = "| {} | compiled and interpreted, never run on hardware | - |"
    table = support_table([DeviceReport("cpu:0", "here")])
    assert never.format("cuda") in table and never.format("hip") in table
    table = support_table([DeviceReport("cuda:0", "H100")])
    assert never.format("cuda") not in table and never.format("hip") in table


def test_an_empty_report_is_not_a_pass() -> None:
    assert not DeviceReport("x", "y").ok


def test_an_exception_is_one_failure_and_the_rest_goes_on() -> None:
    def boom() -> float:
        raise RuntimeError("first line\nsecond line")

    report = DeviceReport("x", "y")
    list(run_checks(report, "kernels", iter([("a", boom), ("b", lambda: 0.0)])))
    assert [c.status for c in report.cases] == ["fail", "ok"]
    assert report.cases[0].message == "RuntimeError: first line"


def test_samples_hold_the_corners() -> None:
    data = kernels.sample(kernels.dt.int8)
    assert {-128, 127, 0, 1} <= set(data.tolist())


def test_the_table_is_written_into_pages(tmp_path: Path) -> None:
    """One that is begun, and one whose other text, tables too, stays as it is."""
    begun, page = tmp_path / "support.md", tmp_path / "README.md"
    other = "# A\n\n| a:0 | b |\n| --- | --- |\n\n"
    page.write_text(f"{other}{support_table([DeviceReport('cpu:0', 'there')])}\n\nend\n")
    command = ["check", "--device", "null", "--level", "device"]
    for path in (begun, page):
        command += ["--write", str(path)]
    assert invoke(command) == 0
    assert page.read_text().startswith(other) and page.read_text().endswith("\n\nend\n")
    assert "| cpu:0 | there |" in page.read_text() and "| a:0 |" not in table_of(page.read_text())
    for path in (begun, page):
        assert "| null:0 | interpreter of null | passed 10 |" in table_of(path.read_text())
    (tmp_path / "notes.md").write_text("mine\n")
    assert invoke([*command, "--write", str(tmp_path / "notes.md")]) != 0
    assert (tmp_path / "notes.md").read_text() == "mine\n"
