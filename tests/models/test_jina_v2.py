"""Jina v2, whose code no library holds: against the formulas of its papers (ALiBi on both sides of
a token, gated feed-forwards, norms after) in PyTorch, on random weights under its names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_files import finish
from torch.nn import functional as f

from weft.core.errors import ModelError
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models import load

SIZES = {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 3, "vocab_size": 97}
PUBLISHED = {
    "_name_or_path": "jinaai/jina-bert-implementation", "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"], "attn_implementation": "torch",
    "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    "emb_pooler": "mean", "feed_forward_type": "geglu", "hidden_act": "gelu",
    "max_position_embeddings": 8192, "position_embedding_type": "alibi", "type_vocab_size": 2,
    "pad_token_id": 0, "layer_norm_eps": 1e-12, "torch_dtype": "float32",
}  # fmt: skip


def write(folder: Path, heads: int, **changed: Any) -> dict[str, torch.Tensor]:
    """A folder as Jina publishes it; gives the weights."""
    config = {**SIZES, **PUBLISHED, "num_attention_heads": heads, **changed}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int) -> None:
        made[name] = rng.normal(0, 0.3, shape).astype(np.float32)

    hidden, wide = SIZES["hidden_size"], SIZES["intermediate_size"]
    add("embeddings.word_embeddings.weight", SIZES["vocab_size"], hidden)
    add("embeddings.token_type_embeddings.weight", 2, hidden)
    norms = ["embeddings.LayerNorm"]
    for i in range(SIZES["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            add(f"{at}attention.{name}.weight", hidden, hidden)
            add(f"{at}attention.{name}.bias", hidden)
        norms += [f"{at}attention.output.LayerNorm", f"{at}mlp.layernorm"]
        add(f"{at}mlp.gated_layers.weight", 2 * wide, hidden)
        add(f"{at}mlp.wo.weight", hidden, wide)
        add(f"{at}mlp.wo.bias", hidden)
    for name in norms:
        add(f"{name}.weight", hidden)
        add(f"{name}.bias", hidden)
    add("pooler.dense.weight", hidden, hidden)
    save_file(folder / "model.safetensors", made)
    return {name: torch.from_numpy(value) for name, value in made.items()}


def slopes(heads: int) -> list[float]:
    """As the paper's authors publish them."""
    if heads & (heads - 1):
        below = 2 ** int(np.floor(np.log2(heads)))
        return slopes(below) + slopes(2 * below)[0::2][: heads - below]
    start = 2.0 ** (-(2.0 ** -(np.log2(heads) - 3)))
    return [start * start**i for i in range(heads)]


def reference(w: dict[str, torch.Tensor], ids: list[int], heads: int, act: Any) -> np.ndarray:
    hidden, n = SIZES["hidden_size"], len(ids)

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return f.layer_norm(x, (hidden,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return f.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    x = (
        w["embeddings.word_embeddings.weight"][ids]
        + w["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm("embeddings.LayerNorm", x)
    place = torch.arange(n)
    away = (place[:, None] - place).abs()
    for i in range(SIZES["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        q, k, v = (
            linear(f"{at}attention.self.{part}", x).view(n, heads, -1).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(1, 2) / (hidden // heads) ** 0.5
        scores = scores - torch.tensor(slopes(heads), dtype=torch.float32)[:, None, None] * away
        found = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, hidden)
        x = norm(
            f"{at}attention.output.LayerNorm", linear(f"{at}attention.output.dense", found) + x
        )
        gate, up = linear(f"{at}mlp.gated_layers", x).chunk(2, -1)
        x = norm(f"{at}mlp.layernorm", linear(f"{at}mlp.wo", act(gate) * up) + x)
    return x.mean(0).numpy()


@pytest.mark.parametrize(("heads", "kind"), [(4, "geglu"), (6, "geglu"), (12, "reglu")])
@pytest.mark.parametrize("device", ["oracle", "cpu"])
def test_vectors(tmp_path: Path, heads: int, kind: str, device: str) -> None:
    """Padded batches give what the formulas give text by text."""
    weights = write(tmp_path, heads, feed_forward_type=kind)
    model = load(tmp_path, device=device)
    rng = np.random.default_rng(1)
    rows = [rng.integers(2, SIZES["vocab_size"], n).tolist() for n in (5, 1, 40, 9)]
    act = f.relu if kind == "reglu" else f.gelu
    for row, vector in zip(rows, model.embed_ids(rows)):
        np.testing.assert_allclose(
            vector, reference(weights, row, heads, act), atol=1e-5, rtol=1e-4
        )


def write_file(folder: Path, path: Path, split: bool) -> Path:
    """The file of llama.cpp's converter; older ones cut the matrix of gates in two."""
    arch = gguf.MODEL_ARCH.JINA_BERT_V2
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(8192)
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(6)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    names = gguf.get_tensor_name_map(arch, SIZES["num_hidden_layers"])
    for name, value in open_checkpoint(folder).items():
        stem, _, end = name.rpartition(".")
        if stem.startswith("pooler"):
            continue
        called, data = names.get_name(stem), np.array(value, np.float32)
        if split and "gated_layers" in stem:
            gate, data = np.split(data, 2)
            writer.add_tensor(f"{called.replace('ffn_up', 'ffn_gate')}.{end}", gate)
        writer.add_tensor(f"{called}.{end}", data)
    finish(writer)
    return path


@pytest.mark.parametrize("split", [False, True])
def test_vectors_of_a_gguf_file(tmp_path: Path, split: bool) -> None:
    weights = write(tmp_path, 6)
    model = load(write_file(tmp_path, tmp_path / "m.gguf", split), device="cpu")
    ids = [5, 3, 90, 7, 7, 12, 33]
    want = reference(weights, ids, 6, f.gelu)
    (found,) = model.embed_ids([ids])
    np.testing.assert_allclose(found, want / np.linalg.norm(want), atol=1e-5)


@pytest.mark.parametrize(("fields", "said"), [
    ({"feed_forward_type": "original"}, "feed_forward_type is 'original'; expected one of"),
    ({"position_embedding_type": "absolute"}, "a gated feed-forward beside learned positions"),
])  # fmt: skip
def test_what_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    write(tmp_path, 4, **fields)
    with pytest.raises(ModelError, match=said):
        load(tmp_path, device="oracle")
