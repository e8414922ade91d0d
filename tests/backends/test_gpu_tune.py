"""What `weft tune` may choose on GPUs: the code written for them, played by the emulator."""

from __future__ import annotations

import pytest
from gpu_emulator import Emulated

from weft.backends.llvm import gpu_target
from weft.bench import tune, tune_cases
from weft.bench.roofline import Roofline
from weft.core import dtypes as dt
from weft.core.dtypes import DType

SIZE = (18, 36, 40)


def play(arch: str, kind: str, dtype: DType) -> int:
    """How many configurations were played; each is right and none looks at the number of rows."""
    device, count = Emulated(gpu_target(arch)), 0
    for case in tune_cases.product_cases([kind], [SIZE], [dtype], device.caps):
        found = tune.measure(device, case, Roofline(1.0, 1.0), 0.0)
        assert not [m.why for m in found if m.why], case.label
        for m in found:
            assert not tune.rows_differ(device, case, m.config), (case.label, m.config)
        count += len(found)
    return count


def test_matvec() -> None:
    assert play("gfx1100", "matvec", dt.bfloat16) > 1


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16], ids=repr)
def test_every_configuration(arch: str, dtype: DType) -> None:
    assert play(arch, "matmul", dtype) + play(arch, "matvec", dtype) > 2
