"""Adapters of mlx-lm and of llama.cpp (GGUF): the same numbers as PEFT's folder of them, in every
place that takes an adapter, and what damaged and foreign files get."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_zoo import arch_of, tensor_name, write_gguf
from model_zoo import VOCAB, write_model, write_tokenizer
from stepping import scores
from test_peft_forms import FORMS, IDS, agree, written

import weft
from weft.cli.main import invoke
from weft.core.errors import ModelError, UsageError, WeftError
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.training.merge import merge_folders

PREFIX = "base_model.model."
Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def peft() -> Any:
    return pytest.importorskip("peft")


def parts(low: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors of PEFT's folder without their prefix, and its config."""
    file = SafetensorsFile(low / "adapter_model.safetensors")
    tensors = {name.removeprefix(PREFIX): np.array(value) for name, value in file.items()}
    return tensors, json.loads((low / "adapter_config.json").read_text())


def as_mlx(low: Path, folder: Path, base: Path, **changed: Any) -> Path:
    """PEFT's adapter as mlx-lm writes it."""
    tensors, config = parts(low)
    out: Tensors = {}
    for name, value in tensors.items():
        if "lora_embedding_" in name:
            out[
                name.replace("lora_embedding_A", "lora_a").replace("lora_embedding_B", "lora_b")
            ] = value.T
        elif ".lora_A." in name or ".lora_B." in name:
            out[name.replace(".lora_A.weight", ".lora_a").replace(".lora_B.weight", ".lora_b")] = (
                value.T
            )
        elif "lora_magnitude_vector" in name:
            out[name.replace("lora_magnitude_vector", "m")] = value
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    folder.mkdir()
    save_file(folder / "adapters.safetensors", {k: np.ascontiguousarray(v) for k, v in out.items()})
    said = {
        "fine_tune_type": "dora" if config.get("use_dora") else "lora", "num_layers": -1,
        "model": str(base), "batch_size": 4, "train": True,
        "lora_parameters": {"rank": config["r"], "scale": scale, "dropout": 0.0, "keys": ["x"]},
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(said | changed))
    return folder


