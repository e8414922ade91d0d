"""Whole models and training steps through the device and the driver of CUDA and HIP, down to the
calls of the bindings: a stand-in for these runs the kernels, in the interpreter."""

from __future__ import annotations

import dataclasses
import gc
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gpu_bindings import Bindings, Taught, named
from gpu_emulator import play
from rows import few

import weft
from weft.backends import registry
from weft.backends.gpu import GpuDevice
from weft.conform.gpt import GptSizes, Trainer
from weft.conform.harness import elementwise_kernel, program_of
from weft.core import dtypes as dt
from weft.core.errors import DeviceError, OutOfMemoryError, UsageError
from weft.models import random_folder
from weft.program.program import Copy, Dispatch, Program

SMALL = GptSizes(layers=1, width=8, heads=2, context=4, batch=2, vocab=8)
GPT2 = {"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2}
GPT2 |= {"n_positions": 16}


def calls(gpu: Bindings, short: str) -> int:
    return Counter(c[0] for c in gpu.calls)[named(gpu, short)[0]]


def test_generation(gpu: Bindings, tmp_path: Path) -> None:
    folder = random_folder(tmp_path, GPT2, scale=0.3)
    prompt = [3, 1, 4, 1, 5]
    want = weft.load(folder, device="cpu").generate(prompt, max_new_tokens=6)
    device = Taught(gpu)
    model = weft.load(folder, device=device)
    assert model.generate(prompt, max_new_tokens=6) == want
    assert calls(gpu, "replay") > 1 and calls(gpu, "begin") < calls(gpu, "replay")
    assert model.generate(prompt, max_new_tokens=6) == want
    loaded = calls(gpu, f"{gpu.kind}_module")
    assert loaded == len(gpu.kernels)
    del model
    gc.collect()
    device.close()
    assert not [what for what in gpu.left() if what != "memory"]


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")
@pytest.mark.parametrize("gpu", few(["cuda", "hip"], "hip"), indirect=True)
def test_generation_by_the_gpus_own_code(gpu: Bindings, tmp_path: Path) -> None:
    """The LLVM IR of the GPU instead of the interpreter: see gpu_emulator."""
    folder = random_folder(tmp_path, GPT2 | {"n_positions": 8}, scale=0.3)
    want = weft.load(folder, device="cpu").generate([3, 1, 4], max_new_tokens=3)
    device = Taught(gpu)
    gpu.execute = lambda kernel, arrays, scalars: play(kernel, device.target, arrays, scalars)
    assert weft.load(folder, device=device).generate([3, 1, 4], max_new_tokens=3) == want
    assert calls(gpu, "replay") >= 1


@pytest.mark.parametrize("gpu", few(["cuda", "hip"], "cuda"), indirect=True)
def test_training(gpu: Bindings, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Trainer(SMALL, "cpu")
    want = [host.step() for _ in range(3)]
    device = Taught(gpu)
    monkeypatch.setitem(registry._open_devices, f"{gpu.kind}:0", device)
    train = Trainer(SMALL, f"{gpu.kind}:0")
    got = [train.step() for _ in range(3)]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert want[0] > want[2] and calls(gpu, "replay") >= 1
    held = len(gpu.blocks)
    for _ in range(2):
        train.step()
    gc.collect()
    device.sync()
    assert len(gpu.blocks) <= held  # a step leaves nothing behind


def doubling(device: GpuDevice) -> tuple[Program, list[int]]:
    f32 = dt.float32
    kernel = elementwise_kernel("double", device.caps, 64, [f32], f32, lambda b, i, x: x * 2.0)
    return program_of(kernel)


def test_time_by_the_devices_clock(gpu: Bindings) -> None:
    device = Taught(gpu)
    program, sizes = doubling(device)
    bound = device.bind(program, [device.alloc(n) for n in sizes])
    before = gpu.left()
    run = lambda: device.submit(bound, [])  # noqa: E731
    assert device.timed([run, lambda: None]) == [0.002, 0.001]
    assert gpu.left() == before and device.timed([]) == []


@pytest.mark.parametrize("checking", [False, True])
def test_a_kernel_that_faults(
    gpu: Bindings, checking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen late, so no step is blamed; with WEFT_CHECK=1 the one to blame."""
    monkeypatch.setenv("WEFT_CHECK", str(int(checking)))
    device = Taught(gpu)
    program, sizes = doubling(device)
    (step,) = program.steps
    assert isinstance(step, Dispatch)
    moves = Copy(step.args[0], step.args[1], "moves")
    last = Copy(step.args[1], step.args[0], "last")
    program = dataclasses.replace(program, steps=(moves, step, last))
    bound = device.bind(program, [device.alloc(n) for n in sizes])
    gpu.faults.add("weft_double")
    with pytest.raises(DeviceError) as error:
        for _ in range(3):
            device.submit(bound, [])
            device.sync()
    said = str(error.value)
    assert f"{gpu.kind}:0 is lost" in said and "(700)" in said and device.lost
    where = "double, step 1, double (kernel double): "
    assert said.startswith(where if checking else f"{gpu.kind}:0 is lost")
    assert checking or "WEFT_CHECK=1 to learn the step" in said
    with pytest.raises(DeviceError, match="start the process anew"):
        device.alloc(8)


@pytest.mark.parametrize(
    "wish,version,replays", [("", 0, 2), ("off", 0, 0), ("", 70_226_015, 0), ("on", 70_226_015, 2)]
)
def test_replays_that_are_not_wanted(
    gpu: Bindings, wish: str, version: int, replays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for in the environment; or ROCm 7.2, which is known to replay wrongly."""
    monkeypatch.setenv("WEFT_REPLAY", wish)
    if version:
        monkeypatch.setattr(gpu, "do_version", lambda: version)
    device = Taught(gpu)
    program, sizes = doubling(device)
    bound = device.bind(program, [device.alloc(n) for n in sizes])
    for _ in range(3):
        device.submit(bound, [])
    replays = replays if wish or gpu.kind == "hip" else 2
    assert calls(gpu, "replay") == replays and ("replay" in device.info.extra) == (not replays)
    monkeypatch.setenv("WEFT_REPLAY", "perhaps")
    with pytest.raises(UsageError, match="WEFT_REPLAY='perhaps'; use"):
        Taught(gpu)


def test_checking_records_nothing(gpu: Bindings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECK", "1")
    device = Taught(gpu)
    program, sizes = doubling(device)
    buffers = [device.alloc(n) for n in sizes]
    device.write(buffers[0], np.ones(64, np.float32))
    bound = device.bind(program, buffers)
    for _ in range(3):
        device.submit(bound, [])
    assert not calls(gpu, "begin") and calls(gpu, "wait") == 3
    np.testing.assert_array_equal(device.read(buffers[1], (64,), dt.float32), 2)


def test_a_model_that_does_not_fit(gpu: Bindings, tmp_path: Path) -> None:
    """What it needs, what there is, and what would fit; nothing stays behind."""
    config = GPT2 | {"n_positions": 512}
    folder = random_folder(tmp_path, config)

    def refused(memory: int) -> str:
        gpu.memory = memory
        with pytest.raises(OutOfMemoryError) as error:
            weft.load(folder, device=device).generate([1, 2], max_new_tokens=1)
        gc.collect()
        assert device.alloc(8)
        return str(error.value)

    device = Taught(gpu)
    said = refused(240_000)
    needs = "the weights take 48,576 bytes, the cache of 512 positions x 1 takes 65,536"
    assert said.startswith(f"gpt2.prefill: {needs}") and " of 240,000 bytes are free" in said
    fitting = int(re.search(r"context=(\d+) would fit", said)[1])  # type: ignore[index]
    assert 256 < fitting < 512 and "a smaller dtype, context or max_batch" in refused(20_000)
    gpu.memory = 240_000
    model = weft.load(folder, device=device, context=fitting)
    assert model.generate([1, 2], max_new_tokens=2)
