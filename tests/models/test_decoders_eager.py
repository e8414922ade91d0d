"""Every decoder family on the NumPy oracle, against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_zoo import DECODERS, VOCAB, reference_greedy, reference_logits, write_model

from weft.importers.safetensors import open_checkpoint, save_file
from weft.models import load

IDS = np.random.default_rng(0).integers(0, VOCAB, 40)


@pytest.mark.parametrize("name", DECODERS)
def test_logits(zoo, name: str) -> None:
    folder, reference = zoo(name)
    got = load(folder, device="oracle").logits(IDS)
    want = reference_logits(reference, IDS)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", DECODERS)
def test_prefill_and_decode_agree_with_whole_passes(zoo, name: str) -> None:
    """Chunked prefill, then single steps, in a slot that another sequence used before."""
    folder, reference = zoo(name)
    want = reference_logits(reference, IDS)
    runner = load(folder, device="oracle", context=64).runner(2)
    runner.prefill(1, IDS[::-1].tolist())
    for got, t in (
        (runner.prefill(1, IDS[:20].tolist()), 19),
        (runner.prefill(1, IDS[20:38].tolist(), 20), 37),
        (runner.rows([int(IDS[38])], [1], [38])[0], 38),
    ):
        np.testing.assert_allclose(got, want[t], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama3", "mistral", "gemma3"])
def test_64_greedy_tokens(zoo, name: str) -> None:
    folder, reference = zoo(name)
    got = load(folder, device="oracle").generate(IDS[:9], max_new_tokens=64)
    assert len(got.ids) == 64
    assert list(got.ids) == reference_greedy(reference, IDS[:9], got.ids)
    assert got.finish_reason == "length"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_checkpoints(tmp_path: Path, dtype: str) -> None:
    """Half weights with float32 activations stay close to the same weights widened."""
    write_model("llama2", tmp_path, dtype)
    half = load(tmp_path, device="oracle")
    assert half.config.kv_dtype.name == dtype
    wide = load(tmp_path, device="oracle", dtype="float32")
    tolerance = 0.01 if dtype == "float16" else 0.08
    np.testing.assert_allclose(half.logits(IDS), wide.logits(IDS), atol=tolerance, rtol=tolerance)


def test_sharded_checkpoint_is_the_same_model(tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    write_model("qwen3", one)
    write_model("qwen3", many, max_shard_size="20KB")
    assert len(list(many.glob("*.safetensors"))) > 2
    a, b = (load(p, device="oracle").logits(IDS) for p in (one, many))
    np.testing.assert_array_equal(a, b)


def test_old_config_spelling(zoo, tmp_path: Path) -> None:
    """transformers 4 wrote rope_theta beside rope_scaling; both spellings mean the same model."""
    import json
    import shutil

    folder, _ = zoo("llama3")
    shutil.copytree(folder, tmp_path / "old")
    path = tmp_path / "old" / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    path.write_text(json.dumps(config | {"rope_scaling": rope}))
    assert load(tmp_path / "old", device="oracle").config == load(folder, device="oracle").config


def renamed(folder: Path, to: Path, change) -> Path:
    """A copy of a model folder whose tensors have other names."""
    import shutil

    shutil.copytree(folder, to)
    save_file(to / "model.safetensors", {change(k): v for k, v in open_checkpoint(folder).items()})
    return to


def test_names_of_other_writers(zoo, tmp_path: Path) -> None:
    """GPT-2 without its prefix; BERT with one, and with its first names for layer norms."""
    folder, _ = zoo("gpt2")
    bare = renamed(folder, tmp_path / "gpt2", lambda k: k.removeprefix("transformer."))
    want = load(folder, device="oracle").logits(IDS)
    np.testing.assert_array_equal(load(bare, device="oracle").logits(IDS), want)
    write_model("bert", tmp_path / "bert")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def first(name: str) -> str:
        for new, was in old.items():
            name = name.replace(new, was)
        return "bert." + name

    other = renamed(tmp_path / "bert", tmp_path / "first", first)
    a, b = (load(p, device="oracle").embed_ids([[5, 6, 7]]) for p in (tmp_path / "bert", other))
    np.testing.assert_array_equal(a, b)


def test_weights_are_views_of_the_file(zoo) -> None:
    folder, _ = zoo("llama2")
    for value in load(folder, device="oracle").weights.values():
        assert not value.flags.writeable
        assert not value.flags.owndata


def test_imports_stay_lazy(zoo) -> None:
    """Generating from ids needs neither tokenizer, template, spinner nor safetensors package, and
    no module of Python's that takes 5 ms or more to import for a message alone."""
    import subprocess
    import sys

    folder, _ = zoo("llama2")
    code = (
        "import sys; from weft.models import load\n"
        "import weft.cli.run\n"
        f"load({str(folder)!r}, device='oracle').generate([1, 2], max_new_tokens=2)\n"
        "heavy = {'rich', 'jinja2', 'tokenizers', 'safetensors', 'torch', 'llvmlite', 'wgpu'}\n"
        "heavy |= {'email', 'importlib.metadata', 'ssl', 'statistics', 'urllib.request'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
