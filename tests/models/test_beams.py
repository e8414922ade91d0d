"""Beam search against transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from model_zoo import write_model
from rows import few

from weft.models import load

PROMPTS = [[5, 6, 7, 8], [17], [200, 3, 200, 3, 9, 40]]
SETTINGS = [
    {},
    {"length_penalty": 0.0},
    {"length_penalty": -1.5},
    {"length_penalty": 2.0, "early_stopping": True},
    {"length_penalty": 0.7, "early_stopping": "never", "repetition_penalty": 1.3},
]


@pytest.fixture(scope="module", params=["llama3", "gpt2", "qwen3_next"])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    theirs = write_model(request.param, folder)
    device = "oracle" if request.param == "qwen3_next" else "cpu"
    return load(folder, device=device, context=64, max_batch=3), theirs


def expected(model, prompt, count, beams, best, eos, **settings):
    import torch

    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count, num_beams=beams, num_return_sequences=best, do_sample=False,
            eos_token_id=eos, pad_token_id=0, return_dict_in_generate=True, output_scores=True,
            **settings,
        )  # fmt: skip
    texts = []
    for row in out.sequences[:, len(prompt) :].tolist():
        ends = [row.index(i) for i in eos or () if i in row]
        texts.append(tuple(row[: min(ends, default=count)]))
    return texts, out.sequences_scores.numpy()


QUICK = [(name, s) for name in ("llama3", "gpt2") for s in SETTINGS]
WITH_STATE = [("qwen3_next", s) for s in SETTINGS]


@pytest.mark.parametrize(
    ("pair", "settings"),
    few(QUICK + WITH_STATE, *QUICK[:5], QUICK[-1]),
    indirect=["pair"],
    ids=str,
)
def test_beams_are_transformers(pair, settings) -> None:
    """Without end tokens, and with those that greedy texts would pass."""
    ours, theirs = pair
    for prompt in PROMPTS:
        often = [*dict.fromkeys(ours.generate(prompt, 9).ids)]
        for eos in ([], often[2:3], often[1:4]):
            ours.tokens = replace(ours.tokens, eos=tuple(eos))
            found = ours.generate(prompt, 10, num_beams=4, n=3, **settings)
            texts, scores = expected(theirs, prompt, 10, 4, 3, eos or None, **settings)
            assert [one.ids for one in found] == texts
            assert np.allclose([one.score for one in found], scores, rtol=1e-4, atol=1e-5)
            ours.tokens = replace(ours.tokens, eos=())


def test_one_answer_and_several_prompts(pair) -> None:
    ours, _ = pair
    best = ours.generate(PROMPTS, 6, num_beams=3)
    assert best == [ours.generate(prompt, 6, num_beams=3) for prompt in PROMPTS]
    several = ours.generate(PROMPTS, 6, num_beams=3, n=2)
    assert [one[0] for one in several] == best
    assert all(one[0].score >= one[1].score for one in several)
    none = ours.generate(PROMPTS[0], 0, num_beams=3)
    assert (none.ids, none.finish_reason) == ((), "length")
    full = ours.generate(list(range(62)), 50, num_beams=2)  # the context has 64 positions
    assert (len(full.ids), full.finish_reason) == (3, "length")
