"""Training models with experts, against transformers and finite differences in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_zoo import FAMILIES, VOCAB, write_model
from rows import few
from test_train_model import IDS, PLAIN, RNG, SIZES, grads, pair, run_torch, run_weft, torch_loss

import weft
from weft.importers.hf_config import read_config
from weft.models.weights import writing
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.reading import read_weights

# Experts alone, beside one for all tokens, by groups, with a bias that no gradient reaches, weighed
# before, beside a dense part.
EXPERTS = ("mixtral", "qwen3_moe", "olmoe", "qwen2_moe", "glm4_moe", "deepseek_v2", "deepseek_v3",
           "ernie4_5_moe", "granitemoe", "llama4", "gemma4_moe")  # fmt: skip


def written(name: str, folder: Path) -> Any:
    return write_model(name, folder, changed=SIZES if name in FAMILIES else None)


def gradients(reference: Any, folder: Path, model: Any) -> dict[str, np.ndarray]:
    """Returns transformers' gradients by weft's roles: a checkpoint of gradients has the names of
    one of weights."""
    held = {n: p.detach().clone() for n, p in reference.named_parameters()}
    with torch.no_grad():
        for p in reference.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        reference.save_pretrained(folder)
        for n, p in reference.named_parameters():
            p.copy_(held[n])
    found = read_weights(folder, read_config(folder), decoder_layout(model.config))
    return {role: np.asarray(weight.value()) for role, weight in found.items()}


@pytest.mark.parametrize("name", few(EXPERTS, "mixtral", "deepseek_v3"))
def test_loss_and_gradients(name: str, tmp_path: Path) -> None:
    reference = written(name, tmp_path / "m")
    want = torch_loss(reference, IDS)
    want.backward()
    model = pair(tmp_path / "m")
    wanted = gradients(reference, tmp_path / "g", model)
    for device in ("cpu", None) if name == "mixtral" else (None,):
        loss, found = grads(model, device)
        assert abs(loss - want.item()) < 2e-5
        for role, value in wanted.items():
            if role.endswith(("scalar", "router_bias")):
                continue  # which transformers does not train
            scale = np.abs(value).max() + 1e-6
            np.testing.assert_allclose(found[role] / scale, value / scale, atol=2e-4, err_msg=role)
        for _, tensor in model.named_parameters():
            tensor.grad = None


H = 2e-3  # norms of transformers are float32 all the same


def test_finite_differences_in_float64(tmp_path: Path) -> None:
    """Of the loss along the gradient of the experts, and along that of the router."""
    reference = written("mixtral", tmp_path).double()
    reference.set_experts_implementation("eager")  # others have no float64
    _, found = grads(pair(tmp_path), None)
    ways = {
        "experts.gate_up_proj": np.concatenate([found["0.gate_exps.w"], found["0.up_exps.w"]], 1),
        "experts.down_proj": found["0.down_exps.w"],
        "gate.weight": found["0.router.w"],
    }
    params = dict(reference.named_parameters())
    for name, way in ways.items():
        weight, along = params[f"model.layers.0.mlp.{name}"], torch.tensor(way.astype(np.float64))
        losses = []
        with torch.no_grad():
            for step in (H, -2 * H):
                weight.add_(along / along.norm(), alpha=step)
                losses.append(torch_loss(reference, IDS).item())
            weight.add_(along / along.norm(), alpha=H)
        slope = (losses[0] - losses[1]) / (2 * H)
        assert slope == pytest.approx(float(along.norm()), rel=1e-3)


def test_a_run_follows_pytorch_and_is_written(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    batches = RNG.integers(0, VOCAB, (4, 2, 13)).astype(np.int32)[np.arange(12) % 4]
    reference = written("mixtral", tmp_path / "m")
    model = pair(tmp_path / "m")
    named = dict(reference.named_parameters())
    want = run_torch(lambda ids: torch_loss(reference, ids), named, PLAIN, batches)
    got = run_weft(model, PLAIN, batches)
    np.testing.assert_allclose(got, want, atol=1e-3)
    assert got[-1] < got[0] - 0.1
    raw = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "out").mkdir()
    writing.write_model(tmp_path / "out", model.config, raw, tmp_path / "m", model.arrays())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        theirs = again(torch.tensor(IDS[:1].astype("i8"))).logits[0].numpy()
    ours = weft.load(tmp_path / "out", device="cpu", act_dtype="float32").logits(IDS[0])
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
