"""The cached_attention template: decode and prefill against float64 NumPy, bit-identical rows."""

from __future__ import annotations

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source

from weft.backends.cpu import CpuDevice
from weft.core import dtypes as dt

CPU = CpuDevice()


def truth(q, kc, vc, slot, pos, scale, window, softcap):  # type: ignore[no-untyped-def]
    out = np.zeros(q.shape)
    heads, groups = q.shape[1], kc.shape[1]
    for n in range(len(q)):
        low = max(0, pos[n] - window + 1) if window else 0
        for h in range(heads):
            k = kc[slot[n], h * groups // heads, low : pos[n] + 1].astype(np.float64)
            v = vc[slot[n], h * groups // heads, low : pos[n] + 1].astype(np.float64)
            s = k @ q[n, h].astype(np.float64) * scale
            s = np.tanh(s / softcap) * softcap if softcap else s
            p = np.exp(s - s.max())
            out[n, h] = p @ v / p.sum()
    return out


def case(  # type: ignore[no-untyped-def]
    device, slot, pos, h=4, g=2, length=96, d=32, slots=3, dtype=dt.float32, window=0,
    softcap=0.0, arrays=None, flat=False,
):  # fmt: skip
    n = len(slot)
    params = {"scale": d**-0.5, "window": window, "softcap": softcap}
    ins = [
        source("q", (n, h, d), dtype), source("kc", (slots, g, length, d), dtype),
        source("vc", (slots, g, length, d), dtype),
        source("slot", (n,), dt.int32), source("pos", (n,), dt.int32),
    ]  # fmt: skip
    if arrays is None:
        arrays = [kit.fill(x) for x in ins[:3]]
    places = [np.asarray(slot, np.int32), np.asarray(pos, np.int32)]
    out = f.call("cached_attention", *ins, **params)
    if flat:
        out = f.reshape(out, (n, h * d))
    (got,) = kit.play(device, "cached_attention", ins, [out], [*arrays, *places])
    got = got.reshape(n, h, d)
    kit.close(got, truth(*arrays, slot, pos, **params), dtype, 4)
    return got, arrays


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.bfloat16])
@pytest.mark.parametrize("h,g", [(4, 4), (4, 2), (7, 1), (8, 1)])
def test_decode(h, g, dtype) -> None:  # type: ignore[no-untyped-def]
    case(CPU, [0, 2, 1], [0, 95, 40], h, g, dtype=dtype, flat=True)


@pytest.mark.parametrize("d", [64, 80, 128, 20])
def test_depths(d) -> None:  # type: ignore[no-untyped-def]
    case(CPU, [0, 2], [61, 5], d=d)
    case(CPU, [1] * 20, list(range(30, 50)), d=d)


@pytest.mark.parametrize("length", [300, 301])
@pytest.mark.parametrize("window", [0, 1, 50, 200])
def test_long_contexts_and_windows(window, length) -> None:  # type: ignore[no-untyped-def]
    case(CPU, [0, 1], [299, 130], length=length, window=window)
    case(CPU, [1] * 40, list(range(250, 290)), length=length, window=window)


def test_softcap() -> None:
    case(CPU, [0, 1], [50, 13], softcap=0.7)
    case(CPU, [0] * 30, list(range(30)), softcap=0.7)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.bfloat16])
def test_prefill(dtype) -> None:  # type: ignore[no-untyped-def]
    case(CPU, [1] * 70, list(range(20, 90)), dtype=dtype, flat=True)


def test_prefill_of_any_rows() -> None:
    """Several slots in one block, positions out of order, slots that come back."""
    slot = [0] * 7 + [2] * 9 + [0] * 3 + [1] * 21
    pos = [5, 90, 3, 3, 17, 64, 63, *range(9), 1, 2, 95, *range(50, 71)]
    case(CPU, slot, pos)


def test_rows_are_bit_identical_in_any_batch() -> None:
    slot, pos = [0, 2, 1, 2], [33, 95, 0, 94]
    four, arrays = case(CPU, slot, pos)
    for i in range(4):
        own = [arrays[0][i : i + 1], *arrays[1:]]
        one, _ = case(CPU, slot[i : i + 1], pos[i : i + 1], arrays=own)
        np.testing.assert_array_equal(one[0], four[i])


def test_runtime_rows() -> None:
    ins = [
        source("q", (40, 2, 16)), source("kc", (1, 2, 64, 16)), source("vc", (1, 2, 64, 16)),
        source("slot", (40,), dt.int32), source("pos", (40,), dt.int32),
    ]  # fmt: skip
    params = {"scale": 0.3, "window": 0, "softcap": 0.0}
    arrays = [kit.fill(x) for x in ins[:3]]
    arrays += [np.zeros(40, np.int32), np.arange(10, 50, dtype=np.int32)]
    arrays[4][25:] = 1 << 30  # rows beyond the bound hold anything
    out = f.call("cached_attention", *ins, **params)
    (got,) = kit.play(CPU, "cached_attention", ins, [out], arrays, [25], rows="n", slots={"n": 0})
    want = truth(*(a[:25] if i in (0, 3, 4) else a for i, a in enumerate(arrays)), **params)
    kit.close(got[:25], want, k=4)
