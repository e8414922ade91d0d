"""Adapters trained beside packed weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from model_zoo import VOCAB, write_model
from present import opened
from train_kit import text_file, tiny

import weft
from weft.cli.train import merge
from weft.core.errors import UsageError
from weft.core.packed import Form, Packed, dequantized, packed_codes
from weft.hub.box import box_folder
from weft.importers.hf_config import read_config
from weft.importers.safetensors import SafetensorsFile, open_checkpoint, save_file
from weft.models.weights import adapters
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import checkpoint_names
from weft.program.program import Program
from weft.quantize.compressed import quantization_config, tensors_of
from weft.training import TrainableDecoder, loop
from weft.training.model import base_weights, config_of
from weft.training.report import read_log
from weft.training.settings import TrainingSettings

FORM = Form(4, 32, offset=8)
IDS = np.random.default_rng(0).integers(0, VOCAB, (2, 13)).astype(np.int32)


def rounded(w: np.ndarray) -> Packed:
    """w[N, K] in 4 bits, to nearest."""
    groups = w.astype(np.float32).reshape(len(w), -1, FORM.group)
    scales = (np.abs(groups).max(2) / 7).astype(np.float16)
    codes = np.clip(np.rint(groups / scales[:, :, None].astype(np.float32)) + 8, 0, 15)
    parts = packed_codes(FORM, codes.reshape(w.shape).astype(np.uint8))
    return Packed(FORM, {**parts, "scales": scales})


def pack_folder(source: Path, out: Path) -> Path:
    """The model in a folder with its layers' matrices in 4 bits, as compressed-tensors has them."""
    raw = read_config(source)
    config = config_of(raw)
    layout = decoder_layout(config).weights
    kinds = {name: layout[role].kind for role, name in checkpoint_names(config).items()}
    tensors: dict[str, np.ndarray] = {}
    forms: dict[str, Form] = {}
    for name, value in open_checkpoint(source).items():
        layer = name.removesuffix(".weight")
        if kinds[name] == "matrix":
            tensors |= tensors_of(layer, rounded(value))
            forms[layer] = FORM
        else:
            tensors[name] = value
    out.mkdir()
    save_file(out / "model.safetensors", tensors)
    said = quantization_config(forms, ["lm_head"])
    (out / "config.json").write_text(json.dumps({**raw.data, "quantization_config": said}))
    for path in source.glob("*token*.json"):
        shutil.copy(path, out / path.name)
    return out


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' model in float64 with the numbers of the packed weights, and their folder."""
    folder = tmp_path_factory.mktemp("packed")
    reference = write_model("llama2", folder / "whole", changed={"intermediate_size": 64}).double()
    packed = pack_folder(folder / "whole", folder / "packed")
    state = reference.state_dict()
    names = checkpoint_names(config_of(read_config(packed)))
    for role, value in base_weights(packed).items():
        whole = dequantized(*value) if isinstance(value, Packed) else value
        state[names[role]].copy_(torch.tensor(whole))
    return reference, packed


def models(folder: Path, **options: Any) -> list[TrainableDecoder]:
    """The same adapters beside packed weights and beside the floats that these stand for."""
    config, weights = config_of(read_config(folder)), base_weights(folder)
    low = adapters.fresh(config, adapters.target_roles(config, ["q_proj", "down_proj"]), 2, 0)
    rng = np.random.default_rng(1)  # B is zero at first, and A then has no gradient
    low = {role: v + rng.standard_normal(v.shape).astype(np.float32) / 8 for role, v in low.items()}
    wide = {r: dequantized(*v) if isinstance(v, Packed) else v for r, v in weights.items()}
    config = replace(config, adapter_scale=2.0)
    return [
        TrainableDecoder(config, {**held, **low}, 16, lambda role: ".lora_" in role, **options)
        for held in (weights, wide)
    ]


def gradients(model: TrainableDecoder, device: str) -> tuple[dict[str, np.ndarray], Any]:
    """The loss and the gradients of IDS, and the Program."""

    def run(ids: weft.Tensor, targets: weft.Tensor) -> weft.Tensor:
        loss = model.loss(ids, targets)
        loss.backward()
        return loss

    compiled = weft.compile(run, device)
    out = {"loss": compiled(IDS[:, :-1].copy(), IDS[:, 1:].copy()).numpy()}
    out |= {role: np.array(t.grad.numpy()) for role, t in model.named_parameters()}
    return out, compiled.programs()[0]


def nbytes(program: Program, role: str) -> int:
    return sum(buffer.nbytes for buffer in program.buffers if buffer.role == role)


