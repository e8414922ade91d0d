"""Files of further families in the spellings that people publish: experts stacked or one by one,
fields of version 4, wrappers that leave fields out, layers that guess further tokens; and what is
refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_zoo import MORE
from model_zoo import reference_logits, write_model
from rows import by_turns, few

import weft
from weft.core.errors import ModelError
from weft.importers.safetensors import open_checkpoint, save_file

IDS = np.random.default_rng(0).integers(0, 200, 20).tolist()


def logits(folder: Path, **options: Any) -> np.ndarray:
    found: np.ndarray = weft.load(folder, device="oracle", **options).logits(IDS)
    return found


def change(folder: Path, **fields: Any) -> None:
    """Edits config.json; a field given as None is taken out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def test_stacked_experts_of_mixtral(tmp_path: Path) -> None:
    """As transformers 5 holds them in memory, under its own names."""
    write_model("mixtral", tmp_path)
    want = logits(tmp_path)
    tensors = dict(open_checkpoint(tmp_path).items())
    for i in range(2):
        at = f"model.layers.{i}.block_sparse_moe."
        gate, down, up = (
            np.stack([tensors.pop(f"{at}experts.{e}.w{k}.weight") for e in range(5)])
            for k in (1, 2, 3)
        )
        own = f"model.layers.{i}.mlp."
        tensors[f"{own}gate.weight"] = tensors.pop(f"{at}gate.weight")
        tensors[f"{own}experts.gate_up_proj"] = np.concatenate([gate, up], 1)
        tensors[f"{own}experts.down_proj"] = down
    save_file(tmp_path / "model.safetensors", tensors)
    np.testing.assert_array_equal(logits(tmp_path), want)


def test_an_output_layer_by_either_name(tmp_path: Path) -> None:
    write_model("gpt_neox", tmp_path)
    want = logits(tmp_path)
    tensors = dict(open_checkpoint(tmp_path).items())
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    tensors["gpt_neox.layers.0.attention.bias"] = np.ones((1, 1, 4, 4), np.float32)
    save_file(tmp_path / "model.safetensors", tensors)
    np.testing.assert_array_equal(logits(tmp_path), want)


OLD = {  # name -> fields of version 4 in place of rope_parameters
    "gpt_neox": {"rotary_pct": 0.4, "rotary_emb_base": 5e3},
    "phi": {"partial_rotary_factor": 0.4, "rope_theta": 5e3, "rope_scaling": None},
    "stablelm": {"partial_rotary_factor": 0.4, "rope_theta": 5e3},
    "cohere2": {"rope_theta": 1e4, "layer_types": None, "sliding_window_pattern": 4},
    "exaone4": {"rope_theta": 1e4},
    "glm4": {"partial_rotary_factor": 0.5},
    "hunyuan": {
        "rope_theta": 5e3,
        "rope_scaling": {"type": "dynamic", "alpha": 20.0, "factor": 1.0, "mscale": 1.0},
    },
}


@pytest.mark.parametrize("name", OLD)
def test_fields_of_version_4(tmp_path: Path, name: str, capsys: Any) -> None:
    write_model(name, tmp_path)
    want = logits(tmp_path)
    change(tmp_path, rope_parameters=None, transformers_version=None, **OLD[name])
    capsys.readouterr()
    np.testing.assert_array_equal(logits(tmp_path), want)
    assert "know" not in capsys.readouterr().err


