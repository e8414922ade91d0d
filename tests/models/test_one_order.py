"""One order of every sum, seen from models: what a token's logits are does not depend on how many
tokens were fed with it, on what runs beside it, or on whether its keys were there already."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from present import opened
from rows import few
from stepping import scores

import weft
from weft.conform.models import _BERT, CONFIGS
from weft.core.dtypes import as_dtype
from weft.models import random_folder
from weft.models.run.runner import Runner

DTYPES = ["float32", "bfloat16", "float16"]
DEVICES = ["cpu", "vulkan"]
PLACES = [(dtype, device) for device in DEVICES for dtype in DTYPES]
SMALL = {"hidden_size": 48, "n_embd": 48, "intermediate_size": 80, "vocab_size": 97}
# more than a chunk of K, and more than a span of keys
LARGE = {**CONFIGS["llama"], "hidden_size": 320, "intermediate_size": 700, "num_hidden_layers": 1,
         "max_position_embeddings": 600}  # fmt: skip


def ids_of(n: int, vocab: int = 97) -> list[int]:
    return np.random.default_rng(5).integers(0, vocab, n).tolist()


def model_of(folder: Path, config: dict[str, Any], dtype: str, device: str, **options: Any) -> Any:
    if not opened(device).supports(as_dtype(dtype)):
        pytest.skip(f"{device} does not store {dtype}")
    path = random_folder(folder / "model", {**config, "dtype": dtype}, 3, 0.2)
    return weft.load(path, device=device, **options)


def one_by_one(runner: Runner, slot: int, ids: list[int], start: int) -> np.ndarray:
    """Logits of each of ids, fed alone."""
    rows = [runner.rows([x], [slot], [start + i])[0].copy() for i, x in enumerate(ids)]
    return np.stack(rows)


@pytest.mark.parametrize(
    "family,dtype,device",
    few(itertools.product(CONFIGS, DTYPES, DEVICES), ("llama", "float32", "vulkan"),
        ("gpt2", "float16", "cpu")),
)  # fmt: skip
def test_prefill_is_decode(tmp_path: Path, family: str, dtype: str, device: str) -> None:
    config = {**CONFIGS[family], **SMALL}
    model = model_of(tmp_path, config, dtype, device, context=48, max_batch=2)
    runner, ids = model.runner(2), ids_of(30)
    whole = runner.prefill(0, ids).copy()
    runner.prefill(1, ids[:9])
    rows = one_by_one(runner, 1, ids[9:], 9)
    np.testing.assert_array_equal(rows[-1], whole)
    # what either left in the cache is the same
    after = runner.rows([3, 3], [0, 1], [30, 30])
    np.testing.assert_array_equal(after[0], after[1])
    # and all rows at once
    np.testing.assert_array_equal(scores(runner, ids)[9:], rows)


@pytest.mark.parametrize("dtype,device", few(PLACES, ("bfloat16", "cpu")))
def test_long_sums_and_contexts(tmp_path: Path, dtype: str, device: str) -> None:
    """Several chunks of K, several spans of keys, several steps of prefill."""
    model = model_of(tmp_path, LARGE, dtype, device, context=600, max_batch=2)
    runner, ids = model.runner(2), ids_of(560)
    whole = runner.prefill(0, ids).copy()
    runner.prefill(1, ids[:530])
    rows = one_by_one(runner, 1, ids[530:], 530)
    np.testing.assert_array_equal(rows[-1], whole)


@pytest.mark.parametrize(
    "count,device", few(itertools.product((1, 2, 3, 7, 16), DEVICES), (16, "cpu"))
)
def test_proposals_are_verified_as_rows(tmp_path: Path, count: int, device: str) -> None:
    model = model_of(tmp_path, CONFIGS["llama"], "float32", device, context=64, max_batch=2)
    runner, ids = model.runner(2), ids_of(40)
    for slot in (0, 1):
        runner.prefill(slot, ids[:20])
    want = one_by_one(runner, 0, ids[20 : 20 + count], 20)
    got = scores(runner, ids[20 : 20 + count], 1, 20)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "slots,device", few(itertools.product((1, 3, 20, 70), DEVICES), (20, "cpu"))
)
def test_a_sequence_among_any_number(tmp_path: Path, slots: int, device: str) -> None:
    config = {**CONFIGS["gpt2"], **SMALL}
    model = model_of(tmp_path, config, "float32", device, context=32, max_batch=slots)
    prompts = [ids_of(30)[i % 20 : i % 20 + 1 + i % 9] for i in range(slots)]
    got = model.generate(prompts, max_new_tokens=5)
    alone = weft.load(model.folder, device=device, context=32, max_batch=1)
    assert got[:9] == [alone.generate(p, max_new_tokens=5) for p in prompts[:9]]


@pytest.mark.parametrize("dtype,device", few(PLACES, ("float16", "cpu")))
def test_a_text_alone_and_among_forty(tmp_path: Path, dtype: str, device: str) -> None:
    model = model_of(tmp_path, _BERT, dtype, device)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 120, n).tolist() for n in rng.integers(1, 60, 40)]
    among = model.embed_ids(texts)
    for i in (0, 7, 39):
        np.testing.assert_array_equal(model.embed_ids([texts[i]])[0], among[i])


@pytest.mark.parametrize("dtype", few(DTYPES, "bfloat16"))
def test_an_answer_is_kept_for_the_next_turn(tmp_path: Path, dtype: str) -> None:
    model = model_of(tmp_path, CONFIGS["llama"], dtype, "cpu", context=64)
    prompt, options = ids_of(12), {"max_new_tokens": 8, "temperature": 1.0, "seed": 3}
    first = model.generate(prompt, **options)
    turn = [*prompt, *first.ids, 5, 6]
    second = model.generate(turn, **options)
    assert second.reused == len(prompt) + len(first.ids) - 1  # the last one's keys are not there
    assert second == weft.load(model.folder, device="cpu", context=64).generate(turn, **options)
