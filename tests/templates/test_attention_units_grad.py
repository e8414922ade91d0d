"""The derivative of attention in the matrix units of GPUs, and both ways as GPUs' own code."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dotkit import f, fill, play, source
from test_attention import case as forward
from test_attention_backward import case
from test_attention_cached import case as cached

from weft.backends.interp import InterpDevice
from weft.backends.llvm import gpu_target, offline, ptxas
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel.ir import Kernel
from weft.kernel.tiles import has_tiles
from weft.templates import registry
from weft.templates.group import Group

sys.path.append(str(Path(__file__).parent.parent / "backends"))
GPUS = [InterpDevice(PRESETS[name]) for name in ("cuda", "hip-wave64", "hip-wave32")]
BF16, F16 = dt.bfloat16, dt.float16
each_gpu = pytest.mark.parametrize("device", GPUS, ids=lambda d: d.caps.name)


def some(few: tuple[str, ...], more: tuple[str, ...]) -> pytest.MarkDecorator:
    """Architectures of which all but a few are for the long run of the tests."""
    slow = [pytest.param(a, marks=pytest.mark.slow) for a in more]
    return pytest.mark.parametrize("arch", [*few, *slow])


@each_gpu
def test_gradients(device) -> None:  # type: ignore[no-untyped-def]
    case(device, 1, 2, 1, 70, 70, 16, BF16, parts=True, causal=True)
    case(device, 1, 2, 2, 40, 75, 64, F16, parts=True, packed=True)


@each_gpu
def test_what_rows_see(device) -> None:  # type: ignore[no-untyped-def]
    case(device, 2, 2, 1, 70, 75, 24, BF16, parts=True, lengths=[0, 33], causal=True)
    case(device, 1, 2, 1, 80, 80, 16, BF16, parts=True, causal=True, window=7)
    case(device, 1, 1, 1, 70, 75, 16, BF16, parts=True, window=5, softcap=0.7)


def gradient_calls(shape: tuple[int, ...]) -> list[Group]:
    """The three parts over operands of bf16."""
    ins = [source(n, shape, BF16) for n in "qkvg"]
    rows = [source(n, shape[:3]) for n in ("lse", "delta")]
    params = {"causal": True, "scale": 0.125, "window": 0, "softcap": 0.0}
    groups = []
    for name, taken in (
        ("attention_lse", ins[:2]), ("attention_dq", ins + rows), ("attention_dkv", ins + rows),
    ):  # fmt: skip
        out = f.call(name, *taken, **params)
        groups.append(Group("attention_grad", tuple(taken), (out,), None, name=name))
    return groups


def test_the_same_bits_every_time_and_nan() -> None:
    for group in gradient_calls((1, 2, 70, 16)):
        arrays = [fill(x) for x in group.inputs]
        inputs, outputs = list(group.inputs), list(group.outputs)
        runs = [play(GPUS[0], "attention_grad", inputs, outputs, arrays)[0] for _ in range(2)]
        np.testing.assert_array_equal(*runs)
        for i in range(len(arrays)):
            poisoned = [a.copy() for a in arrays]
            poisoned[i].reshape(-1)[5] = np.nan
            (got,) = play(GPUS[0], "attention_grad", inputs, outputs, poisoned)
            assert np.isnan(got.astype(np.float32)).any()


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")
@some(("sm_80", "gfx1100"), ("gfx90a", "gfx942"))
def test_as_code(arch: str) -> None:
    """What LLVM makes of it, executed: matrix units and all."""
    from gpu_emulator import Emulated

    device = Emulated(gpu_target(arch))
    forward(device, 1, 2, 1, 70, 70, 32, BF16)
    case(device, 1, 1, 1, 40, 40, 16, BF16, parts=True, causal=True)
    slot = [0] * 7 + [2] * 9 + [0] * 3
    cached(device, slot, [5, 90, 3, 3, 17, 64, 63, *range(9), 1, 2, 95], dtype=F16)
    cached(device, [0, 2, 1], [0, 95, 40], 7, 1, dtype=BF16)


def kernels(arch: str) -> list[Kernel]:
    """Attention at the sizes of models, as an architecture gets it."""
    caps, found = gpu_target(arch).caps, []
    for depth in (64, 128):
        ins = [source(n, (1, 8, 4096, depth), BF16) for n in "qkv"]
        out = f.call("attention", *ins, causal=True, scale=0.125, window=0, softcap=0.0)
        groups = [Group("attention", tuple(ins), (out,), None, name="attention")]
        for rows in (1, 2048):
            ins = [source("q", (rows, 32, depth), BF16)]
            ins += [source(n, (4, 8, 4096, depth), BF16) for n in "kv"]
            ins += [source(n, (rows,), dt.int32) for n in ("slot", "pos")]
            out = f.call("cached_attention", *ins, scale=0.125, window=0, softcap=0.0)
            name = f"cached{rows}"
            groups.append(Group("cached_attention", tuple(ins), (out,), None, name=name))
        groups += gradient_calls((1, 8, 1024, depth))
        for group in groups:
            kernel = registry.get(group.kind)(group, caps, {})
            found.append(replace(kernel, name=f"{kernel.name}_{depth}"))
    return found


@some(("sm_90", "gfx1100"), ("sm_80", "sm_120", "gfx90a", "gfx942"))
def test_resources(arch: str) -> None:
    """Everything large runs in the units, and no thread spills registers."""
    if arch.startswith("sm_") and ptxas.find() is None:
        pytest.skip("ptxas was not found")
    made = kernels(arch)
    plain = {k.name for k in made if not has_tiles(k.body)}
    allowed = {"cached1_64", "cached1_128"} | (
        {"attention_dkv_128"} if arch == "gfx1100" else set()
    )
    assert plain == allowed
    for name, taken in offline.resources(made, gpu_target(arch)).items():
        assert taken.spills == 0 and taken.stack == 0, (name, taken)