def as_gguf(
    low: Path, path: Path, base: Path, change: Callable[[Tensors], None] = lambda t: None,
    keys: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """PEFT's adapter as llama.cpp's converter writes it, with the rows of llama's queries and keys
    in the order of its rope."""
    tensors, config = parts(low)
    model = json.loads((base / "config.json").read_text())
    arch = arch_of(model)
    said = {"general.type": "adapter", "adapter.type": "lora"} | dict(keys or {})
    writer = gguf.GGUFWriter(path, said.pop("general.architecture", arch))
    said = {"adapter.lora.alpha": float(config["lora_alpha"])} | said
    out: Tensors = {}
    for name, value in tensors.items():
        if name.endswith("base_layer.weight"):
            continue
        half = "a" if "_A" in name else "b"
        layer = name.split(".lora_")[0]
        ours = tensor_name(arch, f"{layer}.weight")
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        part = ours.split(".")[-2]
        if half == "b" and arch == "llama" and part in heads:
            rows = value.reshape(model[heads[part]], 2, -1, value.shape[1]).swapaxes(1, 2)
            value = rows.reshape(value.shape)
        if part == "token_embd" and half == "a":
            value = value.T
        out[f"{ours}.lora_{half}"] = value
    change(out)
    for key, value in said.items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    for name, value in out.items():
        writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LLAMA = {"target_modules": ["q_proj", "k_proj", "o_proj", "up_proj"]}
MLX = {
    "lora": ("llama2", LLAMA, True), "dora": FORMS["dora"], "rsLoRA": FORMS["dora, rsLoRA"],
    "embedding": FORMS["embedding"],
}  # fmt: skip


@pytest.mark.parametrize("form", MLX)
def test_of_mlx(form: str, tmp_path: Path, peft: Any) -> None:
    family, fields, rows = MLX[form]
    base, low = tmp_path / "base", tmp_path / "low"
    _, want = written(peft, family, fields, base, low)
    folder = as_mlx(low, tmp_path / "mlx", base)
    agree(weft.load(folder, device="cpu", context=16).logits(IDS), want)
    merge_folders(base, folder, tmp_path / "out")
    agree(weft.load(tmp_path / "out", device="cpu", context=16).logits(IDS), want)
    if rows:
        model: Any = weft.load(base, device="cpu", context=16, adapters={"a": folder})
        agree(scores(model.runner(), IDS.tolist(), adapter="a"), want)


def test_of_mlx_in_full(tmp_path: Path) -> None:
    """fine_tune_type full: the file holds whole weights."""
    base, other, folder = (tmp_path / n for n in ("base", "other", "mlx"))
    write_model("llama2", base, changed={"vocab_size": VOCAB})
    write_model("llama2", other, changed={"vocab_size": VOCAB, "initializer_range": 0.3})
    changed = dict(SafetensorsFile(other / "model.safetensors").items())
    folder.mkdir()
    save_file(folder / "adapters.safetensors", {k: np.array(v) for k, v in changed.items()})
    said = {"fine_tune_type": "full", "model": str(base), "lora_parameters": None}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    got = weft.load(folder, device="cpu", context=16).logits(IDS)
    agree(got, weft.load(other, device="cpu", context=16).logits(IDS))


@pytest.mark.parametrize(("family", "fields", "rows"), [
    ("llama2", LLAMA, True), ("qwen2", {"target_modules": ["q_proj", "v_proj", "down_proj"]}, True),
    ("llama2", {**LLAMA, "rank_pattern": {"q_proj": 5}, "alpha_pattern": {"q_proj": 5}}, True),
    ("llama2", {"target_modules": ["embed_tokens", "q_proj"]}, False),
])  # fmt: skip
def test_of_llama_cpp(
    family: str, fields: dict[str, Any], rows: bool, tmp_path: Path, peft: Any
) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    alike = "rank_pattern" in fields  # llama.cpp has one alpha; with alpha 0 the scale is 1
    _, want = written(peft, family, fields, base, low)

    def change(tensors: Tensors) -> None:
        for name in tensors:
            if alike and name.endswith("_b") and "attn_q" not in name:
                tensors[name] = tensors[name] * np.float32(2.5)

    keys = {"adapter.lora.alpha": 0.0} if alike else {}
    path = as_gguf(low, tmp_path / "a.gguf", base, change, keys)
    merge_folders(base, path, tmp_path / "out")
    agree(weft.load(tmp_path / "out", device="cpu", context=16).logits(IDS), want)
    if not rows:
        return
    model: Any = weft.load(base, device="cpu", context=16, adapters={"a": path})
    agree(scores(model.runner(), IDS.tolist(), adapter="a"), want)
    model = weft.load(
        write_gguf(base, tmp_path / "base.gguf"), device="cpu", context=16, adapters={"a": path}
    )
    agree(scores(model.runner(), IDS.tolist(), adapter="a"), want)


def test_in_commands(tmp_path: Path, peft: Any, capsys: pytest.CaptureFixture[str]) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    written(peft, "llama2", LLAMA, base, low)
    write_tokenizer(base)
    made = {"peft": low, "mlx": as_mlx(low, tmp_path / "mlx", base)}
    made["gguf"] = as_gguf(low, tmp_path / "a.gguf", base)
    texts = []
    for path in made.values():
        asked = ["run", str(base), "the fox", "--device", "cpu", "--json", "--max-new-tokens", "6"]
        assert invoke([*asked, "--adapter", str(path)]) == 0
        texts.append(json.loads(capsys.readouterr().out)["ids"])
    assert texts[0] == texts[1] == texts[2]
    with pytest.raises(UsageError, match=r"holds a LoRA adapter; give it with its model: weft run"):
        weft.load(made["gguf"], device="cpu")


# -- damaged and foreign files --------------------------------------------------------------------

A, B = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"
GGUF_CHANGES: list[tuple[Callable[[Tensors], Any], dict[str, Any], str]] = [
    (lambda t: t.pop(A), {}, "half of the adapter"),
    (lambda t: t.clear() or t.update({"x.lora_a": np.ones((2, 2), np.float32)}), {}, "no layer"),
    (lambda t: t.update({A: t[A][:, :-1]}), {}, "has shape"),
    (lambda t: t.update({B: t[B][:-1]}), {}, "rows for 4 heads"),
    (lambda t: t.update({B: t[B][:-8]}), {}, "has shape"),
    (lambda t: t.update({A: t[A] * np.nan}), {}, "NaN"),
    (lambda t: t.update({"blk.9.attn_q.weight.lora_a": t[A]}), {}, "no layer"),
    (lambda t: t.update({"blk.0.attn_q.weight": t[A]}), {}, "replaces a matrix"),
    (lambda t: None, {"adapter.type": "ia3"}, "adapter.type is 'ia3'"),
    (lambda t: None, {"general.type": "model"}, "general.type is 'model'"),
    (lambda t: None, {"adapter.lora.alpha": -1.0}, "adapter.lora.alpha is -1"),
    (lambda t: None, {"adapter.lora.alpha": float("nan")}, "adapter.lora.alpha is nan"),
    (lambda t: None, {"adapter.lora.alpha": "x"}, "adapter.lora.alpha is 'x'"),
    (lambda t: None, {"adapter.alora.invocation_tokens": 3}, "adapter.alora.invocation_tokens"),
    (lambda t: None, {"general.architecture": "qwen2"}, "for architecture 'qwen2'"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "keys", "said"), GGUF_CHANGES)
def test_gguf_files_that_are_not_taken(
    change: Any, keys: dict[str, Any], said: str, tmp_path: Path, peft: Any
) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    written(peft, "llama2", LLAMA, base, low)
    path = as_gguf(low, tmp_path / "a.gguf", base, change, keys)
    with pytest.raises(WeftError, match=said):
        weft.load(base, device="cpu", adapters={"a": path})


@pytest.mark.parametrize(("changed", "said"), [
    ({"fine_tune_type": "ia3"}, "fine_tune_type is 'ia3'"),
    ({"lora_parameters": None}, "lora_parameters is missing"),
    ({"lora_parameters": {"rank": 2}}, "scale is missing"),
    ({"lora_parameters": {"rank": 0, "scale": 1.0}}, "rank is 0"),
    ({"lora_parameters": {"rank": 3, "scale": 1.0}}, "has shape"),
    ({"lora_parameters": {"rank": 2, "scale": float("inf")}}, "scale is"),
    ({"fine_tune_type": "dora"}, "half of what DoRA needs"),
])  # fmt: skip
def test_mlx_folders_that_are_not_taken(
    changed: dict[str, Any], said: str, tmp_path: Path, peft: Any
) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    written(peft, "llama2", LLAMA, base, low)
    folder = as_mlx(low, tmp_path / "mlx", base, **changed)
    with pytest.raises(ModelError, match=said):
        weft.load(folder, device="cpu")


def test_files_that_are_cut(tmp_path: Path, peft: Any) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    written(peft, "llama2", LLAMA, base, low)
    path = as_gguf(low, tmp_path / "a.gguf", base)
    data = path.read_bytes()
    for size in (0, 30, 300, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(WeftError):
            weft.load(base, device="cpu", adapters={"a": path})


def test_unknown_fields_are_named(
    tmp_path: Path, peft: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    written(peft, "llama2", LLAMA, base, low)
    weft.load(as_mlx(low, tmp_path / "mlx", base, swirl=3), device="cpu")
    assert "weft does not know swirl" in capsys.readouterr().err