def test_gradients_are_those_over_the_floats(pair: tuple[Any, Path]) -> None:
    """And those of finite differences of transformers' loss."""
    reference, folder = pair
    model, wide = models(folder)
    found, program = gradients(model, "cpu")
    want, other = gradients(wide, "cpu")
    assert len(found) == 13
    for role, value in want.items():
        np.testing.assert_array_equal(found[role], value, err_msg=role)
    whole = sum(
        dequantized(*v).nbytes for v in base_weights(folder).values() if isinstance(v, Packed)
    )
    assert nbytes(program, "weight") < nbytes(other, "weight") - 0.8 * whole
    assert nbytes(program, "arena") < nbytes(other, "arena") + whole / 3  # two matrices at a time

    low = {r: t.numpy().astype(np.float64) for r, t in model.named_parameters()}
    layers = {
        role: reference.get_submodule(adapters.modules(model.config)[role])
        for role in (key.removesuffix(".lora_a") for key in low if key.endswith("_a"))
    }
    plain = {role: layer.weight.detach().clone() for role, layer in layers.items()}
    ids = torch.tensor(IDS, dtype=torch.int64)

    def loss(low: dict[str, np.ndarray]) -> float:
        with torch.no_grad():
            for role, layer in layers.items():
                change = 2.0 * low[f"{role}.lora_b"] @ low[f"{role}.lora_a"]
                layer.weight.copy_(plain[role] + torch.tensor(change))
            logits = reference(ids[:, :-1]).logits.reshape(-1, VOCAB)
            return torch.nn.functional.cross_entropy(logits, ids[:, 1:].reshape(-1)).item()

    assert abs(loss(low) - found["loss"]) < 1e-5
    for key, at in (("1.down.lora_a", (1, 40)), ("0.q.lora_b", (3, 0))):
        step = np.zeros_like(low[key])
        step[at] = 1e-3  # transformers' norms are float32, whatever the model is
        slope = (loss({**low, key: low[key] + step}) - loss({**low, key: low[key] - step})) / 2e-3
        assert abs(found[key][at] - slope) < 2e-5 + 1e-3 * abs(slope)


@pytest.mark.slow
def test_vulkan_has_the_gradients_of_the_cpu(pair: tuple[Any, Path]) -> None:
    opened("vulkan")
    model = models(pair[1])[0]
    found, _ = gradients(model, "vulkan")
    for role, value in gradients(models(pair[1])[0], "cpu")[0].items():
        np.testing.assert_allclose(found[role], value, atol=1e-4, rtol=1e-3, err_msg=role)


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    """The model in the box in 4 bits: the loss falls, a run resumes, the adapter loads and merges;
    without [lora] it is refused."""
    text = text_file(tmp_path)
    base = pack_folder(box_folder(), tmp_path / "base")
    sections: dict[str, Any] = {
        "model": {"from": str(base)}, "lora": {"rank": 2},
        "output": {"sample_every": 6, "sample_prompt": "Once", "sample_tokens": 2},
        "train": {"steps": 6},
    }  # fmt: skip

    def settings(name: str, **more: Any) -> TrainingSettings:
        return tiny(text, tmp_path / name, **{**sections, **more})

    result = loop.train(settings("whole"))
    log = read_log(tmp_path / "whole" / "log.jsonl")
    assert any(entry.get("sample", "").startswith("Once") for entry in log)
    assert result.losses[-1] < result.losses[0] - 0.5
    loop.train(settings("parts"), until=4)
    resumed = loop.train(settings("parts"), resume=True)
    assert resumed.losses == result.losses[4:]
    one, two = (
        SafetensorsFile(tmp_path / name / "adapter" / adapters.WEIGHTS)
        for name in ("whole", "parts")
    )
    assert all(np.array_equal(one[name], two[name]) for name in one)

    ids = [5, 9, 100, 7]
    with_adapter = weft.load(result.folder, device="cpu", context=16, cache="f32")
    assert with_adapter.weights["0.q.w.codes"].dtype == np.uint8
    got = with_adapter.logits(ids)
    assert (
        np.abs(got - weft.load(base, device="cpu", context=16, cache="f32").logits(ids)).max()
        > 0.05
    )
    out = tmp_path / "merged"
    command = [str(base), str(result.folder), "-o", str(out), "--dtype", "float32"]
    said = CliRunner().invoke(merge, command)
    assert said.exit_code == 0 and "holds packed weights" in said.output, said.output
    np.testing.assert_allclose(
        weft.load(out, device="cpu", context=16, cache="f32").logits(ids), got, atol=2e-4
    )
    with pytest.raises(UsageError, match=r"packed weights, which cannot be trained; add \[lora\]"):
        loop.train(settings("full", lora={}))
