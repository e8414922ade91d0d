"""Checkpoints of more than 100 million parameters against transformers (slow: -m slow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.models.config import TokenIds

pytestmark = pytest.mark.slow

LLAMA = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", LLAMA),
    "gpt2": ("GPT2Config", {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_64_greedy_tokens(tmp_path: Path, name: str) -> None:
    import torch
    import transformers

    torch.manual_seed(1234)
    kind, arguments = MODELS[name]
    config = getattr(transformers, kind)(**arguments)
    reference = transformers.AutoModelForCausalLM.from_config(config).eval()
    assert sum(p.numel() for p in reference.parameters()) > 100_000_000
    with torch.no_grad():  # a fresh model repeats one token; this one does not
        for parameter in reference.parameters():
            if parameter.ndim == 2:
                parameter.mul_(2.0)
    reference.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(0, 32000, 100)
    tokens = torch.tensor(ids)[None]
    with torch.no_grad():
        want = reference(tokens).logits[0].numpy()
        greedy = reference.generate(
            tokens, max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    model = weft.load(tmp_path, device="cpu", context=256)
    model.tokens = TokenIds()  # no end of text
    np.testing.assert_allclose(model.logits(ids), want, atol=5e-4, rtol=1e-3)
    got = model.generate(ids, max_new_tokens=64)
    assert list(got.ids) == greedy[0, len(ids) :].tolist()
