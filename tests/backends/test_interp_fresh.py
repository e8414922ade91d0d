"""Kernels of every kind of target read no memory of a device that nobody has written."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu_emulator import Arrays, Emulated, Ints

from weft.backends.llvm import gpu_target
from weft.conform import primitives, templates
from weft.conform.report import CheckFailed, Skip
from weft.core.caps import PRESETS
from weft.core.errors import KernelError
from weft.kernel import interp
from weft.kernel.ir import Kernel

KINDS = ("cpu-avx512", "webgpu", "lavapipe")


class Fresh(Emulated):
    """A device of any Caps, in the interpreter, which is told what was never written."""

    def __init__(self, caps: str) -> None:
        super().__init__(gpu_target("sm_80"))
        self.caps = PRESETS[caps]

    def launch(self, kernel: Kernel, arrays: Arrays, scalars: Ints, known: Arrays) -> None:
        missing = [~k.reshape(a.size, -1).all(1) for a, k in zip(arrays, known, strict=True)]
        interp.run(kernel, arrays, scalars, caps=self.caps, undefined=missing)
        for array, mark, left in zip(arrays, known, missing, strict=True):
            mark |= np.repeat(~left, array.itemsize)


LET = (Skip, CheckFailed)  # whether the result is right, others ask


@pytest.mark.parametrize("caps", KINDS)
def test_some(caps: str) -> None:
    device = Fresh(caps)
    for module, every in ((primitives, 60), (templates, 80)):
        device.run_checks(itertools.islice(module.checks(device), 3, None, every), LET)
    assert device.played > 12


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", [primitives, templates], ids=lambda m: m.__name__)
@pytest.mark.parametrize("caps", PRESETS)
def test_everything(caps: str, module) -> None:  # type: ignore[no-untyped-def]
    device = Fresh(caps)
    device.run_checks(module.checks(device), LET)
    assert device.played > 200


def test_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Fresh("webgpu")
    monkeypatch.setattr(
        Fresh, "write", lambda self, b, data, offset=0: Emulated.write(self, b, data[:-1], offset)
    )
    checks = ((n, c) for n, c in primitives.checks(device) if n == "add float32 [7]")
    with pytest.raises(AssertionError, match=r"undefined|never|before") as found:
        device.run_checks(checks, LET)
    assert isinstance(found.value.__cause__, KernelError)
