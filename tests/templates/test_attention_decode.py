"""Decoding over a KV cache on GPUs with subgroups: whole caches and parts of them that meet."""

from __future__ import annotations

import numpy as np
import pytest
from test_attention_cached import case as cached

from weft.backends.interp import InterpDevice
from weft.core import dtypes as dt
from weft.core.caps import PRESETS

GPUS = [InterpDevice(PRESETS[name]) for name in ("cuda", "hip-wave64", "hip-wave32")]
each_gpu = pytest.mark.parametrize("device", GPUS, ids=lambda d: d.caps.name)


@each_gpu
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.bfloat16], ids=repr)
def test_heads_and_depths(device, dtype) -> None:  # type: ignore[no-untyped-def]
    for h, g in ((4, 2), (7, 1), (22, 1)):
        cached(device, [0, 2, 1], [0, 95, 40], h, g, dtype=dtype, flat=True)
    for d in (80, 128, 20, 7):
        cached(device, [0, 2], [61, 5], d=d, dtype=dtype)


@each_gpu
def test_long_contexts_and_windows(device) -> None:  # type: ignore[no-untyped-def]
    for window in (0, 50):
        cached(device, [0, 1], [299, 130], length=301, window=window, dtype=dt.bfloat16)
    cached(device, [0, 1], [50, 13], softcap=0.7)


@each_gpu
def test_rows_are_bit_identical_in_any_batch(device) -> None:  # type: ignore[no-untyped-def]
    slot, pos = [0, 2, 1, 2], [33, 95, 0, 94]
    four, arrays = cached(device, slot, pos)
    for i in range(4):
        own = [arrays[0][i : i + 1], *arrays[1:]]
        one, _ = cached(device, slot[i : i + 1], pos[i : i + 1], arrays=own)
        np.testing.assert_array_equal(one[0], four[i])
