"""Families in GGUF files: the logits of their safetensors, and so transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from family_zoo import MORE, STATE_SPACES, UNSAID
from gguf_zoo import write_gguf
from model_zoo import FAMILIES, reference_logits, write_model

import weft
from weft.conform.models import CONFIGS
from weft.core.errors import UsageError
from weft.importers.hf_config import Fields
from weft.models.arch.families import DECODERS
from weft.quantize.gguf import check_said

IDS = np.random.default_rng(0).integers(0, 200, 30).tolist()
EACH_FOURTH = [*["linear_attention"] * 3, "full_attention"]
# What llama.cpp fixes for the family: each fourth layer without positions; experts everywhere.
FIXED = {
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
    "qwen3_moe": {"mlp_only_layers": []},
    "gpt_oss": {"swiglu_limit": 7.0},
    "lfm2": {"conv_bias": False},
    **{key: {"layer_types": EACH_FOURTH} for key in ("qwen3_5", "qwen3_5_moe")},
    "qwen3_next": {"layer_types": EACH_FOURTH, "mlp_only_layers": []},
    "olmoe": {"norm_topk_prob": False, "clip_qkv": None},
    "qwen2_moe": {"mlp_only_layers": [], "use_sliding_window": False},
    **{key: {"use_bias": False} for key in ("mamba", "mamba2")},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
    "bamba": {"mamba_proj_bias": False},
    "gemma3n": {"vocab_size_per_layer_input": 211},
    "llama4": {"floor_scale": 8192, "attn_scale": 0.1},
    "llama4_many": {
        "floor_scale": 8192,
        "num_hidden_layers": 4,
        "moe_layers": None,
        "no_rope_layers": None,
        "num_local_experts": 128,
        "use_qk_norm": False,
    },
    "deepseek_v3": {
        "attention_bias": False,
        "rope_parameters": {**MORE["deepseek_v3"][1]["rope_parameters"], "mscale": 0.8},
    },
}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in UNSAID])
def test_family_in_gguf(tmp_path: Path, name: str) -> None:
    """The file gives the logits of the safetensors, which are transformers', bit for bit but where
    it holds a rounded number for one that config.json spells."""
    reference = write_model(name, tmp_path, changed=FIXED.get(name))
    theirs = weft.load(tmp_path, device="oracle")
    ours = weft.load(write_gguf(tmp_path, tmp_path / "m.gguf"), device="oracle")
    got, want = ours.logits(IDS), theirs.logits(IDS)
    np.testing.assert_allclose(want, reference_logits(reference, IDS), atol=1e-4, rtol=1e-4)
    rounded = ("phi3", "ministral3", "qwen3_5", "qwen3_5_moe", "qwen3_next", "gemma3n")
    rounded = (*rounded, *STATE_SPACES)
    # Gate and up are one matrix or two, and NumPy sums by a matrix's width.
    apart = ("gpt_oss", "granitemoe", "llama4", "llama4_many")
    if name in (*rounded, *apart):
        np.testing.assert_allclose(got, want, atol=2e-5, rtol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


def test_nemotron_without_experts_in_gguf(tmp_path: Path) -> None:
    """Its architecture has another name."""
    kinds = {"layers_block_type": ["linear_attention", "full_attention", "mlp"]}
    write_model("nemotron_h", tmp_path, changed=kinds)
    want = weft.load(tmp_path, device="oracle").logits(IDS)
    ours = weft.load(write_gguf(tmp_path, tmp_path / "m.gguf"), device="oracle")
    np.testing.assert_allclose(ours.logits(IDS), want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_keys_and_values_joined_in_gguf(tmp_path: Path, name: str) -> None:
    """Older files have one matrix for them, and the sizes of whole heads."""
    write_model(name, tmp_path, changed=FIXED.get(name))
    want = weft.load(tmp_path, device="oracle").logits(IDS)
    config = json.loads((tmp_path / "config.json").read_text()) | {"joined": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = weft.load(write_gguf(tmp_path, tmp_path / "m.gguf"), device="oracle")
    np.testing.assert_array_equal(ours.logits(IDS), want)


def test_what_is_listed_as_written_into_gguf_is() -> None:
    written, listed = set(), set()
    for config in CONFIGS.values():
        normed = {"norm_topk_prob": True} if config["model_type"] == "qwen3_moe" else {}
        made = DECODERS[config["model_type"]](Fields(config | normed, "config"))
        try:
            check_said(made)
            written.add(made.family)
        except UsageError as error:
            listed = set(str(error).partition("; it writes ")[2].split(", "))
    assert written == listed
