"""The peak memory of loading and running a model: one copy of its weights, whatever their dtype.

Each case is measured in a process of its own, twice: the first compiles the kernels, which takes
memory of its own. Bounds are far from both what is right and what two copies take.
"""

import gc
import sys
import weakref

import numpy as np
import pytest
from models.memory_kit import LLAMA, SIZE, gguf_of, peak_of
from rows import few

import weft
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
@pytest.mark.parametrize("dtype", few(["bfloat16", "float16", "float32"], "bfloat16"))
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


@pytest.mark.parametrize("device", few(["cpu", "oracle"], "cpu"))
def test_a_model_dies_with_its_last_reference(device):
    model = weft.load("box", device=device, context=64)
    gc.collect()
    gc.disable()
    try:
        list(model.generate("a b c", max_new_tokens=2, stream=True, stop="zz"))
        model.generate(["a", "b"], max_new_tokens=2)
        model.generate("a b a b a b a b a", max_new_tokens=3, draft=True)
        model.logits([1, 2, 3])
        seen = [weakref.ref(x) for x in (model, model.weights, model.runner(), model.engine(2))]
        del model
        assert [ref() for ref in seen] == [None] * 4
    finally:
        gc.enable()


TRAIN = """
import sys
from pathlib import Path
from weft.training.corpus import read_corpus
from weft.training.tokens import open_tokens, train_tokenizer, write_tokens
folder = Path(sys.argv[1])
corpus = read_corpus([sys.argv[2]], [".txt"], [], 0.05, folder)
texts = [text for _, text in corpus.train]
train_tokenizer(texts, 300, folder)
result = write_tokens(texts, folder, 300, folder / "train.npy")
"""


@linux
def test_a_long_text_takes_bounded_memory(tmp_path):
    lines = [f"line {i} of a text with {i * i % 977} words\n" for i in range(150_000)]
    (tmp_path / "long.txt").write_text("".join(lines))  # 5.4 MB; whole, twice that took 900 MiB
    peak, tokens = peak_of(TRAIN, tmp_path, tmp_path / "long.txt")
    assert tokens > 1_500_000 and peak < 350


QUANT = """
import sys, weft
model = weft.load(sys.argv[1], device="cpu", context=64, quant="int8")
result = model.generate([1, 2, 3], max_new_tokens=2).ids
"""


@linux
def test_quantising_holds_neither_the_file_nor_its_result(folder, tmp_path):
    cold, first = peak_of(QUANT, folder, WEFT_CACHE=str(tmp_path))
    warm, again = peak_of(QUANT, folder, WEFT_CACHE=str(tmp_path))
    assert first == again
    assert cold < SIZE * 17 / 32 + 3 * BESIDE and warm < SIZE * 17 / 32 + BESIDE
