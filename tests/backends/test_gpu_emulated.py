"""What the LLVM dialect writes for GPUs, executed: see gpu_emulator. Nodes, primitives, templates
against the interpreter and the oracle."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import gpu_emulator
import numpy as np
import pytest
from gpu_case import TINY, share_of
from gpu_emulator import Emulated
from rows import few

import weft
from weft import ops
from weft.backends import registry
from weft.backends.llvm import gpu_target
from weft.conform import kernels, primitives, templates, unary
from weft.conform.gpt import Trainer
from weft.core import dtypes as dt
from weft.kernel import interp
from weft.kernel.builder import Builder
from weft.kernel.expr import load
from weft.kernel.ir import Kernel
from weft.models import random_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")


ARCHES = ("sm_80", "gfx90a", "gfx1100")


def run(arch: str, module, first: int = 0, step: int = 1) -> int:  # type: ignore[no-untyped-def]
    """Runs a level's checks (see share_of); how many kernels that took."""
    device = Emulated(gpu_target(arch))
    return device.run_checks(share_of(module.checks(device), first, step))


@pytest.mark.parametrize("arch,first,step", [
    *((arch, first, 3) for first, arch in enumerate(ARCHES)),
    *(pytest.param(arch, 0, 1, marks=pytest.mark.slow) for arch in ARCHES),
])  # fmt: skip
def test_nodes(arch: str, first: int, step: int) -> None:
    assert run(arch, kernels, first, step) > 100 // step


@pytest.mark.parametrize("arch", ARCHES)
def test_functions_of_one_argument(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of every size, NaN and infinities, within the errors that numerics.md states."""
    page = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
    stated = unary.stated(page.read_text(encoding="utf-8"))
    monkeypatch.setitem(registry._open_devices, "recorder:0", Emulated(gpu_target(arch)))
    x = unary.operands(dt.float32, 3000)
    for name in ("cos", "erf", "exp", "expm1", "gelu", "gelu, tanh", "log", "log1p", "tan", "tanh"):
        found = unary.errors(unary.FUNCTIONS[name], x, "recorder:0")
        at = int(found.argmax())
        assert found[at] <= stated[name]["cpu"][0] + 1, (name, x[at], found[at])


@pytest.mark.parametrize("arch,first", few([("sm_80", 0), ("gfx90a", 1)], ("sm_80", 0)))
def test_some_templates(arch: str, first: int) -> None:
    assert run(arch, templates, first, 40) > 15


@pytest.mark.parametrize("arch", ARCHES)
def test_division_of_every_size(arch: str) -> None:
    """% and // of floats, bit for bit: quotients up to 2^277, subnormals, zeros, infinities."""
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 1 << 32, (2, 512), np.uint32).view(np.float32)
    x[:256], y[:256] = rng.normal(size=(2, 256)) * 10.0 ** rng.integers(-4, 9, (2, 256))
    edges = np.float32([0.0, -0.0, 3.0, -7.5, np.inf, -np.inf, np.nan, 1e-45, -3e38])
    x, y = np.append(x, np.repeat(edges, 9)), np.append(y, np.tile(edges, 9))
    registry._open_devices["recorder:0"] = Emulated(gpu_target(arch))
    try:
        both = weft.compile(lambda a, c: (a % c, a // c), device="recorder:0")
        found = [t.numpy() for t in both(weft.tensor(x), weft.tensor(y))]
    finally:
        del registry._open_devices["recorder:0"]
    for got, want in zip(found, (ops.remainder(x, y), ops.floor_divide(x, y))):
        np.testing.assert_array_equal(got, want)
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


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
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", [primitives, templates], ids=lambda m: m.__name__)
@pytest.mark.parametrize("arch", ARCHES)
def test_everything(arch: str, module) -> None:  # type: ignore[no-untyped-def]
    assert run(arch, module) > 200


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("gfx90a", marks=pytest.mark.slow)])
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
    device = Emulated(gpu_target("sm_80"))
    checks = (c for c in kernels.checks(device) if "subgroup" in c[0])
    with pytest.raises(AssertionError, match="subgroup"):
        device.run_checks(checks)


def reversing(apart: bool = False) -> Kernel:
    """Rows of 64, turned around through shared memory; `apart`: half the threads do not meet the
    others."""
    b = Builder("reversing")
    x, out = b.buffer("x", dt.float32, 64), b.buffer("out", dt.float32, 64, "w")
    array = b.array("row", dt.float32, 64, "shared")
    t = b.let(b.thread(0), "t")
    b.store(array, t, load(x, t))
    with b.when(t < 32) if apart else contextlib.nullcontext():
        b.barrier()
    b.store(out, t, load(array, 63 - t))
    return b.kernel((1,), (64,))


@pytest.mark.parametrize("apart", [False, True])
def test_the_emulator_sees_a_barrier_that_is_missing(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever's turn comes first: the threads of a second run take theirs the other way round."""
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    target = gpu_target("sm_80")
    gpu_emulator.play(reversing(), target, [x, out], [])
    np.testing.assert_array_equal(out, x[::-1])
    real = gpu_emulator.render_gpu
    barrier = "call void @llvm.nvvm.barrier.*"
    if not apart:
        less = lambda kernel, target: re.sub(barrier, "", real(kernel, target), count=1)  # noqa: E731
        monkeypatch.setattr(gpu_emulator, "render_gpu", less)
    said = "not all threads came to a barrier" if apart else "depend on what memory"
    with pytest.raises(AssertionError, match=said):
        gpu_emulator.play(reversing(apart), target, [x, out], [])
