"""The table of GGUF's keys: against transformers' own, and as files of one family after another."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from weft.conform.models import CONFIGS
from weft.core.errors import ModelError
from weft.importers.gguf import Gguf
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.families import DECODERS
from weft.models.arch.family_fields import DECODER_FIELDS
from weft.models.arch.family_gguf import GGUF, KEYS, keys_of
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.gguf import tensor_name
from weft.models.weights.gguf_config import read_config

BY_KIND = {config["model_type"]: config for config in CONFIGS.values()}
BY_KIND = {kind: config for kind, config in BY_KIND.items() if kind in GGUF}
# Keys that transformers reads into other fields than its models have, or that weft only checks.
OTHERS = {
    ("gpt2", "context_length"), ("gpt2", "feed_forward_length"),  # fields of no effect there
    ("lfm2", "attention.layer_norm_rms_epsilon"),  # its model has norm_eps
    ("gpt_oss", "feed_forward_length"),  # the width of experts has a key of its own
    ("nemotron", "attention.layer_norm_rms_epsilon"),  # llama.cpp reads layer_norm_epsilon
    ("gpt_oss", "sliding_window"), ("qwen3_moe", "attention.key_length"),
    ("gemma4", "attention.key_length"), ("gemma4", "feed_forward_length"),
    ("gemma4", "attention.head_count_kv"), ("qwen3_moe", "feed_forward_length"),
    ("mamba", "context_length"), ("mamba", "ssm.inner_size"), ("nemotron_h", "ssm.inner_size"),
}  # fmt: skip


def test_transformers_means_the_same_fields() -> None:
    kinds = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}
    compared = 0
    for name, mapping in GGUF_CONFIG_MAPPING.items():
        kind = kinds.get(name, name)
        if kind not in GGUF:
            continue
        ours = {key.name: key.field.rpartition(".")[2] for key in keys_of(kind)}
        for key, field in mapping.items():
            if field and key != "rope.dimension_count" and (name, key) not in OTHERS:
                assert ours[key] == field, (name, key)
                compared += 1
    assert compared > 80


def test_rows_name_fields_that_the_families_read() -> None:
    assert set(BY_KIND) == set(GGUF)
    for kind, row in GGUF.items():
        kept = {key.name for key in keys_of(kind)}
        assert {key.name for key in row.keys} <= kept
        assert {field.partition(".")[0] for field in row.fixed} <= set(DECODER_FIELDS[kind])
        assert set(row.without) <= {key.name for key in KEYS}


CHANGED: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"norm_topk_prob": True},
    "deepseek_v3": {"norm_topk_prob": True, "routed_scaling_factor": 1.5},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "mlp"],
        "num_hidden_layers": 3,
    },
}


def said_of_space(made: DecoderConfig) -> dict[str, Any]:
    space = made.space
    assert space is not None
    rank = space.rank or space.heads
    said = {"ssm.time_step_rank": rank, "ssm.inner_size": space.inner}
    said |= {"ssm.state_size": space.state, "ssm.conv_kernel": made.conv_taps}
    if made.family == "falcon_mamba":
        said["ssm.dt_b_c_rms"] = True
    if made.family == "nemotron_h":
        widths = [made.ffn * (kind == "dense") for kind in made.feed_forwards]
        said["feed_forward_length"] = widths
    return said if space.rank else {**said, "ssm.group_count": space.groups}


def found(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def file(kind: str, **changed: Any) -> tuple[Gguf, DecoderConfig]:
    """A header in memory, which holds what config.json says, and the config of the latter."""
    config = BY_KIND[kind] | CHANGED.get(kind, {})
    made = DECODERS[kind](Fields(config, "config.json"))
    arch = GGUF[kind].arch
    said = {"rope.freq_base": made.ropes[0].theta} if made.ropes else {}
    for key in keys_of(kind):
        value = found(config, key.field) if key.field else None
        if value is not None and not isinstance(value, dict):
            said[key.name] = value
    said |= {"attention.layer_norm_rms_epsilon": made.norm_eps}
    if any(key.name == "attention.layer_norm_epsilon" for key in keys_of(kind)):
        said |= {"attention.layer_norm_epsilon": made.norm_eps}
    if kind == "gpt_neox":
        said |= {"use_parallel_residual": bool(made.parallel)}
    if kind.startswith("gemma"):  # config.json gives it in another way
        said["attention.scale"] = made.scale
    if kind == "gpt2":
        said |= {"feed_forward_length": made.ffn, "attention.layer_norm_epsilon": made.norm_eps}
    if made.ropes:
        said["attention.key_length"] = made.head_dim
        said["rope.dimension_count"] = made.ropes[0].rotary or made.head_dim
        said.pop("rope.scaling.type", None)
    if made.latent is not None:
        said["attention.key_length"] = made.latent.key
        said["attention.value_length"] = made.latent.value
        said["expert_gating_func"] = 2 if made.router == "sigmoid" else 1
    if made.delta is not None:
        said["ssm.inner_size"] = made.delta.values
        said["ssm.conv_kernel"] = made.conv_taps
        said["full_attention_interval"] = 2
    if made.space is not None:
        said |= said_of_space(made)
        fused = made.fused_gate and kind != "granitemoehybrid"
        made = replace(made, fused_gate=fused)  # the converter cuts it
    if GGUF[kind].other:
        said["attention.head_count_kv"] = [
            made.kv_heads * (made.mixer(i) == "attention") for i in range(made.layers)
        ]
    if made.conv_taps and made.delta is None and made.space is None:
        said["shortconv.l_cache"] = made.conv_taps
        said["feed_forward_length"] = made.ffn
    if made.by_layer:
        said["attention.key_length"] = said["attention.value_length"] = made.by_layer[-1].head_dim
        said["attention.key_length_swa"] = made.by_layer[0].head_dim
        said["rope.dimension_count"] = made.by_layer[-1].head_dim
        said["attention.head_count_kv"] = made.kv_heads
        said["feed_forward_length"] = made.ffn
        said["rope.freq_base"] = 1e6
    if made.turns_by:
        said["rope.dimension_sections"] = [made.turns_by.count(axis) for axis in range(3)] + [0]
    if kind == "bamba":
        said["rope.scaling.finetuned"] = True
    if made.altup is not None:
        said["activation_sparsity_scale"] = [-math.inf if x is None else x for x in made.cuts]
    if made.ropes and made.ropes[0].scaling == "yarn":
        said |= {"rope.scaling.type": "yarn", "rope.scaling.factor": made.ropes[0].factor}
    if any(made.windows):
        said["attention.sliding_window"] = max(made.windows)
        said["attention.sliding_window_pattern"] = [w > 0 for w in made.windows]
    metadata = {"general.architecture": arch}
    metadata |= {f"{arch}.{name}": value for name, value in (said | changed).items()}
    roles = (role for role in decoder_layout(made).weights if ".xielu_" not in role)
    names: Any = {tensor_name(role, kind): None for role in roles}
    if made.altup is not None:
        names["blk.0.laurel_l.weight"] = SimpleNamespace(shape=(made.altup.rank, made.hidden))
    return Gguf(Path("m.gguf"), 3, metadata, names), made


@pytest.mark.parametrize("kind", GGUF)
def test_a_file_gives_the_config_of_the_folder(kind: str) -> None:
    """What the converter changes in the weights is all that differs."""
    gguf, want = file(kind)
    got = read_config(gguf)
    changed: dict[str, Any] = {"transposed": False, "fused_by_head": False}
    if want.fused_experts:
        changed["fused_experts"] = "halves"
    if want.by_layer:  # the usual sizes are those of full layers
        changed |= {name: getattr(got, name) for name in ("head_dim", "ropes")}
    if want.delta is not None:
        fused = kind == "qwen3_next"
        changed["delta"] = replace(want.delta, tiled=GGUF[kind].tiled, fused_qkvz=fused)
    for config in (got, want):
        if not any(config.windows):
            changed["windows"] = ()
    assert replace(got, windows=changed.get("windows", got.windows)) == replace(want, **changed)


@pytest.mark.parametrize("kind", GGUF)
def test_a_wrong_value_is_named_as_the_file_names_it(kind: str) -> None:
    """Every key that stands for a field refuses what is none of its values, by its own name."""
    arch = GGUF[kind].arch
    inert = {"rope.scaling.yarn_beta_slow", "rope.scaling.yarn_beta_fast",
             "rope.scaling.original_context_length", "rope.scaling.attn_factor",
             "rope.scaling.yarn_log_multiplier"}  # fmt: skip
    for key in keys_of(kind):
        if not key.field or (key.name in inert and kind != "ministral3"):
            continue
        # read if a tensor shows them
        if kind in ("gemma4_text", "nemotron_h") and key.name.startswith(("expert", "moe_")):
            continue
        with pytest.raises(ModelError) as caught:
            read_config(file(kind, **{key.name: "odd"})[0])
        assert f"{arch}.{key.name} is" in str(caught.value), key.name


@pytest.mark.parametrize("kind", GGUF)
def test_a_missing_value_is_named_as_the_file_names_it(kind: str) -> None:
    for key in keys_of(kind):
        sizes = ("embedding_length", "block_count", "attention.head_count")
        required = key.needed or (key.field and key.name in sizes)
        if required:
            gguf = file(kind)[0]
            name = f"{GGUF[kind].arch}.{key.name}"
            metadata = {k: v for k, v in gguf.metadata.items() if k != name}
            with pytest.raises(ModelError, match=f"{name} is missing"):
                read_config(replace(gguf, metadata=metadata))


@pytest.mark.parametrize("kind", [
    k for k in GGUF
    if "num_attention_heads" in DECODER_FIELDS[k] and "kv_lora_rank" not in DECODER_FIELDS[k]
])  # fmt: skip
def test_sizes_that_do_not_fit_are_named_as_the_file_names_them(kind: str) -> None:
    sizes = {"embedding_length": 66, "attention.key_length": None, "attention.value_length": None}
    rows: list[tuple[dict[str, Any], str]] = [
        (sizes, "embedding_length is 66: not a multiple of 4 heads"),
        ({**sizes, "embedding_length": 60}, "attention.head_count is 4: 15 elements per head"),
        ({"attention.key_length": 15}, "attention.key_length is 15: 15 elements per head"),
    ]
    for changed, said in rows:
        with pytest.raises(ModelError, match=f"{GGUF[kind].arch}.{said}"):
            read_config(file(kind, **changed)[0])
