"""What each command does with a traced model."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rows import few

import weft
from weft.backends.llvm import ptxas
from weft.backends.presets import caps_of
from weft.cli.main import cli
from weft.core.errors import ModelError, UsageError
from weft.importers.hf_config import read_config
from weft.models.run import saved

pytest.importorskip("transformers")
import causal_zoo as kit
import torch
from model_zoo import write_tokenizer
from zoo_kit import here, loaded

sys.path.append(str(Path(__file__).parents[1] / "serve"))
from serve_kit import serving

from weft.models.weights import adapters, peft_files
from weft.models.zoo import ask
from weft.training.merge import merge_folders
from weft.training.model import TrainableDecoder, base_source, base_weights


@pytest.fixture(autouse=True)
def traced_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ask, "_asked", here)
    yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """Type -> (folder with a tokenizer, transformers' model), each written once."""
    found: dict[str, tuple[Path, Any]] = {}

    def make(kind: str) -> tuple[Path, Any]:
        if kind not in found:
            folder = tmp_path_factory.mktemp("doors") / kind
            found[kind] = folder, kit.written(kind, folder, vocab_size=512)
            write_tokenizer(folder, "bytes")
        return found[kind]

    return make


def weft_command(*words: object) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words])


def output_of(*words: object) -> str:
    done = weft_command(*words)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


# -- use ------------------------------------------------------------------------------------------

CPU = ("--device", "cpu", "--context", 64)
CACHES = [[], ["--cache", "none"]]


@pytest.mark.parametrize("cache", CACHES)
def test_weft_run(made: Any, cache: list[str]) -> None:
    folder, reference = made("opt")
    said = json.loads(output_of("run", folder, "some words", "--json", *CPU, *cache,
                                "--max-new-tokens", 6))  # fmt: skip
    ids = loaded(folder).encode("some words")
    assert said["ids"] == kit.greedy(reference, ids, 6)


@pytest.mark.parametrize("cache", CACHES)
def test_weft_chat(made: Any, tmp_path: Path, cache: list[str]) -> None:
    folder = tmp_path / "m"
    shutil.copytree(made("opt")[0], folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    done = CliRunner().invoke(
        cli, ["chat", str(folder), *map(str, CPU), *cache, "--max-new-tokens", "4"], input="hi\n"
    )
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("cache", CACHES)
def test_weft_bench_and_eval(made: Any, tmp_path: Path, cache: list[str]) -> None:
    folder, _ = made("opt")
    sizes = ("--prompt-tokens", 8, "--max-new-tokens", 4, "--repeats", 1)
    assert "tg4" in output_of("bench", "model", folder, "--device", "cpu", *sizes, *cache)
    (tmp_path / "text.txt").write_text("these are some words to read. " * 20)
    assert "perplexity" in output_of("eval", folder, "--text", tmp_path / "text.txt", *CPU, *cache)


def test_weft_explain(made: Any) -> None:
    assert "matvec" in output_of("explain", made("opt")[0], "--device", "cpu", "--step", "decode")


@pytest.mark.parametrize("cache", [None, "none"])
def test_it_is_served(made: Any, cache: str | None) -> None:
    """Several requests at once have the texts that each has alone."""
    folder, _ = made("opt")
    model = loaded(folder, cache=cache)
    prompts = ["some words", "other words", "a", "what these words are about"]
    alone = [model.generate(prompt, 6).text for prompt in prompts]

    def ask(prompt: str) -> str:
        given = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
        status, said, _ = server.ask("POST", "/v1/completions", given)
        assert status == 200, said
        made: str = said["choices"][0]["text"]
        return made

    load = {"device": "cpu", "context": 64, "cache": cache}
    with serving({"m": str(folder)}, load=load) as server, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, prompts)) == alone


# -- write ----------------------------------------------------------------------------------------


def test_weft_quantize(made: Any, tmp_path: Path) -> None:
    words = ("quantize", made("opt")[0], "-o", tmp_path / "q", "--scheme", "int8")
    assert "--method search" in str(weft_command(*words).exception)
    assert not (tmp_path / "q").exists()
    assert "bits per packed weight" in output_of(*words, "--method", "search")
    assert loaded(tmp_path / "q").generate("some words", 4).ids


@pytest.mark.parametrize("target", few(["cpu", "sm_80", "gfx1100"], "sm_80"))
def test_packed_models_compile_for_other_machines(made: Any, tmp_path: Path, target: str) -> None:
    model = loaded(made("opt")[0], quant="int4", max_batch=1)
    saved.save(model, tmp_path / "m.weft", target, caps_of(target), {}, False)
    marks = {"cpu": "define", "sm_80": ".target sm_80", "gfx1100": "s_endpgm"}
    text = output_of("explain", tmp_path / "m.weft", "--show", "source", "--step", "decode")
    assert marks[target] in text
    if target == "cpu":
        again = weft.load(tmp_path / "m.weft", device="cpu")
        assert again.generate([5, 6, 7], 8).ids == model.generate([5, 6, 7], 8).ids
    elif target == "sm_80" and ptxas.find() is not None:
        assert "spills" in output_of("explain", tmp_path / "m.weft", "--step", "decode")


