"""Attention in the matrix units of GPUs: the interpreter on every shape of GPU against float64."""

from __future__ import annotations

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from test_attention import case
from test_attention_cached import case as cached, truth as cached_truth

from weft.backends.interp import InterpDevice
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel.tiles import has_tiles
from weft.templates import registry
from weft.templates.attention.forward_units import forward_plan
from weft.templates.attention.units_tiles import Need
from weft.templates.group import Group
from weft.templates.view import View

GPUS = [InterpDevice(PRESETS[name]) for name in ("cuda", "hip-wave64", "hip-wave32")]
BF16, F16 = dt.bfloat16, dt.float16
each_gpu = pytest.mark.parametrize("device", GPUS, ids=lambda d: d.caps.name)


@each_gpu
def test_forward(device) -> None:  # type: ignore[no-untyped-def]
    case(device, 1, 2, 2, 37, 37, 64, BF16, causal=False)
    case(device, 1, 2, 1, 150, 150, 32, F16)
    case(device, 1, 2, 1, 40, 100, 128, BF16, packed=True)
    case(device, 1, 1, 1, 70, 70, 24, F16)  # components padded to whole tiles


@each_gpu
def test_what_rows_see(device) -> None:  # type: ignore[no-untyped-def]
    case(device, 1, 2, 1, 130, 200, 16, BF16, causal=False, window=30, softcap=0.5)
    case(device, 1, 2, 1, 140, 140, 16, BF16, window=9)
    got = case(device, 3, 2, 1, 70, 70, 32, BF16, lengths=[70, 0, 33])
    assert (got[1] == 0).all()
    got = case(device, 1, 1, 1, 100, 5, 32, BF16)
    assert (got[:, :, :95] == 0).all()


@pytest.mark.parametrize("shape", [(32, 4, 64), (32, 2, 32), (16, 4, 32), (16, 2, 32)], ids=repr)
def test_blocks(shape) -> None:  # type: ignore[no-untyped-def]
    """Every shape of block; those with the same keys agree bit for bit."""
    got = case(GPUS[0], 1, 2, 1, 90, 90, 32, BF16, config={"shape": shape})
    assert got.shape == (1, 2, 90, 32)


@each_gpu
def test_prefill(device) -> None:  # type: ignore[no-untyped-def]
    cached(device, [1] * 70, list(range(20, 90)), dtype=BF16, flat=True)
    cached(device, [0] * 40, list(range(250, 290)), length=300, window=50, dtype=F16, d=64)
    slot = [0] * 7 + [2] * 9 + [0] * 3 + [1] * 21
    cached(device, slot, [5, 90, 3, 3, 17, 64, 63, *range(9), 1, 2, 95, *range(50, 71)], dtype=BF16)


def test_rows_do_not_depend_on_each_other() -> None:
    """A row has the same bits whatever else is in the block, and where in it it stands."""
    slot, pos = [0] * 20 + [2] * 20, [*range(40, 60), *range(70, 90)]
    both, arrays = cached(GPUS[0], slot, pos, dtype=BF16)
    own = [arrays[0][19:37], *arrays[1:]]
    part, _ = cached(GPUS[0], slot[19:37], pos[19:37], dtype=BF16, arrays=own)
    np.testing.assert_array_equal(part, both[19:37])


def test_runtime_rows() -> None:
    ins = [
        source("q", (90, 2, 16), BF16), source("kc", (1, 2, 128, 16), BF16),
        source("vc", (1, 2, 128, 16), BF16),
        source("slot", (90,), dt.int32), source("pos", (90,), dt.int32),
    ]  # fmt: skip
    params = {"scale": 0.3, "window": 0, "softcap": 0.0}
    arrays = [kit.fill(x) for x in ins[:3]]
    arrays += [np.zeros(90, np.int32), np.arange(10, 100, dtype=np.int32)]
    arrays[4][75:] = 1 << 30  # rows beyond the bound hold anything
    arrays[2][:, :, 85:] = np.nan  # and so do keys that no row sees
    out = f.call("cached_attention", *ins, **params)
    (got,) = kit.play(
        GPUS[0], "cached_attention", ins, [out], arrays, [75], rows="n", slots={"n": 0}
    )
    want = cached_truth(*(a[:75] if i in (0, 3, 4) else a for i, a in enumerate(arrays)), **params)
    kit.close(got[:75], want, BF16, 4)


def test_nan_stays_in_its_row() -> None:
    ins = [source(n, (1, 1, 40, 16), BF16) for n in "qkv"]
    arrays = [kit.fill(x) for x in ins]
    arrays[0][0, 0, 7, 3] = np.nan
    out = f.call("attention", *ins, causal=True, scale=0.2, window=0, softcap=0.0)
    (got,) = kit.play(GPUS[0], "attention", ins, [out], arrays)
    assert np.isnan(got[0, 0, 7].astype(np.float32)).all()
    assert np.isfinite(np.delete(got[0, 0].astype(np.float32), 7, 0)).all()


def test_the_choice() -> None:
    """By dtype, depth and layout; never by rows. f32 and odd depths keep the other kernel."""
    caps = PRESETS["cuda"]
    node = source("x", (1,), BF16)
    views = [View(node, 0, (64, 1))] * 3
    plan = forward_plan(BF16, 128, views, caps, {})
    assert plan is not None and plan.shared_bytes(Need()) <= caps.shared_bytes
    assert forward_plan(BF16, 64, views, PRESETS["webgpu"], {}) is None
    assert forward_plan(dt.float32, 64, views, caps, {}) is None
    assert forward_plan(BF16, 20, views, caps, {}) is None
    assert forward_plan(BF16, 64, [View(node, 0, (1, 64))] * 3, caps, {}) is None
    for t in (1, 500):
        ins = [source(n, (1, 2, t, 64), BF16) for n in "qkv"]
        out = f.call("attention", *ins, causal=True, scale=0.2, window=0, softcap=0.0)
        kernel = registry.get("attention")(Group("attention", tuple(ins), (out,), None), caps, {})
        assert has_tiles(kernel.body)


def test_candidates_add_up_alike() -> None:
    """What tuning may choose from changes how many rows a group takes, not a bit of a row."""
    caps = PRESETS["hip-wave64"]
    ins = [source(n, (1, 2, 90, 32), BF16) for n in "qkv"]
    arrays = [kit.fill(x) for x in ins]
    out = f.call("attention", *ins, causal=True, scale=0.2, window=0, softcap=0.0)
    found = registry.candidates(Group("attention", tuple(ins), (out,), None, name="k"), caps)
    assert found
    runs = [
        kit.play(InterpDevice(caps), "attention", ins, [out], arrays, config=config)[0]
        for config in ({}, *found)
    ]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0], other)
