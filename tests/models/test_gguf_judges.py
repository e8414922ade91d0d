"""Rerankers and classifiers in GGUF files, as llama.cpp's converter writes them, against
transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import finish
from gguf_zoo import write_gguf
from model_zoo import BERT, UNTYPED
from sentences import SENTENCES

from weft.core.errors import ModelError
from weft.importers.safetensors import open_checkpoint
from weft.models import load
from weft.models.run.judge import Judge

ARCHS = {
    "roberta": gguf.MODEL_ARCH.BERT, "xlm-roberta": gguf.MODEL_ARCH.BERT,
    "distilbert": gguf.MODEL_ARCH.BERT, "bert": gguf.MODEL_ARCH.BERT,
    "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("RobertaConfig", {**BERT, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaConfig", {**BERT, "type_vocab_size": 1}),
    "distilbert": (
        "DistilBertConfig",
        {"vocab_size": 300, "dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4,
         "max_position_embeddings": 128},
    ),
    "modernbert": (
        "ModernBertConfig",
        {**UNTYPED, "num_hidden_layers": 4, "local_attention": 10, "classifier_pooling": "mean",
         "classifier_bias": True},
    ),
    "bert": ("BertConfig", BERT),
}  # fmt: skip


def reference(name: str, folder: Path, labels: int) -> Any:
    import torch
    import transformers

    made, arguments = FAMILIES[name]
    config = getattr(transformers, made)(**arguments, num_labels=labels)
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(
        config, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.15))
    model.save_pretrained(folder)
    return model


def write(
    folder: Path, path: Path, labels: list[str] | None = None,
    tokens: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    arch = ARCHS[kind]
    called = gguf.MODEL_ARCH_NAMES[arch]
    writer = gguf.GGUFWriter(str(path), called)
    layers = config.get("num_hidden_layers") or config["n_layers"]
    offset = config["pad_token_id"] + 1 if "roberta" in kind else 0
    writer.add_context_length(config["max_position_embeddings"] - offset)
    writer.add_embedding_length(config.get("hidden_size") or config["dim"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.get("intermediate_size") or config["hidden_dim"])
    writer.add_head_count(config.get("num_attention_heads") or config["n_heads"])
    writer.add_layer_norm_eps(config.get("layer_norm_eps", config.get("norm_eps", 1e-12)))
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    if labels:
        writer.add_classifier_output_labels(labels)
    if kind == "modernbert":
        writer.add_sliding_window(config["local_attention"])
    if tokens is not None:
        tokens(writer)
    names = gguf.get_tensor_name_map(arch, layers)
    for name, value in open_checkpoint(folder).items():
        name = re.sub(r"^(roberta|distilbert|bert|model)\.", "", name)
        if name.startswith("pooler."):
            continue
        stem, end = re.fullmatch(r"(.*)\.(weight|bias)", name).groups()  # type: ignore[union-attr]
        stem = "classifier.out_proj" if stem == "classifier" else stem
        found = names.get_name(stem) or names.get_name(f"model.{stem}")
        assert found, name
        data = np.array(value, np.float32)
        data = data[offset:] if stem.endswith("position_embeddings") else data
        writer.add_tensor(f"{found}.{end}", data)
    finish(writer)
    return path


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", ["roberta", "xlm-roberta", "distilbert", "modernbert"])
def test_scores(name: str, labels: int, tmp_path: Path) -> None:
    import torch

    theirs = reference(name, tmp_path, labels)
    named = ["good", "bad", "neither"] if labels == 3 else None
    for device in ("oracle", "cpu"):
        model = load(write(tmp_path, tmp_path / "m.gguf", named), device=device)
        assert isinstance(model, Judge)
        assert model.labels == tuple(named or ["LABEL_0"])
        rng = np.random.default_rng(3)
        for n in (1, 5, 17):
            ids = rng.integers(3, 290, n).tolist()
            with torch.no_grad():
                want = theirs(torch.tensor([ids])).logits[0].numpy()
            row: Any = SimpleNamespace(ids=ids, types=[0] * n)
            (got,) = model.logits_of_rows([row])
            np.testing.assert_allclose(got, want, atol=3e-5, rtol=3e-4)


def unigrams() -> tuple[Any, Callable[[gguf.GGUFWriter], None]]:
    """XLM-RoBERTa's tokenizer, trained small: the library's, and as the converter writes it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
    raw.train_from_iterator(SENTENCES, trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    vocab = json.loads(raw.to_str())["model"]["vocab"]

    def tokens(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([token for token, _ in vocab])
        writer.add_token_scores([score for _, score in vocab])
        writer.add_token_types([3] * 3 + [2] + [1] * (len(vocab) - 4))
        for name, i in (("bos", 0), ("eos", 2), ("unk", 3), ("sep", 2), ("pad", 1)):
            getattr(writer, f"add_{name}_token_id")(i)
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)

    return raw, tokens


def test_a_reranker_of_texts(tmp_path: Path) -> None:
    """BGE's reranker: pairs as transformers puts them together, and the sigmoid of the logit."""
    import torch

    theirs = reference("xlm-roberta", tmp_path, 1)
    raw, tokens = unigrams()
    model = load(write(tmp_path, tmp_path / "m.gguf", None, tokens), device="cpu")
    assert isinstance(model, Judge)
    query, *documents = (text[:40].strip() for text in SENTENCES[:5])
    want = []
    for document in documents:
        with torch.no_grad():
            logit = theirs(torch.tensor([raw.encode(query, document).ids])).logits[0, 0]
        want.append(torch.sigmoid(logit).item())
    got = model.score([(query, document) for document in documents])
    np.testing.assert_allclose(got, want, atol=3e-5)
    ranked = model.rerank(query, documents)
    assert [x.index for x in ranked] == np.argsort(-np.array(want), kind="stable").tolist()


def test_a_pooler_that_was_left_out(tmp_path: Path) -> None:
    reference("bert", tmp_path, 1)
    with pytest.raises(ModelError, match=r"llama\.cpp's converter leaves BERT's pooler out"):
        load(write(tmp_path, tmp_path / "m.gguf"), device="oracle")


def test_labels_of_another_number(tmp_path: Path) -> None:
    reference("roberta", tmp_path, 3)
    with pytest.raises(ModelError, match=r"output_labels is .*expected the names of 3 labels"):
        load(write(tmp_path, tmp_path / "m.gguf", ["a", "b"]), device="oracle")


def test_qwens_reranker(tmp_path: Path) -> None:
    """The rows for yes and no that its file holds again are left: the tokens say the same."""
    from test_judges import write_yes_no

    write_yes_no(tmp_path, template=None)
    theirs = load(tmp_path, device="oracle", context=1024)
    file = json.loads((tmp_path / "tokenizer.json").read_text())
    words = file["model"]["vocab"] | {t["content"]: t["id"] for t in file["added_tokens"]}
    head = np.array(open_checkpoint(tmp_path)["model.embed_tokens.weight"], np.float32)

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["cls.output.weight"] = head[[words["yes"], words["no"]]]

    path = write_gguf(
        tmp_path, tmp_path / "m.gguf", change=change, keys={"qwen3.pooling_type": 4}
    )  # fmt: skip
    model = load(path, device="oracle", context=1024)
    ids = [words["yes"], 5, 9]
    np.testing.assert_array_equal(model.logits(ids), theirs.logits(ids))
