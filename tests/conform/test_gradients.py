"""The gradient of every primitive, compiled, on every kind of target against the oracle."""

from __future__ import annotations

import pytest
from present import opened
from rows import few

from weft.conform import gradients
from weft.conform.report import DeviceReport, run_checks
from weft.program.device import Device

TARGETS = ("cpu", "interp:cuda", "interp:hip-wave64", "interp:webgpu", "vulkan")


@pytest.fixture(params=few(TARGETS, *(t for t in TARGETS if t != "interp:hip-wave64")))
def device(request: pytest.FixtureRequest) -> Device:
    return opened(request.param)


def test_gradients_of_primitives(device: Device) -> None:
    cases = [c for c in gradients.primitives(device) if "[2, 3, 64]" not in c[0]]
    assert len(cases) > 40
    report = DeviceReport(device.info.id, device.info.name)
    list(run_checks(report, "primitives", iter(cases)))
    assert report.ok, [(c.name, c.message) for c in report.cases if c.status == "fail"]


@pytest.mark.slow
def test_gradients_of_composites(device: Device) -> None:
    report = DeviceReport(device.info.id, device.info.name)
    list(run_checks(report, "templates", gradients.composites(device)))
    assert report.ok, [(c.name, c.message) for c in report.cases if c.status == "fail"]
