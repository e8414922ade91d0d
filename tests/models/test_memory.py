"""The peak memory of loading and running a model: one copy of its weights, whatever their dtype.

Each case is measured in a process of its own, twice: the first compiles the kernels, which takes
memory of its own. Bounds are far from both what is right and what two copies take.
"""

import sys

import numpy as np
import pytest

import weft
from models.memory_kit import LLAMA, SIZE, gguf_of, peak_of
from weft.models.arch.weights import Weights

LOAD = """
import json, sys, weft
model = weft.load(sys.argv[1], device="cpu", context=64, **json.loads(sys.argv[2]))
result = model.generate([1, 2, 3], max_new_tokens=2).ids
"""
BESIDE = 110  # MiB of Python, weft, kernels, the cache and a piece of a weight, at most
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return weft.models.random_folder(tmp_path_factory.mktemp("llama"), LLAMA, 1)


def second_run(code, *arguments, **env):
    peak_of(code, *arguments, **env)
    return peak_of(code, *arguments, **env)


@linux
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_dtype_takes_one_copy(folder, dtype):
    peak, _ = second_run(LOAD, folder, f'{{"dtype": "{dtype}"}}')
    assert peak < (2 * SIZE if dtype == "float32" else SIZE) + BESIDE


@linux
def test_blocks_take_one_copy(folder, tmp_path):
    path = gguf_of(folder, tmp_path / "m.gguf", "Q8_0")
    for options, size in (("{}", SIZE * 17 / 32), ('{"dtype": "float16"}', SIZE)):
        peak, _ = second_run(LOAD, path, options)
        assert peak < size + BESIDE, options


def test_an_array_that_was_looked_up_stays_whole(folder):
    model = weft.load(folder, device="cpu", dtype="float16", context=64)
    before = model.weights["0.up.w"]
    copy = before.copy()
    model.generate([1, 2, 3], max_new_tokens=2)
    assert np.array_equal(before, copy)
    assert np.array_equal(model.weights["0.up.w"], copy)
    assert np.array_equal(model.weights["0.down.w"], _cast(folder, "0.down.w"))


def test_arrays_of_others_stay_whole():
    mine = np.full((1 << 10, 1 << 10), 3, np.float32)
    weights = Weights.of({"embed": mine})
    assert weights.take("embed") is mine
    assert weights.take("embed") is mine


def _cast(folder, role):
    return weft.load(folder, device="oracle", dtype="float16").weights[role]