def test_layers_that_guess_further_tokens(tmp_path: Path) -> None:
    """GLM-4.5's last layer, which its config counts apart."""
    write_model("glm4_moe", tmp_path)
    want = logits(tmp_path)
    tensors = dict(open_checkpoint(tmp_path).items())
    more = {k.replace("layers.1.", "layers.2."): v for k, v in tensors.items() if "layers.1." in k}
    more["model.layers.2.eh_proj.weight"] = np.ones((36, 72), np.float32)
    save_file(tmp_path / "model.safetensors", tensors | more)
    np.testing.assert_array_equal(logits(tmp_path), want)
    change(tmp_path, num_nextn_predict_layers=0)
    with pytest.raises(ModelError, match=r"'model\.layers\.2\..*' belongs to a layer"):
        logits(tmp_path)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_gemma_3_within_a_model_that_sees(tmp_path: Path, prefix: str) -> None:
    """Fields that are transformers' own are left out there, and names have a prefix."""
    sizes = {"num_attention_heads": 8, "head_dim": 16, "num_key_value_heads": 4}
    reference = write_model("gemma3", tmp_path, changed=sizes | {"query_pre_attn_scalar": 256})
    want = reference_logits(reference, IDS)
    config = json.loads((tmp_path / "config.json").read_text())
    for field in ("num_attention_heads", "query_pre_attn_scalar", "tie_word_embeddings"):
        del config[field]
    outer = {
        "model_type": "gemma3",
        "text_config": config,
        "vision_config": {"model_type": "siglip_vision_model"},
        "architectures": ["Gemma3ForConditionalGeneration"],
        "mm_tokens_per_image": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = {k.replace("model.", prefix): v for k, v in open_checkpoint(tmp_path).items()}
    tensors["vision_tower.vision_model.encoder.layers.0.layer_norm1.bias"] = np.ones(2, np.float32)
    tensors["multi_modal_projector.mm_input_projection_weight"] = np.ones((2, 2), np.float32)
    save_file(tmp_path / "model.safetensors", tensors)
    np.testing.assert_allclose(logits(tmp_path), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("glm4_moe", {"n_group": 2}, "n_group is 2 and topk_group 1: 5 experts do not divide"),
        ("glm4_moe", {"n_group": 5, "topk_group": 3}, "n_group is 5 and topk_group 3: 5 experts"),
        ("deepseek_v3", {"num_key_value_heads": 3}, "fewer heads of keys than of queries"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'; expected one of"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias is 'True': biases"),
        ("ernie4_5_moe", {"moe_norm_min": 0.1}, "moe_norm_min is '0.1'"),
        ("gemma", {"use_bidirectional_attention": True}, "bidirectional attention"),
        ("apertus", {"hidden_act": "silu"}, "hidden_act is 'silu': another activation"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ("stablelm", {"hidden_act": "xielu"}, "hidden_act is 'xielu'; expected one of"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, fields: dict[str, Any], said: str) -> None:
    write_model(name, tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(ModelError, match=said):
        logits(tmp_path)


WIDE = {"hidden_size": 192, "intermediate_size": 160, "moe_intermediate_size": 64, "head_dim": 32,
        "shared_expert_intermediate_size": 32, "num_heads": 12,
        "shared_intermediate_size": 64}  # fmt: skip


# What each has that another packs too: experts (mixtral, llama4), states (bamba, mamba), biases and
# parallel parts (stablelm_parallel, nemotron, cohere2), scaled embeddings (gemma).
MORE_OF_THE_SAME = (
    "deepseek_v2", "qwen2_moe", "gemma3n", "llama4_many", "nemotron_h", "falcon_h1", "mamba2",
    "falcon_mamba", "granitemoehybrid", "jamba", "gpt_neox", "olmoe", "glm4_moe", "ernie4_5_moe",
    "granitehybrid_dense", "granitemoe", "gpt_neox_serial", "falcon_h1_normed", "phi_normed",
    "cohere", "seed_oss", "exaone4", "exaone4_full", "hunyuan", "phi", "olmo", "apertus",
    "ernie4_5", "stablelm", "glm4", "starcoder2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "quant"),
    by_turns(few(MORE, *(name for name in MORE if name not in MORE_OF_THE_SAME)), ["int8", "int4"]),
)
def test_packed_weights(tmp_path: Path, name: str, quant: str) -> None:
    """quant= packs matrices and experts; the device's logits are the oracle's."""
    wide = {k: v for k, v in WIDE.items() if k in MORE[name][1]}
    write_model(name, tmp_path, changed=wide)
    plain = logits(tmp_path)
    options = {"quant": quant, "context": 32, "act_dtype": "float32", "cache": "f32"}
    model = weft.load(tmp_path, device="cpu", **options)
    forms = dict(model.config.forms)
    alone = {*model.config.mixers} in ({"mamba"}, {"mamba2"})  # without a feed-forward
    for part in (".ssm_in", ".ssm_out") if alone else (".down", ".o.w"):
        assert any(part in role for role in forms)
    want = logits(tmp_path, **options)
    np.testing.assert_allclose(model.logits(IDS), want, atol=2e-4, rtol=2e-4)
    loss = float(np.abs(want - plain).mean() / np.abs(plain).mean())
    # Random routers choose other experts after small changes.
    assert loss < (0.15 if quant == "int8" else 0.9)
