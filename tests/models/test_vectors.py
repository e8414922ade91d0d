"""Texts' vectors against sentence-transformers: decoders as embedders, steps after the pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_zoo import write_model, write_tokenizer
from rows import few
from test_sentence_folders import TEXTS, close, library, ours

from weft.core.errors import ModelError, UsageError
from weft.models import load
from weft.models.run.embedder import Encoder

PROMPTS = {"query": "Instruct: find it\nQuery: ", "document": ""}
SLIDES = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA = {"use_bidirectional_attention": True, "num_hidden_layers": 4, **SLIDES}


def modules_of(folder: Path, pooling: dict[str, Any], *steps: str) -> None:
    """Writes the files of modules after a model, by sentence-transformers itself."""
    from sentence_transformers.sentence_transformer import modules
    from torch import manual_seed, nn

    manual_seed(1)
    width, made = 32, {"Normalize": lambda: modules.Normalize()}
    acts = {"Dense": nn.Tanh(), "Wide": nn.Identity(), "Gelu": nn.GELU()}
    paths = [("", "Transformer"), ("1_Pooling", "Pooling")]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": width,
                                                                 **pooling}))  # fmt: skip
    for i, step in enumerate(steps):
        if step in acts:
            gives = {"Dense": width, "Wide": 48, "Gelu": 20}[step]
            more = {"use_residual": step != "Wide", "bias": step != "Wide"}
            module = modules.Dense(width, gives, activation_function=acts[step], **more)
            width = gives
        elif step == "LayerNorm":
            module = modules.LayerNorm(width)
            nn.init.normal_(module.norm.weight)
        else:
            module = made[step]()
        path = folder / f"{i + 2}_{step}"
        path.mkdir()
        module.save(str(path))
        paths.append((path.name, type(module).__name__))
    named = "sentence_transformers.models"
    listed = [{"idx": i, "name": str(i), "path": path, "type": f"{named}.{kind}"}
              for i, (path, kind) in enumerate(paths)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    settings = {"prompts": PROMPTS, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


def written(folder: Path, name: str, changed: dict[str, Any] | None = None) -> None:
    write_model(name, folder, changed=changed)
    write_tokenizer(folder, "fallback", pad_token="<unk>")


DECODERS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ("qwen3", {}, {"pooling_mode_lasttoken": True}, ("Normalize",)),
    ("gemma3", GEMMA, {"pooling_mode": "mean"}, ("Wide", "Dense", "Normalize")),
    ("gemma3", {}, {"pooling_mode": "mean", "include_prompt": False}, ()),
    ("mistral", {}, {"pooling_mode": "lasttoken"}, ("Normalize",)),
    ("gpt2", {}, {"pooling_mode": "weightedmean"}, ()),
    ("llama2", {}, {"pooling_mode": "lasttoken"}, ("Dense",)),
]


@pytest.mark.parametrize("case", range(len(DECODERS)))
@pytest.mark.parametrize("device", few(["oracle", "cpu"], "oracle"))
def test_decoders(case: int, device: str, tmp_path: Path) -> None:
    """As Qwen3-Embedding and EmbeddingGemma; texts of several lengths in one batch."""
    name, changed, pooling, steps = DECODERS[case]
    written(tmp_path, name, changed)
    modules_of(tmp_path, pooling, *steps)
    theirs, model = library(tmp_path), load(tmp_path, device=device)
    assert isinstance(model, Encoder)
    close(model.embed(TEXTS), theirs.encode(TEXTS))
    close(model.embed(TEXTS, prompt_name="query"), theirs.encode(TEXTS, prompt_name="query"))
    assert model.embed(TEXTS).shape[1] == model.dim
    for text in TEXTS:
        close(model.embed(text), theirs.encode([text]))
    with pytest.raises(UsageError, match="is an encoder"):
        model.generate("x")


def test_a_checkpoint_without_output_layer(tmp_path: Path) -> None:
    """As published embedders are: names without prefix, an untied head that is not there."""
    changed = {"tie_word_embeddings": False}
    model = write_model("qwen3", tmp_path, changed=changed).model
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, "fallback", pad_token="<unk>")
    modules_of(tmp_path, {"pooling_mode": "lasttoken"}, "Normalize")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen3Model"]
    close(ours(tmp_path).embed(TEXTS), library(tmp_path).encode(TEXTS))


STEPS = [("Dense",), ("Normalize", "Gelu"), ("LayerNorm", "Wide", "Normalize"), ("Wide", "Dense")]


@pytest.mark.parametrize("steps", STEPS[:3], ids=str)
def test_steps_after_the_pooling(steps: tuple[str, ...], tmp_path: Path) -> None:
    written(tmp_path, "bert")
    modules_of(tmp_path, {"pooling_mode": "mean"}, *steps)
    theirs, model = library(tmp_path), ours(tmp_path)
    close(model.embed(TEXTS), theirs.encode(TEXTS))
    close(model.embed(TEXTS, truncate_dim=5), theirs.encode(TEXTS, truncate_dim=5))
    cut = theirs.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    close(model.embed(TEXTS, truncate_dim=5, normalize=True), cut)
    assert model.dim == theirs.get_embedding_dimension()


@pytest.mark.parametrize("dim", [0, -1, 33, True, 2.5])
def test_wrong_dimensions(dim: Any, tmp_path: Path) -> None:
    written(tmp_path, "bert")
    with pytest.raises(UsageError, match="truncate_dim is"):
        ours(tmp_path).embed(TEXTS, truncate_dim=dim)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"in_features": 31, "out_features": 4}, "in_features is 31; the vectors before have 32"),
        ({"in_features": 32, "out_features": 31}, r"has shape \[20, 32\]"),
        ({"in_features": 32, "out_features": 20, "bias": False}, "linear.bias is not expected"),
        ({"in_features": 32, "out_features": 20, "activation_function": "os.system"}, "os.system"),
        ({"in_features": 32, "out_features": 20, "module_output_name": "scores"}, "scores"),
        ({"in_features": 32, "out_features": 20, "use_residual": True}, "residual.weight"),
    ],
)
def test_hostile_dense(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer import modules

    written(tmp_path, "bert")
    modules_of(tmp_path, {"pooling_mode": "mean"}, "Dense")
    modules.Dense(32, 20).save(str(tmp_path / "2_Dense"))
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match=said):
        ours(tmp_path)


def test_a_decoder_that_sees_later_tokens_writes_no_text(tmp_path: Path) -> None:
    """Without modules.json it gives means, as an encoder does; training rejects it."""
    from weft.importers.hf_config import read_config
    from weft.models.arch.families import DECODERS as READERS

    written(tmp_path, "gemma3", GEMMA)
    model = ours(tmp_path)
    assert model.embed(TEXTS).shape == (3, 32)
    with pytest.raises(ModelError, match="tokens see later ones"):
        READERS["gemma3_text"](read_config(tmp_path))


def test_vectors_of_a_type_that_is_traced(tmp_path: Path) -> None:
    written(tmp_path, "bert")
    modules_of(tmp_path, {"pooling_mode": "mean"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "opt"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="makes vectors of a opt"):
        load(tmp_path, device="oracle")


def test_a_compiled_embedder(tmp_path: Path) -> None:
    from weft.cli.main import invoke

    written(tmp_path, "qwen3", {"max_position_embeddings": 64})
    modules_of(tmp_path, {"pooling_mode": "lasttoken"}, "Normalize")
    out = tmp_path / "out.weft"
    assert invoke(["compile", str(tmp_path), "-o", str(out), "--device", "cpu"]) == 0
    close(load(out, device="cpu").embed(TEXTS), ours(tmp_path).embed(TEXTS))
