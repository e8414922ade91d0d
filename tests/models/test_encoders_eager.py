"""Encoders and sentence-transformers folders against transformers, most on the NumPy oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import ENCODERS, VOCAB, write_model, write_tokenizer
from present import opened
from rows import few
from sentences import SENTENCES, minilm_folder, reference_embeddings

from weft.core.errors import LimitError, ModelError, UsageError
from weft.models import load


@pytest.mark.parametrize("name", ENCODERS)
def test_token_vectors(tmp_path: Path, name: str) -> None:
    """Padded batches give what transformers gives text by text."""
    import torch

    reference = write_model(name, tmp_path)
    model = load(tmp_path, device="oracle")
    rng = np.random.default_rng(1)
    rows = [rng.integers(2, VOCAB, n).tolist() for n in (5, 1, 17, 9)]
    got = model.embed_ids(rows)
    for row, vector in zip(rows, got):
        with torch.no_grad():
            hidden = reference(torch.tensor([row])).last_hidden_state[0]
        np.testing.assert_allclose(vector, hidden.mean(0).numpy(), atol=1e-5, rtol=1e-4)


OLD: dict[str, dict[str, Any]] = {  # as the first releases of these models write config.json
    "nomic": {
        "activation_function": "swiglu", "causal": False, "dense_seq_output": True,
        "fused_bias_fc": True, "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "n_embd": 32, "n_head": 4, "n_inner": 48,
        "n_layer": 3, "n_positions": 128, "pad_vocab_size_multiple": 64, "parallel_block": False,
        "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False,
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "type_vocab_size": 2, "use_flash_attn": True,
        "use_rms_norm": False, "use_xentropy": True, "vocab_size": VOCAB, "pad_token_id": 1,
    },
    "modernbert": {
        "attention_bias": False, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0, "local_attention": 10, "hidden_activation": "gelu",
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "norm_eps": 1e-5,
        "num_attention_heads": 4, "max_position_embeddings": 128, "layer_norm_eps": 1e-5,
        "position_embedding_type": "absolute", "vocab_size": VOCAB, "pad_token_id": 1,
        "norm_bias": False, "mlp_bias": False, "classifier_pooling": "mean",
    },
    "deberta-v3": {
        "hidden_act": "gelu", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "max_position_embeddings": 128, "max_relative_positions": -1,
        "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "relative_attention": True,
        "position_biased_input": False, "type_vocab_size": 0, "vocab_size": VOCAB,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_configs_of_first_releases(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(name, tmp_path)
    rows = [[5, 6, 7], list(range(2, 40))]
    want = load(tmp_path, device="oracle").embed_ids(rows)
    path = tmp_path / "config.json"
    kind = json.loads(path.read_text())["model_type"]
    path.write_text(json.dumps({"model_type": kind, **OLD[name]}))
    capsys.readouterr()
    np.testing.assert_allclose(load(tmp_path, device="oracle").embed_ids(rows), want, atol=1e-6)
    assert capsys.readouterr().err == ""


PACKED = ["bert", "deberta-v3", "t5-gated"]


@pytest.mark.parametrize("name", few([n for n in ENCODERS if n != "distilbert"], *PACKED))
def test_packed(tmp_path: Path, name: str) -> None:
    """Weights of 8 bits hardly change a vector; those of 4 bits give the oracle's on the CPU."""
    if name.endswith(("t5", "t5-gated")):
        changed = {"d_model": 64, "d_ff": 96, "d_kv": 16}
    else:
        changed = {"hidden_size": 64, "intermediate_size": 96}
    write_model(name, tmp_path, changed=changed)
    rng = np.random.default_rng(4)
    rows = [rng.integers(2, VOCAB, n).tolist() for n in (5, 17, 30)]
    want, got = (load(tmp_path, device="cpu", quant=q).embed_ids(rows) for q in (None, "int8"))
    cosine = (want * got).sum(1) / np.linalg.norm(want, axis=1) / np.linalg.norm(got, axis=1)
    assert cosine.min() > 0.975
    cpu, eager = (load(tmp_path, device=d, quant="int4") for d in ("cpu", "oracle"))
    assert "packed" in cpu.precision
    np.testing.assert_allclose(cpu.embed_ids(rows), eager.embed_ids(rows), atol=3e-5, rtol=2e-4)


@pytest.mark.parametrize(
    ("mode", "normalize"), [("cls", False), ("mean", True), ("max", True), ("both", False)]
)
def test_pooling_modes(tmp_path: Path, mode: str, normalize: bool) -> None:
    import torch

    reference = write_model("bert", tmp_path)
    modes = {"cls": mode in ("cls", "both"), "max": mode == "max", "mean": mode in ("mean", "both")}
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "x.models.Pooling"},
    ]
    if normalize:
        modules.append({"idx": 2, "name": "2", "path": "2_N", "type": "x.models.Normalize"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    names = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens"}
    config = {f"pooling_mode_{names[k]}": v for k, v in modes.items()}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    got = load(tmp_path, device="oracle").embed_ids([[5, 6, 7, 8]])[0]
    with torch.no_grad():
        h = reference(torch.tensor([[5, 6, 7, 8]])).last_hidden_state[0].numpy()
    parts = {"cls": h[0], "max": h.max(0), "mean": h.mean(0)}
    want = np.concatenate([parts[k] for k, on in modes.items() if on])
    want = want / np.linalg.norm(want) if normalize else want
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    return reference_embeddings(minilm_folder(), SENTENCES)


@pytest.mark.parametrize("device", few(["oracle", "cpu", "vulkan"], "cpu"))
def test_minilm_agrees_with_transformers_and_ranks_alike(
    reference: np.ndarray, device: str
) -> None:
    if device == "vulkan":
        opened(device)
    got = load(minilm_folder(), device=device).embed(SENTENCES)
    np.testing.assert_allclose(got, reference, atol=1e-4)
    for a, b in zip(got, reference):
        np.testing.assert_array_equal(np.argsort(-(got @ a)), np.argsort(-(reference @ b)))


def test_long_texts_are_cut_and_empty_ones_work() -> None:
    model = load(minilm_folder(), device="oracle")
    long = model.embed(["weft " * 2000, "weft " * 600])
    np.testing.assert_allclose(long[0], long[1], atol=1e-6)
    assert model.embed([]).shape == (0, 384)
    assert np.isfinite(model.embed([""])).all()
    assert model.embed("one text").shape == (1, 384)


def test_wrong_use(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    model = load(tmp_path, device="oracle")
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        model.embed(["x"])
    with pytest.raises(UsageError, match="is an encoder"):
        model.generate("x")
    with pytest.raises(UsageError, match="outside the vocabulary"):
        model.embed_ids([[VOCAB]])
    with pytest.raises(LimitError, match="128 fit"):
        model.embed_ids([[5] * 200])
    write_tokenizer(tmp_path)
    assert load(tmp_path, device="oracle").embed(["the fox"]).shape == (1, 32)


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({}, "expected a list"),
        ([{"type": "x.CNN", "path": "2"}], "'CNN' is not supported"),
        ([{"type": "x.Dense", "path": "2"}], "expected Transformer, Pooling"),
        ([{"type": "x.Pooling", "path": "../up"}], "leads out"),
        ([{"path": "2"}], "type is missing"),
    ],
)
def test_hostile_modules(tmp_path: Path, modules: object, said: str) -> None:
    write_model("bert", tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=said):
        load(tmp_path, device="oracle")
