"""Checkpoints of more than 100 million parameters against transformers (slow: -m slow)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.core.dtypes import float32
from weft.core.tolerance import compare
from weft.models.arch.config import TokenIds

pytestmark = pytest.mark.slow

VOCAB = 32000
BASE = {"vocab_size": VOCAB, "max_position_embeddings": 2048}
# Widths and heads of published models, with fewer layers and words; windows that 164 tokens pass.
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {}),
    "llama": (
        "LlamaConfig",
        {
            **BASE,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "intermediate_size": 2048,
        },
    ),
    "mistral": (
        "MistralConfig",
        {
            **BASE,
            "hidden_size": 1024,
            "num_hidden_layers": 6,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "intermediate_size": 3584,
            "sliding_window": 64,
        },
    ),
    "qwen2": (
        "Qwen2Config",
        {
            **BASE,
            "hidden_size": 896,
            "num_hidden_layers": 6,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": (
        "Qwen3Config",
        {
            **BASE,
            "hidden_size": 1024,
            "num_hidden_layers": 5,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": (
        "Gemma2Config",
        {
            **BASE,
            "hidden_size": 768,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "intermediate_size": 3072,
            "sliding_window": 64,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **BASE,
            "hidden_size": 640,
            "num_hidden_layers": 15,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 2048,
            "sliding_window": 64,
        },
    ),
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {}),
    "roberta": ("RobertaConfig", {"max_position_embeddings": 514, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRobertaConfig", {"max_position_embeddings": 514, "pad_token_id": 1}),
    "distilbert": ("DistilBertConfig", {"vocab_size": 80000}),
}
IDS = np.random.default_rng(0).integers(3, 30000, 100)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()  # pytest keeps folders of several runs


def written(name: str, folder: Path) -> Any:
    """The transformers model (over 100 million parameters), saved into `folder`."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1234)
    kind, arguments = (DECODERS | ENCODERS)[name]
    config = getattr(transformers, kind)(**arguments)
    auto = transformers.AutoModelForCausalLM if name in DECODERS else transformers.AutoModel
    model = auto.from_config(config, attn_implementation="eager").eval()
    assert sum(p.numel() for p in model.parameters()) > 100_000_000
    small = "gemma" in name  # it multiplies its embedding by sqrt(hidden), and ties it
    with torch.no_grad():  # a fresh model repeats one token; this one does not
        for role, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.25 if small and "embed" in role else 2.0)
    model.save_pretrained(folder)
    return model


def logits_of(reference: Any, ids: np.ndarray) -> np.ndarray:
    """float32 [T, vocab] of transformers."""
    import torch

    with torch.no_grad():
        return reference(torch.tensor(ids)[None]).logits[0].numpy()


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    outcome = compare(got, want, "model", float32)
    assert outcome.ok, outcome.message


@pytest.mark.parametrize("name", DECODERS)
def test_logits_and_64_greedy_tokens(folder: Path, name: str) -> None:
    import torch

    reference = written(name, folder)
    greedy = reference.generate(
        torch.tensor(IDS)[None],
        max_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = weft.load(folder, device="cpu", context=256)
    model.tokens = TokenIds()  # no end of text
    assert_close(model.logits(IDS), logits_of(reference, IDS))
    got = model.generate(IDS, max_new_tokens=64)
    assert list(got.ids) == greedy[0, len(IDS) :].tolist()
    assert len(set(got.ids)) > 8


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.skipif(
    not any(line.available for line in registry.probe("vulkan")), reason="no Vulkan device"
)
def test_forced_decode_on_vulkan(folder: Path, name: str) -> None:
    """Prefill of most tokens, then the true ones one by one: the same top token at each step."""
    want = logits_of(written(name, folder), IDS)
    runner = weft.load(folder, device="vulkan", context=128).runner()
    first = len(IDS) - 12
    got = [runner.prefill(0, IDS[:first].tolist()).copy()]
    for t in range(first, len(IDS)):
        got.append(runner.rows([int(IDS[t])], [0], [t])[0].copy())
    assert_close(np.stack(got), want[first - 1 :])
    assert [g.argmax() for g in got] == want[first - 1 :].argmax(1).tolist()


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(folder: Path, name: str) -> None:
    import torch

    reference = written(name, folder)
    rows = [IDS[:n].tolist() for n in (60, 7, 33)]
    got = weft.load(folder, device="cpu").embed_ids(rows)
    with torch.no_grad():
        want = [reference(torch.tensor([r])).last_hidden_state[0].mean(0).numpy() for r in rows]
    assert_close(got, np.stack(want))
