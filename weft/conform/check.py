"""`weft check`: every level, in order, on one device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from weft.conform.report import LEVELS, CheckResult, DeviceReport, run_checks
from weft.program.device import Device

__all__ = ["LEVELS", "check_device"]


def check_device(
    device: Device,
    levels: Sequence[str] = LEVELS,
    progress: Callable[[CheckResult], None] | None = None,
) -> DeviceReport:
    """Runs the named levels and returns the report. A failure never stops the rest."""
    report = DeviceReport(device.info.id, device.info.name)
    for level in levels:
        module = importlib.import_module(f"weft.conform.{level}")
        for case in run_checks(report, level, module.checks(device)):
            if progress:
                progress(case)
    return report
