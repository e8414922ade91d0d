"""Encoders in GGUF files, written with the gguf package, against transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import finish
from model_zoo import VOCAB, write_model
from rows import few
from sentences import SENTENCES, minilm_folder, reference_embeddings

from weft.core.errors import ModelError, UsageError
from weft.importers.safetensors import open_checkpoint
from weft.models import load
from weft.models.run.embedder import Encoder

ARCHS = {
    "bert": gguf.MODEL_ARCH.BERT, "roberta": gguf.MODEL_ARCH.BERT,
    "nomic_bert": gguf.MODEL_ARCH.NOMIC_BERT, "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
    "xlm-roberta": gguf.MODEL_ARCH.BERT,
}  # fmt: skip
Q8 = gguf.GGMLQuantizationType.Q8_0


def write(
    folder: Path, path: Path, pooling: int | None = 1, packed: bool = False,
    changed: dict[str, Any] | None = None, leave: str = "", tokens: Any = None,
) -> Path:  # fmt: skip
    """Writes the encoder of a folder as llama.cpp's converter does."""
    config = json.loads((folder / "config.json").read_text())
    kind, layers = config["model_type"], config["num_hidden_layers"]
    arch = ARCHS[kind]
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[arch])
    positions = config["max_position_embeddings"]
    offset = config["pad_token_id"] + 1 if "roberta" in kind else 0
    writer.add_context_length(positions - offset)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    eps = config.get("layer_norm_eps", config.get("norm_eps"))
    writer.add_layer_norm_eps(eps)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    if kind == "nomic_bert":
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if kind == "modernbert":
        ropes = config["rope_parameters"]
        writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
        writer.add_float32("modern-bert.rope.freq_base_swa",
                           ropes["sliding_attention"]["rope_theta"])  # fmt: skip
        writer.add_sliding_window(config["local_attention"])
        writer.add_sliding_window_pattern(config.get("global_attn_every_n_layers", 3))
    for key, value in (changed or {}).items():
        writer.add_uint32(key, value)
    if tokens is not None:
        tokens(writer)
    names = gguf.get_tensor_name_map(arch, layers)
    for name, value in open_checkpoint(folder).items():
        if name == "embeddings.position_ids":
            continue
        stem, end = re.fullmatch(r"(.*)\.(weight|bias)", name).groups()  # type: ignore[union-attr]
        if stem.startswith("pooler") or stem == leave:
            continue
        called = names.get_name(stem) or names.get_name(f"model.{stem}")
        assert called, name
        data = np.array(value, np.float32)
        if stem.endswith("position_embeddings"):
            data = data[offset:]
        whole = data.ndim == 2 and data.shape[1] % 32 == 0
        if packed and whole and "embeddings" not in stem:
            writer.add_tensor(f"{called}.{end}", gguf.quants.quantize(data, Q8), raw_dtype=Q8)
        else:
            writer.add_tensor(f"{called}.{end}", data)
    finish(writer)
    return path


def opened(path: Path, device: str = "oracle") -> Encoder:
    found = load(path, device=device)
    assert isinstance(found, Encoder)
    return found


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("device", few(["oracle", "cpu"], "oracle"))
@pytest.mark.parametrize("name", ["bert", "roberta", "nomic", "modernbert", "modernbert-biased"])
def test_vectors(name: str, device: str, tmp_path: Path) -> None:
    import torch

    reference = write_model(name, tmp_path)
    rng = np.random.default_rng(3)
    rows = [rng.integers(2, VOCAB, n).tolist() for n in (5, 1, 17, 9, 40)]
    want = []
    for row in rows:
        with torch.no_grad():
            want.append(reference(torch.tensor([row])).last_hidden_state[0].numpy())
    pooled = {1: [h.mean(0) for h in want], 2: [h[0] for h in want], 3: [h[-1] for h in want]}
    for kind, vectors in pooled.items():
        model = opened(write(tmp_path, tmp_path / f"{kind}.gguf", kind), device)
        np.testing.assert_allclose(model.embed_ids(rows), unit(np.stack(vectors)), atol=2e-5)
    packed = opened(write(tmp_path, tmp_path / "packed.gguf", 1, packed=True), device)
    assert "packed" in packed.precision
    close = (packed.embed_ids(rows) * unit(np.stack(pooled[1]))).sum(1)
    assert close.min() > 0.995


