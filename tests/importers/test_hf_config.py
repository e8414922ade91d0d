"""config.json: typed, bounded, and never a crash whatever it holds."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from weft.core.errors import FileFormatError, ModelError
from weft.importers.hf_config import Fields, read_config
from weft.models.arch.encoders import ENCODERS
from weft.models.arch.families import DECODERS
from weft.models.arch.family_fields import WRAPPER_FIELDS
from weft.training.merge import merge_folders

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_k": 2, "moe_intermediate_size": 8,
           "shared_expert_intermediate_size": 8}  # fmt: skip
BERT = {**LLAMA, "type_vocab_size": 2}
GPT2 = {"vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
SAMPLES = {"gpt2": GPT2, **{k: LLAMA | EXPERTS for k in DECODERS if k != "gpt2"}}
SAMPLES |= {k: SAMPLES[k] | {"num_key_value_heads": 4} for k in ("deepseek_v2", "deepseek_v3")}
for kind in ("mamba2", "bamba", "granitemoehybrid"):
    SAMPLES[kind] = SAMPLES[kind] | {
        "num_heads": 4,
        "head_dim": None,
        "mamba_n_heads": 4,
        "n_groups": 2,
    }
SAMPLES |= {k: {"text_config": LLAMA} for k in WRAPPER_FIELDS}
SAMPLES |= dict.fromkeys(ENCODERS, BERT)
for kind in ("deberta", "deberta-v2"):
    SAMPLES[kind] = {**BERT, "relative_attention": True, "pos_att_type": "p2c|c2p"}
SAMPLES["gemma3n_text"] = LLAMA | {"num_kv_shared_layers": 0}
SAMPLES["distilbert"] = {**BERT, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
ALL = {**DECODERS, **ENCODERS}


def write(folder: Path, content: object) -> Path:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "config.json").write_bytes(text)
    return folder


@pytest.mark.parametrize("family", ALL)
def test_minimal_configs_are_read(family: str) -> None:
    made = ALL[family](Fields(SAMPLES[family], "config.json"))
    assert made.layers >= 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": -1}, "vocab_size is -1; expected an integer from 1"),
        ({"vocab_size": 1 << 40}, "vocab_size is"),
        ({"vocab_size": 100.5}, "vocab_size is 100.5"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"hidden_size": 1 << 60}, "hidden_size is"),
        ({"hidden_size": 33}, "not a multiple"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'; expected one of silu"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "factor is 0.5"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "mscale": "a"}}, "mscale is 'a'"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 2.0]}},
            "has 2 factors",
        ),
        ({"rope_scaling": {"type": "longrope", "long_factor": [0]}}, "long_factor is 0"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": [1]}, "rope_scaling is [1]; expected an object"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"attention_bias": 1}, "attention_bias is 1; expected true or false"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ],
)
def test_bad_fields_are_named(change: dict, said: str) -> None:
    with pytest.raises(ModelError) as e:
        DECODERS["llama"](Fields({**LLAMA, **change}, "config.json"))
    assert said in str(e.value)
    assert "config.json" in str(e.value)


def test_layer_types_must_match() -> None:
    for types, said in ((["full_attention"], "1 entries"), (["x", "y"], "'x' is not supported")):
        with pytest.raises(ModelError, match=said):
            DECODERS["qwen2"](Fields({**LLAMA, "layer_types": types}, "config.json"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "expected a JSON object, found a list"),
        (b'{"a": 1, "a": 2}', "appears twice"),
        (b"[" * 100_000, "nested"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(FileFormatError) as e:
        read_config(write(tmp_path, content))
    assert said in str(e.value)


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_config(tmp_path)


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=12), x, max_size=3),
    max_leaves=6,
)
NAMES = sorted({k for c in SAMPLES.values() for k in c} | {"rope_scaling", "layer_types"})
NAMES += ["head_dim", "sliding_window", "rope_parameters", "num_key_value_heads", "rms_norm_eps"]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(ALL)), st.dictionaries(st.sampled_from(NAMES), VALUE, max_size=4))
def test_fuzz_configs_give_a_config_or_a_named_error(family: str, change: dict) -> None:
    try:
        made = ALL[family](Fields({**SAMPLES[family], **change}, "config.json"))
    except ModelError as e:
        assert "config.json" in str(e)
        return
    assert 1 <= made.layers <= 1024
    assert made.hidden <= 1 << 17


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_fuzz_bytes_never_crash(tmp_path_factory, content: bytes) -> None:
    with contextlib.suppress(FileFormatError):
        read_config(write(tmp_path_factory.getbasetemp(), content))


@pytest.mark.parametrize("inside", ["model/config.json", "adapter/adapter_config.json"])
def test_the_folder_that_training_wrote_leads_to_the_one_inside(tmp_path, inside: str) -> None:
    path = tmp_path / inside
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(ModelError, match=rf"did you mean .*{path.parent.name}\?"):
        read_config(tmp_path)


def test_a_folder_that_is_not_there_is_named_as_such(tmp_path) -> None:
    with pytest.raises(ModelError, match="nope does not exist; expected a LoRA adapter"):
        merge_folders(tmp_path, tmp_path / "nope", tmp_path / "out")
    with pytest.raises(ModelError, match="nope does not exist; expected a Hugging Face"):
        read_config(tmp_path / "nope")
