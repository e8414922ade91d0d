"""Every tensor of a checkpoint is read, known to change nothing, or refused by its name; what it
says of the output layer, transformers reads the same way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import ENCODERS, reference_logits, write_model

import weft
from weft.core.errors import FileFormatError, ModelError
from weft.importers.safetensors import open_checkpoint, save_file
from weft.training.model import folder_weights

IDS = [3, 17, 205, 4, 99]
Tensors = dict[str, np.ndarray]


def tensors_of(folder: Path) -> Tensors:
    return {name: np.array(value) for name, value in open_checkpoint(folder).items()}


def changed(folder: Path, change: Callable[[Tensors], Any], **config: Any) -> None:
    tensors = tensors_of(folder)
    change(tensors)
    save_file(folder / "model.safetensors", tensors, {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def theirs(folder: Path) -> np.ndarray:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    auto = transformers.AutoModelForCausalLM
    if "text_config" in json.loads((folder / "config.json").read_text()):
        auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(folder, attn_implementation="eager").eval()
    return np.asarray(reference_logits(model, IDS))


def ours(folder: Path) -> np.ndarray:
    return weft.load(folder, device="oracle").logits(IDS)


def close(folder: Path) -> None:
    np.testing.assert_allclose(ours(folder), theirs(folder), atol=2e-5, rtol=2e-5)


NAMES = {  # of the embedding
    "llama3": "model.embed_tokens.weight", "qwen2": "model.embed_tokens.weight",
    "gemma2": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight",
    "lfm2": "model.embed_tokens.weight",
}  # fmt: skip


def own(embed: str, tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors[embed][::-1].copy()


def twin(embed: str, tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors[embed].copy()


def instead(embed: str, tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors.pop(embed)


def half(embed: str, tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors[embed].astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("change", [own, twin, instead, half])
@pytest.mark.parametrize("name", NAMES)
def test_the_head_of_a_tied_model(name: str, change: Any, tmp_path: Path) -> None:
    write_model(name, tmp_path)
    changed(tmp_path, lambda tensors: change(NAMES[name], tensors), tie_word_embeddings=True)
    close(tmp_path)
    if name == "llama3" and change in (own, instead):  # training reads the same
        config, weights = folder_weights(tmp_path)
        assert config.tied == ("head" not in weights) == (change is instead)


@pytest.mark.parametrize("outer", [True, False, None])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("head", [True, False])
def test_a_wrapper_says_whether_the_head_is_tied(
    outer: bool | None, inner: bool, head: bool, tmp_path: Path
) -> None:
    import torch
    import transformers

    small: dict[str, Any] = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    vision = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48,
              "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
              "patch_size": 14}  # fmt: skip
    config = transformers.Mistral3Config(
        text_config={"model_type": "mistral", **small}, vision_config=vision,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Mistral3ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    raw["text_config"]["tie_word_embeddings"] = inner
    raw.pop("tie_word_embeddings", None)
    raw |= {} if outer is None else {"tie_word_embeddings": outer}
    path.write_text(json.dumps(raw))
    if not head:
        changed(tmp_path, lambda t: [t.pop(n) for n in list(t) if n.endswith("lm_head.weight")])
    if not head and outer is False:  # transformers draws one
        with pytest.raises(ModelError, match="lm_head"):
            ours(tmp_path)
    else:
        close(tmp_path)


def sharded(folder: Path, extra: dict[str, str], inside: Tensors) -> None:
    """The folder's weights in two shards, with names in the index and tensors in the second that
    the other does not know of."""
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    index = {name: file for file, part in parts.items() for name in part} | extra
    for file, part in parts.items():
        more = inside if file == "b.safetensors" else {}
        save_file(folder / file, {n: tensors[n] for n in part} | more, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )


def test_an_index_that_names_a_tied_head(tmp_path: Path) -> None:
    write_model("qwen2", tmp_path)
    want = ours(tmp_path)
    sharded(tmp_path, {"lm_head.weight": "a.safetensors"}, {})
    np.testing.assert_array_equal(ours(tmp_path), want)
    close(tmp_path)


def test_an_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    write_model("llama2", tmp_path)
    changed(tmp_path, lambda t: t.pop("lm_head.weight"))
    sharded(tmp_path, {"lm_head.weight": "a.safetensors"}, {})
    with pytest.raises(ModelError, match="lm_head"):
        ours(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"]["model.norm.bias"] = "a.safetensors"
    index.write_text(json.dumps(raw))
    with pytest.raises(FileFormatError, match=r"model\.norm\.bias"):
        ours(tmp_path)


def test_tensors_that_no_index_names(tmp_path: Path) -> None:
    write_model("qwen2", tmp_path)
    embed = tensors_of(tmp_path)["model.embed_tokens.weight"]
    sharded(tmp_path, {}, {"lm_head.weight": embed[::-1].copy()})
    close(tmp_path)


ZERO, ONE = np.zeros(32, np.float32), np.ones(32, np.float32)
INERT = [
    ("llama2", {"model.layers.1.self_attn.rotary_emb.inv_freq": ONE}),
    ("llama2", {"model.rotary_emb.inv_freq": ONE, "model.rotary_emb.original_inv_freq": ONE}),
    ("llama2", {"model.layers.0.self_attn.q_proj.bias": ZERO}),
    ("llama2", {"model.layers.0.self_attn.k_scale": ONE, "model.layers.0.self_attn.v_scale": ONE}),
    ("qwen3", {"mtp.fc.weight": ONE, "model.mtp.layers.0.norm.weight": ONE}),
    ("gpt2", {"transformer.h.0.attn.bias": np.ones((1, 1, 8, 8), bool)}),
    ("gpt2", {"transformer.h.2.attn.masked_bias": np.float32([-1e4])}),
    ("bert", {"embeddings.position_ids": np.arange(128)[None]}),
    ("bert", {"pooler.dense.weight": np.ones((32, 32), np.float32), "pooler.dense.bias": ONE}),
    ("bert", {"cls.predictions.bias": ONE, "cls.seq_relationship.weight": ONE}),
    ("roberta", {"lm_head.dense.weight": ONE, "lm_head.layer_norm.bias": ONE}),
    ("distilbert", {"vocab_transform.weight": ONE, "vocab_projector.bias": ONE}),
]
REFUSED = [
    ("llama2", {"model.layers.0.self_attn.q_proj.bias": ONE}),
    ("llama2", {"lm_head.bias": np.ones(300, np.float32)}),
    ("llama2", {"score.weight": ONE}),
    ("llama2", {"model.layers.0.self_attn.q_norm.weight": ONE}),
    ("llama2", {"model.layers.2.mlp.router.weight": ONE}),
    ("llama2", {"model.layers.3.mlp.up_proj.weight": ONE}),
    ("llama2", {"base_model.model.lm_head.lora_A.weight": ONE}),
    ("llama2", {"model.embed_norm.weight": ONE}),
    ("llama2", {"transformer.h.0.attn.bias": ONE}),
    ("gemma2", {"model.layers.0.self_attn.sinks": ONE}),
    ("gpt2", {"transformer.h.0.crossattention.c_attn.weight": ONE}),
    ("bert", {"classifier.weight": ONE}),
    ("bert", {"encoder.layer.0.attention.self.distance_embedding.weight": ONE}),
    ("distilbert", {"pre_classifier.weight": ONE}),
    ("roberta", {"encoder.layer.0.attention.self.rotary.weight": ONE}),
]


def answer(name: str, folder: Path) -> Any:
    model = weft.load(folder, device="oracle")
    return model.embed_ids([IDS]) if name in ENCODERS else model.logits(IDS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "more"), INERT, ids=lambda v: v if isinstance(v, str) else "")
def test_tensors_that_change_nothing(name: str, more: Tensors, tmp_path: Path) -> None:
    write_model(name, tmp_path)
    want = answer(name, tmp_path)
    changed(tmp_path, lambda tensors: tensors.update(more))
    np.testing.assert_array_equal(answer(name, tmp_path), want)


@pytest.mark.parametrize(("name", "more"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_tensors_without_a_place(name: str, more: Tensors, tmp_path: Path) -> None:
    write_model(name, tmp_path)
    changed(tmp_path, lambda tensors: tensors.update(more))
    with pytest.raises(ModelError, match=re.escape(next(iter(more)))):
        answer(name, tmp_path)
