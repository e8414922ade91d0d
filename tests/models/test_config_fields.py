"""The fields of config.json: what each reader consumes, with transformers' own config classes as
the truth about fields that a file leaves out, holds as null, or spells as version 4 did."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
from model_zoo import DECODERS as ZOO, ENCODERS as ENCODER_ZOO, FAMILIES

from weft.core import notices
from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch.encoder_fields import ENCODER_FIELDS
from weft.models.arch.encoders import ENCODERS
from weft.models.arch.families import DECODERS
from weft.models.arch.family_fields import DECODER_FIELDS

CASES = {**ZOO, **FAMILIES, **ENCODER_ZOO}
READERS: dict[str, Any] = {**DECODERS, **ENCODERS}
TABLES = {**DECODER_FIELDS, **ENCODER_FIELDS}
# A file without these is refused: sizes, and what only some models of the family have.
SIZES = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "n_embd", "n_layer", "n_head", "dim", "n_layers", "n_heads", "hidden_dim",
    "num_experts", "num_local_experts", "top_k_experts", "moe_intermediate_size",
    "shared_expert_intermediate_size", "num_experts_per_tok",
}  # fmt: skip


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    notices.say.cache_clear()
    yield


def theirs(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    """config.json as transformers writes it after it read `raw`."""
    import transformers

    made = getattr(transformers, CASES[name][0])(**copy.deepcopy(raw)).to_dict()
    return dict(made) | {"model_type": raw["model_type"]}


def written(name: str) -> dict[str, Any]:
    import transformers

    kind, arguments = CASES[name]
    return dict(getattr(transformers, kind)(**arguments).to_dict())


def read(raw: dict[str, Any]) -> Any:
    return READERS[raw["model_type"]](Fields(raw, "config.json"))


@pytest.mark.parametrize("name", CASES)
def test_what_transformers_writes_is_known(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    raw = written(name)
    capsys.readouterr()
    read(raw)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", CASES)
def test_fields_left_out_have_transformers_value(name: str) -> None:
    whole = written(name)
    for field in TABLES[whole["model_type"]].keys() - SIZES:
        raw = {k: v for k, v in whole.items() if k != field}
        try:
            full = theirs(name, raw)
            want = read(full)
        except Exception:  # transformers' own value does not fit sizes as small as these
            continue
        assert read(raw) == want, field


@pytest.mark.parametrize("name", CASES)
def test_null_is_not_absent(name: str) -> None:
    whole = written(name)
    for field in TABLES[whole["model_type"]].keys() - SIZES:
        raw = whole | {field: None}
        try:
            full = theirs(name, raw)
            want = read(full)
        except Exception:  # transformers takes no null there
            continue
        assert read(raw) == want, field


class Watched(dict[str, Any]):
    """Tells which names were asked for."""

    asked: set[str]

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("kind", TABLES)
def test_readers_consume_the_fields_of_their_table(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, over what the zoo holds of the family and changes of it."""
    asked: set[str] = set()

    plain = Fields.__init__

    def watched(self: Fields, data: Any, *more: Any) -> None:
        seen = Watched(data)
        seen.asked = asked
        plain(self, seen, *more)

    monkeypatch.setattr(Fields, "__init__", watched)
    for name in CASES:
        raw = written(name)
        if raw["model_type"] == kind:
            read(raw)
            with contextlib.suppress(ModelError):
                read({k: v for k, v in raw.items() if k != "layer_types"})
    elsewhere = ("gemma4_unified_text", "phi4_multimodal", "camembert", "qwen2_vl_text",
                 "qwen2_5_vl_text", "qwen3_vl_text")  # fmt: skip
    assert asked or kind in elsewhere
    assert not asked or TABLES[kind].keys() <= asked


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "bert", "mistral3"])
def test_what_nobody_knows_is_named_once(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = {"llama": "llama2", "mistral3": "llama2"}.get(kind, kind)
    raw = written(name) | {"attention_sharpness": 2.0, "swirl": None, "temperature": 0.3}
    if kind == "mistral3":
        raw = {"model_type": kind, "text_config": raw, "swirl": 1, "image_token_index": 5}
    read(raw)
    read(raw)
    err = capsys.readouterr().err
    assert err.count("attention_sharpness") == 1
    assert "temperature" not in err and "image_token" not in err
    assert ("swirl" in err) == (kind == "mistral3")


ROPES: dict[str, dict[str, Any]] = {
    "beside parameters": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 7e3},
        "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    },
    "theta beside": {"rope_parameters": {"rope_type": "linear", "factor": 3.0}, "rope_theta": 7e3},
    "both thetas": {"rope_parameters": {"rope_theta": 5e3}, "rope_theta": 7e3},
    "type": {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 7e3},
    "both types": {"rope_scaling": {"type": "x", "rope_type": "linear", "factor": 3.0}},
    "empty": {"rope_scaling": {}, "rope_parameters": {"rope_theta": 7e3}},
    "null": {"rope_scaling": None, "rope_parameters": None, "rope_theta": 7e3},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "yarn, whose original stands beside": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
        "original_max_position_embeddings": 24,
    },
    "two originals": {
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        },
        "original_max_position_embeddings": 24,
    },
    "llama3 without original": {
        "rope_parameters": {
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "rope_theta": 9e3,
        }
    },
    "yarn without factor": {
        "rope_parameters": {
            "rope_type": "yarn", "factor": None, "original_max_position_embeddings": 32,
            "rope_theta": 9e3,
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("case", ROPES)
@pytest.mark.parametrize("name", ["llama2", "qwen3", "gemma2", "mistral", "smollm3", "granite"])
def test_ropes_in_every_spelling(name: str, case: str) -> None:
    """weft's frequencies are transformers'."""
    import numpy as np
    import transformers

    from weft.models.arch.rope import inverse_frequencies

    raw = written(name)
    for field in ("rope_parameters", "rope_scaling", "rope_theta"):
        raw.pop(field, None)
    raw |= copy.deepcopy(ROPES[case])
    rope = read(raw)
    config = getattr(transformers, CASES[name][0])(**copy.deepcopy(raw))
    model = transformers.AutoModel.from_config(config)
    theirs = model.rotary_emb
    np.testing.assert_allclose(
        inverse_frequencies(rope.ropes[0], rope.head_dim), theirs.inv_freq.numpy(), rtol=2e-6
    )
    np.testing.assert_allclose(rope.ropes[0].magnitude, theirs.attention_scaling, rtol=1e-6)


def test_a_rope_for_each_kind_of_layer_is_refused_where_there_is_one() -> None:
    nested = {"full_attention": {"rope_type": "default"}}
    with pytest.raises(ModelError, match="rope"):
        read(written("qwen3") | {"rope_parameters": nested})


@pytest.mark.parametrize("change", [
    {"per_layer_config": {"0": {"head_dim": 8}}}, {"is_causal": False},
    {"is_encoder_decoder": True}, {"pruned_heads": {"0": [1]}}, {"add_cross_attention": True},
])  # fmt: skip
@pytest.mark.parametrize("name", ["llama2", "gemma3", "bert"])
def test_fields_that_change_any_model_are_refused(name: str, change: dict[str, Any]) -> None:
    if name == "bert":
        change = {k: v for k, v in change.items() if k != "is_causal"} or {"is_decoder": True}
    with pytest.raises(ModelError, match=next(iter(change))):
        read(written(name) | change)


OTHERS = [
    ("qwen3", "Qwen3ForSequenceClassification", "classifier or reranker"),
    ("llama2", "LlamaForTokenClassification", "tagger"),
    ("llama2", "LlamaForQuestionAnswering", "answers"),
    ("llama2", "LlamaModel", "without an output layer"),
    ("llama2", "LlamaForRewardModel", "reward"),
    ("gpt2", "GPT2DoubleHeadsModel", "classifier beside"),
    ("llama2", "LlamaForCausalLMEagle3", "something else"),
    ("bert", "BertForSequenceClassification", "classifier or reranker"),
    ("xlm-roberta", "XLMRobertaForSequenceClassification", "classifier or reranker"),
    ("distilbert", "DistilBertForTokenClassification", "tagger"),
    ("bert", "BertLMHeadModel", "writer of text"),
    ("roberta", "RobertaForCausalLM", "writer of text"),
    ("bert", "BertForNextSentencePrediction", "follows"),
]


@pytest.mark.parametrize(("name", "architecture", "what"), OTHERS)
def test_architectures_decide(name: str, architecture: str, what: str) -> None:
    with pytest.raises(ModelError, match=f"{architecture} is a?.*{what}"):
        read(written(name) | {"architectures": [architecture]})


@pytest.mark.parametrize(("name", "architecture"), [
    ("llama2", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("bert", "BertModel"),
    ("bert", "BertForPreTraining"), ("roberta", "RobertaForMaskedLM"), ("llama2", None),
])  # fmt: skip
def test_architectures_of_their_kind(name: str, architecture: str | None) -> None:
    read(written(name) | {"architectures": architecture and [architecture]})


def test_a_wrapper_is_refused_by_its_class_too() -> None:
    raw = {"model_type": "mistral3", "text_config": written("mistral"),
           "architectures": ["Mistral3Model"]}  # fmt: skip
    with pytest.raises(ModelError, match="Mistral3Model"):
        read(raw)
