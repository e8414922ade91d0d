"""What the LLVM dialect writes for GPUs, executed: see gpu_emulator. Nodes, primitives, templates
against the interpreter and the oracle."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from gpu_emulator import Emulated

from weft.backends import registry
from weft.backends.llvm import gpu_target
from weft.conform import kernels
from weft.conform.report import Skip

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")


def run(arch: str, module, every: int = 1, first: int = 0) -> int:  # type: ignore[no-untyped-def]
    """Runs a level's checks (each `every`-th); how many kernels that took."""
    device = Emulated(gpu_target(arch))
    registry._open_devices["recorder:0"] = device
    try:
        for number, (name, check) in enumerate(_numbered(module.checks(device))):
            if number % every != first:
                continue
            try:
                check()
            except Skip:
                continue
            except Exception as error:
                raise AssertionError(f"{arch}, {name}: {error}") from error
    finally:
        del registry._open_devices["recorder:0"]
    return device.played


def _numbered(checks) -> Iterator:  # type: ignore[no-untyped-def]
    yield from checks


@pytest.mark.parametrize("arch", ["sm_80", "gfx90a", "gfx1100"])
def test_nodes(arch: str) -> None:
    assert run(arch, kernels) > 100
