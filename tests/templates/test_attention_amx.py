"""Attention in a CPU's matrix registers: the interpreter, and this machine where it has them (else
its vectors, by the portable form of tiles)."""

from __future__ import annotations

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from test_attention import case
from test_attention_cached import case as cached

from weft.backends.cpu import CpuDevice
from weft.backends.interp import InterpDevice
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel.tiles import has_tiles
from weft.templates import registry
from weft.templates.group import Group

BF16 = dt.bfloat16
CPU = CpuDevice()
each = pytest.mark.parametrize("device", [InterpDevice("cpu-amx"), CPU], ids=["interp", "cpu"])


@each
def test_whole_sequences(device) -> None:  # type: ignore[no-untyped-def]
    case(device, 1, 2, 2, 37, 37, 64, BF16)
    case(device, 1, 2, 1, 70, 130, 80, BF16, packed=True)
    case(device, 1, 2, 1, 70, 70, 16, BF16, window=9)
    case(device, 1, 2, 1, 40, 40, 24, BF16, softcap=0.5, causal=False)
    got = case(device, 3, 2, 1, 70, 70, 32, BF16, lengths=[70, 0, 33], packed=True)
    assert (got[1] == 0).all()


@each
def test_prefill(device) -> None:  # type: ignore[no-untyped-def]
    cached(device, [1] * 70, list(range(20, 90)), dtype=BF16, flat=True)
    slot = [0] * 7 + [2] * 9 + [0] * 3 + [1] * 21
    cached(device, slot, [5, 90, 3, 3, 17, 64, 63, *range(9), 1, 2, 95, *range(50, 71)], dtype=BF16)


@each
def test_rows_do_not_depend_on_each_other(device) -> None:  # type: ignore[no-untyped-def]
    slot, pos = [0] * 20 + [2] * 20, [*range(40, 60), *range(70, 90)]
    both, arrays = cached(device, slot, pos, dtype=BF16)
    own = [arrays[0][19:37], *arrays[1:]]
    part, _ = cached(device, slot[19:37], pos[19:37], dtype=BF16, arrays=own)
    np.testing.assert_array_equal(part, both[19:37])


def test_the_choice() -> None:
    """By dtype and layout, not by rows."""

    def tiles(caps: str, dtype: dt.DType, t: int) -> bool:
        ins = [source(n, (1, 2, t, 64), dtype) for n in "qkv"]
        out = f.call("attention", *ins, causal=True, scale=0.2, window=0, softcap=0.0)
        group = Group("attention", tuple(ins), (out,), None)
        return has_tiles(registry.get("attention")(group, PRESETS[caps], {}).body)

    assert tiles("cpu-amx", BF16, 70) and tiles("cpu-amx", BF16, 500)
    assert not tiles("cpu-amx", dt.float32, 70) and not tiles("cpu-avx512", BF16, 70)


def test_nan_stays_in_its_row() -> None:
    ins = [source(n, (1, 1, 40, 16), BF16) for n in "qkv"]
    arrays = [kit.fill(x) for x in ins]
    arrays[0][0, 0, 7, 3] = np.nan
    out = f.call("attention", *ins, causal=True, scale=0.2, window=0, softcap=0.0)
    (got,) = kit.play(InterpDevice("cpu-amx"), "attention", ins, [out], arrays)
    got = got[0, 0].astype(np.float32)
    assert np.isfinite(np.delete(got, 7, 0)).all() and not np.isfinite(got[7]).any()
