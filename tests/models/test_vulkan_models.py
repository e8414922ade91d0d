"""Models on a Vulkan device (a software one will do), against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_zoo import VOCAB, reference_logits, write_model
from sentences import SENTENCES, minilm_folder, reference_embeddings

import weft
from weft.backends import registry

if not any(line.available for line in registry.probe("vulkan")):
    pytest.skip("no Vulkan device (install mesa-vulkan-drivers)", allow_module_level=True)

IDS = np.random.default_rng(0).integers(0, VOCAB, 24)


@pytest.mark.parametrize("name", ["gpt2", "llama3", "gemma3"])
def test_forced_decode_agrees_on_every_token(tmp_path: Path, name: str) -> None:
    """Prefill of a few tokens, then the true tokens one by one: same top token at each step."""
    reference = write_model(name, tmp_path)
    want = reference_logits(reference, IDS)
    runner = weft.load(tmp_path, device="vulkan", context=32).runner()
    got = [runner.prefill(0, IDS[:8].tolist()).copy()]
    got += [runner.decode([int(IDS[t])], [0], [t])[0].copy() for t in range(8, len(IDS))]
    np.testing.assert_allclose(got, want[7:], atol=1e-4, rtol=1e-4)
    assert [g.argmax() for g in got] == want[7:].argmax(1).tolist()


def test_minilm_agrees_with_transformers_and_ranks_alike() -> None:
    folder = minilm_folder()
    got = weft.load(folder, device="vulkan").embed(SENTENCES)
    want = reference_embeddings(folder, SENTENCES)
    np.testing.assert_allclose(got, want, atol=1e-4)
    for query in range(50):
        np.testing.assert_array_equal(
            np.argsort(-(got @ got[query])), np.argsort(-(want @ want[query]))
        )