def test_what_without_a_cache_is_not_written(made: Any, tmp_path: Path) -> None:
    from weft.web.export import export_web

    model = loaded(made("opt")[0], cache="none")
    with pytest.raises(UsageError, match='cache="none"'):
        export_web(model, tmp_path / "page")


# -- train ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", few(["opt", "bloom", "flex_olmo"], "opt", "bloom"))
def test_adapters_have_transformers_gradients(made: Any, tmp_path: Path, kind: str) -> None:
    peft = pytest.importorskip("peft")
    folder, _ = made(kind)
    base = kit.MODEL_FOR_CAUSAL_LM_MAPPING[type(kit.config_of(kind))].from_pretrained(
        folder, attn_implementation="eager"
    )
    targets = {
        "opt": ["q_proj", "fc2"], "bloom": ["query_key_value"], "flex_olmo": ["q_proj", "o_proj"]
    }[kind]  # fmt: skip
    lora = peft.LoraConfig(r=3, lora_alpha=6, target_modules=targets, init_lora_weights=False)
    adapted = peft.get_peft_model(base, lora).eval()
    adapted.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(4, 512, (2, 13))
    given = torch.tensor(ids)
    wanted = torch.nn.functional.cross_entropy(
        adapted(input_ids=given[:, :-1], use_cache=False).logits.flatten(0, 1),
        given[:, 1:].flatten(),
    )
    wanted.backward()
    config, _ = base_source(read_config(folder), folder)
    adapter = peft_files.read(tmp_path, config)
    config = dataclasses.replace(config, adapter_scale=adapter.scale)
    weights = {**base_weights(folder), **adapter.weights}
    model = TrainableDecoder(config, weights, 12, adapters.is_adapter)
    loss = model.loss(weft.tensor(ids[:, :-1].astype("i")), weft.tensor(ids[:, 1:].astype("i")))
    loss.backward()
    assert abs(float(loss.numpy()) - wanted.item()) < 1e-5
    names = adapters.file_names(config, adapter.weights)
    theirs = dict(adapted.named_parameters())
    for key, tensor in model.named_parameters():
        grad = theirs[names[key].replace(".weight", ".default.weight")].grad.numpy()
        np.testing.assert_allclose(tensor.grad.numpy(), grad, atol=1e-5 * np.abs(grad).max())


TRAIN = """
[data]
paths = ["{texts}"]
[model]
from = "{base}"
{model}
[train]
steps = 3
batch = 2
context = 24
device = "cpu"
{train}
[output]
folder = "{out}"
"""


def config_file(folder: Path, base: Path, more: str = "", model: str = "", train: str = "") -> Path:
    texts = folder / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("these are some words to learn. " * 60)
    at = folder / "config.toml"
    given = {"texts": texts, "base": base, "out": folder / "run", "model": model, "train": train}
    at.write_text(TRAIN.format(**given) + more)
    return at


def test_weft_train_writes_an_adapter(made: Any, tmp_path: Path) -> None:
    folder, _ = made("opt")
    done = weft_command("train", config_file(tmp_path, folder, "[lora]\nrank = 2\n"))
    assert done.exit_code == 0, done.output
    model = loaded(folder, adapters={"mine": tmp_path / "run" / "adapter"})
    ids = [5, 6, 7]
    trained = model.generate(ids, 8, adapter="mine").ids
    assert len(trained) == 8
    assert loaded(tmp_path / "run" / "adapter").generate(ids, 8).ids == trained


REFUSED = {
    "whole": ({}, "weft trains only adapters for such models; add [lora]"),
    "dropout": ({"more": "[lora]\nrank = 2\n", "model": "dropout = 0.1"}, "[model] dropout"),
    "checkpointing": (
        {"more": "[lora]\nrank = 2\n", "train": "checkpointing = true"}, "[train] checkpointing"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_training_does_not_do(made: Any, tmp_path: Path, what: str) -> None:
    given, said = REFUSED[what]
    done = weft_command("train", config_file(tmp_path, made("opt")[0], **given))
    assert said in str(done.exception)


@pytest.mark.parametrize(
    "family, what",
    [("falcon_mamba", "layers with a recurrence"), ("gpt_oss", "attention sinks")],
)
def test_models_that_are_not_trained(tmp_path: Path, family: str, what: str) -> None:
    kit.written(family, tmp_path)
    with pytest.raises(ModelError, match=f"cannot be trained: it has {what}"):
        base_weights(tmp_path)


def test_weft_merge(made: Any, tmp_path: Path) -> None:
    folder, _ = made("opt")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="load the model with --adapter instead"):
        merge_folders(folder, tmp_path / "a", tmp_path / "out")
