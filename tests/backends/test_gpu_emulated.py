"""What the LLVM dialect writes for GPUs, executed: see gpu_emulator. Nodes, primitives, templates
against the interpreter and the oracle."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import gpu_emulator
import numpy as np
import pytest
from gpu_case import TINY
from gpu_emulator import Emulated

import weft
from weft.backends import registry
from weft.backends.llvm import gpu_target
from weft.conform import kernels, primitives, templates
from weft.conform.gpt import Trainer
from weft.conform.report import Skip
from weft.core import dtypes as dt
from weft.kernel import interp
from weft.kernel.builder import Builder, load
from weft.models import random_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")


ARCHES = ("sm_80", "gfx90a", "gfx1100")


def run(arch: str, module, every: int = 1) -> int:  # type: ignore[no-untyped-def]
    """Runs a level's checks (each `every`-th); how many kernels that took."""
    device = Emulated(gpu_target(arch))
    registry._open_devices["recorder:0"] = device
    try:
        for name, check in itertools.islice(module.checks(device), 0, None, every):
            try:
                check()
            except Skip:
                continue
            except Exception as error:
                raise AssertionError(f"{arch}, {name}: {error}") from error
    finally:
        del registry._open_devices["recorder:0"]
    return device.played


@pytest.mark.parametrize("arch", ARCHES)
def test_nodes(arch: str) -> None:
    assert run(arch, kernels) > 100


@pytest.mark.parametrize("arch", ["sm_80", "gfx90a"])
def test_some_templates(arch: str) -> None:
    assert run(arch, templates, 9) > 30


def test_shared_memory_that_the_launch_asks_for() -> None:
    """Arrays that get their places in one of no size keep apart."""
    b = Builder("apart")
    x, out = b.buffer("x", dt.float32, 64), b.buffer("out", dt.float32, 64, "w")
    arrays = [b.array(f"s{i}", dt.float32, n, "shared") for i, n in enumerate((63, 12289, 65))]
    t = b.let(b.thread(0), "t")
    value = b.let(load(x, t), "value")
    for i, array in enumerate(arrays):
        b.store(array, t, value * (i + 1), mask=t < array.size)
    b.barrier()
    parts = [load(array, 62 - t, mask=t < 63) for array in arrays]
    b.store(out, t, parts[0] * 100 + parts[1] * 10 + parts[2])
    kernel = b.kernel((1,), (64,))
    given, found, want = np.arange(64, dtype=np.float32), *np.zeros((2, 64), np.float32)
    gpu_emulator.play(kernel, gpu_target("sm_80"), [given, found], [])
    interp.run(kernel, [given, want], caps=gpu_target("sm_80").caps)
    np.testing.assert_array_equal(found, want)
    assert want[0] == 62 * 123


@pytest.mark.slow
@pytest.mark.parametrize("module", [primitives, templates], ids=lambda m: m.__name__)
@pytest.mark.parametrize("arch", ARCHES)
def test_everything(arch: str, module) -> None:  # type: ignore[no-untyped-def]
    assert run(arch, module) > 200


@pytest.mark.parametrize("arch", ["sm_80", "gfx90a"])
def test_a_model_writes_the_same_tokens(arch: str, tmp_path: Path) -> None:
    small = {
        "model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 16,
    }  # fmt: skip
    folder = random_folder(tmp_path, small, scale=0.3)
    want = weft.load(folder, device="oracle").generate([1, 2, 3, 4, 5], max_new_tokens=3)
    device = Emulated(gpu_target(arch))
    got = weft.load(folder, device=device).generate([1, 2, 3, 4, 5], max_new_tokens=3)
    assert got == want and device.played > 20


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
def test_training_steps_like_on_the_cpu(arch: str) -> None:
    """Forward, backward and AdamW: the loss of four steps."""
    host = Trainer(TINY, "cpu")
    want = [host.step() for _ in range(4)]
    registry._open_devices["recorder:0"] = Emulated(gpu_target(arch))
    try:
        train = Trainer(TINY, "recorder:0")
        got = [train.step() for _ in range(4)]
    finally:
        del registry._open_devices["recorder:0"]
    assert want[0] > want[3] and np.allclose(got, want, rtol=1e-5)


def test_the_emulator_sees_a_wrong_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialect that exchanged with the wrong lane would fail here."""
    real = gpu_emulator.render_gpu

    def wrong(kernel, target) -> str:  # type: ignore[no-untyped-def]
        return re.sub(r"i32 \d+, i32 31\)", "i32 1, i32 31)", real(kernel, target))

    monkeypatch.setattr(gpu_emulator, "render_gpu", wrong)
    with pytest.raises(AssertionError, match="subgroup"):
        run("sm_80", kernels)