def minilm_tokens(writer: gguf.GGUFWriter) -> None:
    """MiniLM's WordPiece as the converter writes it."""
    file = json.loads((minilm_folder() / "tokenizer.json").read_text())
    vocab = file["model"]["vocab"]
    special = {t["content"]: t["id"] for t in file["added_tokens"]}
    tokens, types = [], []
    for token in sorted(vocab, key=vocab.__getitem__):
        if token in special:
            tokens.append(token)
            types.append(gguf.TokenType.CONTROL)
        else:
            tokens.append(token[2:] if token.startswith("##") else f"▁{token}")
            types.append(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_type_count(2)
    for name in ("bos", "eos", "unk", "sep", "pad"):
        token = {"bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]"}
        getattr(writer, f"add_{name}_token_id")(vocab[token[name]])


@pytest.mark.parametrize("device", few(["oracle", "cpu"], "cpu"))
@pytest.mark.parametrize("packed", [False, True])
def test_minilm(device: str, packed: bool, tmp_path: Path) -> None:
    """Real weights and texts: transformers' vectors, and its ranking."""
    path = write(minilm_folder(), tmp_path / "x.gguf", 1, packed, tokens=minilm_tokens)
    model = opened(path, device)
    texts = [*SENTENCES[:20], "Naïve CAFÉ, 日本語!", ""]
    got, want = model.embed(texts), reference_embeddings(minilm_folder(), texts)
    np.testing.assert_allclose(got, want, atol=2e-2 if packed else 1e-4)
    ids = load(minilm_folder(), device="oracle").tokenizer.encode_batch(texts)
    assert model.need_tokenizer("a test").encode_batch(texts) == ids


def test_unigrams(tmp_path: Path) -> None:
    """XLM-RoBERTa's tokenizer (BGE-M3's), trained small, as the library reads its own file."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
    raw.train_from_iterator(SENTENCES, trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    vocab = json.loads(raw.to_str())["model"]["vocab"]

    def tokens(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([token for token, _ in vocab])
        writer.add_token_scores([score for _, score in vocab])
        kinds = [3] * 3 + [2] + [1] * (len(vocab) - 4)
        writer.add_token_types(kinds)
        for name, i in (("bos", 0), ("eos", 2), ("unk", 3), ("sep", 2), ("pad", 1)):
            getattr(writer, f"add_{name}_token_id")(i)
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)

    write_model("xlm-roberta", tmp_path)
    model = opened(write(tmp_path, tmp_path / "x.gguf", 2, tokens=tokens))
    tokenizer = model.need_tokenizer("a test")
    for text in SENTENCES[:10]:
        assert tokenizer.encode(text) == raw.encode(text).ids
    assert model.embed(SENTENCES[:3]).shape == (3, 32)


@pytest.mark.parametrize(
    ("changed", "leave", "said"),
    [
        ({}, "embeddings.LayerNorm", "'token_embd_norm.weight' is missing"),
        ({"bert.pooling_type": 4}, "", "a reranker whose head is not whole"),
        ({"bert.pooling_type": 9}, "", "pooling_type is 9"),
        ({"bert.novelty": 3}, "", ""),
    ],
)
def test_hostile_files(
    changed: dict[str, Any], leave: str, said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_model("bert", tmp_path)
    kind = None if "bert.pooling_type" in changed else 1
    path = write(tmp_path, tmp_path / "x.gguf", kind, changed=changed, leave=leave)
    if not said:
        opened(path)
        assert "weft does not know novelty" in capsys.readouterr().err
        return
    with pytest.raises(ModelError, match=said):
        load(path, device="oracle")


def test_options_that_an_encoder_does_not_take(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    path = write(tmp_path, tmp_path / "x.gguf")
    with pytest.raises(UsageError, match="does not use a KV cache"):
        load(path, device="oracle", cache="int8")
    with pytest.raises(UsageError, match="is an encoder"):
        opened(path).generate("x")
    half = opened(write(tmp_path, tmp_path / "y.gguf", packed=True))
    wide = load(tmp_path / "y.gguf", device="oracle", dtype="float32")
    np.testing.assert_allclose(half.embed_ids([[5, 6]]), wide.embed_ids([[5, 6]]), atol=1e-3)


def test_a_decoder_that_says_how_it_pools(tmp_path: Path) -> None:
    """As files of Qwen3-Embedding: the last token's vector, of length 1."""
    import torch
    from gguf_zoo import write_gguf

    reference = write_model("qwen3", tmp_path)

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_vocab_size(VOCAB)
        writer.add_pooling_type(gguf.PoolingType.LAST)

    path = write_gguf(tmp_path, tmp_path / "x.gguf", tokenizer=keys)
    rows = [[5, 6, 7], [8], list(range(9, 40))]
    for device in ("oracle", "cpu"):
        got = opened(path, device).embed_ids(rows)
        for row, vector in zip(rows, got):
            with torch.no_grad():
                hidden = reference.model(torch.tensor([row])).last_hidden_state[0, -1].numpy()
            np.testing.assert_allclose(vector, hidden / np.linalg.norm(hidden), atol=2e-5)
