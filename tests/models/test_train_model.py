"""The decoder as it is trained: losses and gradients against transformers, runs against PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from model_zoo import DECODERS, FAMILIES, VOCAB, write_model
from rows import few

import weft
from weft import optim
from weft.core.errors import UsageError
from weft.models.weights import adapters, peft_files
from weft.models.weights.names import checkpoint_names
from weft.training import TrainableDecoder
from weft.training.merge import merge_folders
from weft.training.model import folder_weights
from weft.training.settings import OptimizerSettings, TrainSettings
from weft.training.step import make_optimizer, make_step

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, VOCAB, (2, 13)).astype(np.int32)
KEY = np.zeros(2, np.uint32)


def torch_loss(model, ids: np.ndarray):
    """Mean cross-entropy of the next tokens, as the model's users compute it."""
    x = torch.tensor(ids, dtype=torch.int64)
    logits = model(x[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), x[:, 1:].reshape(-1))


def pair(folder: Path, **options) -> TrainableDecoder:
    """The model in a folder, ready to train."""
    config, weights = folder_weights(folder)
    return TrainableDecoder(config, weights, 16, **options)


def grads(
    model: TrainableDecoder, device: str | None = "cpu"
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of IDS, by a compiled function; without a device by NumPy."""

    def run(ids, targets):
        loss = model.loss(ids, targets)
        loss.backward()
        return loss

    batch = [weft.tensor(x.copy()) for x in (IDS[:, :-1], IDS[:, 1:])]
    loss = (weft.compile(run, device) if device else run)(*batch)
    return loss.item(), {r: np.array(t.grad.numpy()) for r, t in model.named_parameters()}


SIZES = {"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB}


# Of each switch of the decoder a family.
SWITCHES = ("gemma4", "cohere2", "phi", "nemotron", "hunyuan", "apertus")


@pytest.mark.parametrize("name", [*few(DECODERS, "gpt2", "gemma3"), *SWITCHES])
def test_loss_and_gradients(name: str, tmp_path: Path) -> None:
    reference = write_model(name, tmp_path, changed=SIZES if name in FAMILIES else None)
    want = torch_loss(reference, IDS)
    want.backward()
    model = pair(tmp_path)
    loss, found = grads(model, None if name in FAMILIES else "cpu")
    assert abs(loss - want.item()) < 2e-5
    params = dict(reference.named_parameters())
    for role, full in checkpoint_names(model.config).items():
        if role.endswith(("scalar", "xielu_beta", "xielu_eps")):
            continue  # which transformers does not train
        name = full if full in params else full.removeprefix("transformer.")
        expected = params[name].grad.numpy()
        scale = np.abs(expected).max() + 1e-6
        np.testing.assert_allclose(found[role] / scale, expected / scale, atol=2e-4, err_msg=role)


def test_checkpointing_changes_no_gradient(tmp_path: Path) -> None:
    write_model("llama2", tmp_path)
    plain, again = pair(tmp_path), pair(tmp_path, checkpointing=True)
    a, b = grads(plain), grads(again)
    assert a[0] == b[0]
    for role in a[1]:
        np.testing.assert_allclose(b[1][role], a[1][role], atol=1e-6, err_msg=role)


def test_what_layers_share_is_not_computed_again(tmp_path: Path) -> None:
    write_model("gemma4", tmp_path)
    with pytest.raises(UsageError, match="share keys and values"):
        pair(tmp_path, checkpointing=True)


def test_dropout_follows_the_key(tmp_path: Path) -> None:
    write_model("gpt2", tmp_path)
    model = pair(tmp_path, dropout=0.3, checkpointing=True)

    def run(key: np.ndarray) -> tuple[float, np.ndarray]:
        model.key = weft.tensor(key)
        loss, found = grads(model)
        for _, t in model.named_parameters():
            t.grad = None
        return loss, found["1.up.w"]

    one, same, other = run(KEY), run(KEY), run(KEY + 1)
    assert one[0] == same[0] and np.array_equal(one[1], same[1])
    assert one[0] != other[0]
    model.key = None
    plain = pair(tmp_path)
    assert grads(model)[0] == grads(plain)[0]


def torch_adamw(named: dict[str, torch.Tensor], o: OptimizerSettings) -> torch.optim.AdamW:
    groups = [
        {"params": [p for r, p in named.items() if wd(r)], "weight_decay": o.weight_decay},
        {"params": [p for r, p in named.items() if not wd(r)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], o.lr, o.betas, o.eps)


def wd(role: str) -> bool:
    return not role.endswith(".b") and "norm" not in role


def run_torch(
    loss_of, named: dict[str, torch.Tensor], o: OptimizerSettings, batches
) -> list[float]:
    """The same loop in PyTorch: constant rate, clipping."""
    opt, losses = torch_adamw(named, o), []
    for ids in batches:
        opt.zero_grad()
        loss = loss_of(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(named.values(), o.clip)
        opt.step()
        losses.append(loss.item())
    return losses


def run_weft(model: TrainableDecoder, o: OptimizerSettings, batches, device="cpu") -> list[float]:
    settings = TrainSettings(steps=len(batches), batch=2, context=12)
    step = make_step(model, make_optimizer(model, o, len(batches)), settings, o, device)
    return [
        step(ids[None, :, :-1].copy(), ids[None, :, 1:].copy(), KEY)["loss"].item()
        for ids in batches
    ]


PLAIN = OptimizerSettings(lr=1e-3, warmup=0, schedule="constant", clip=1.0)
STEPS = [20, pytest.param(200, marks=pytest.mark.slow)]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", few(["gpt2", "llama3"], "llama3"))
def test_a_run_follows_pytorch(name: str, steps: int, tmp_path: Path) -> None:
    batches = RNG.integers(0, VOCAB, (4, 2, 13)).astype(np.int32)[np.arange(steps) % 4]
    reference = write_model(name, tmp_path)
    model = pair(tmp_path)
    roles = {v: k for k, v in checkpoint_names(model.config).items()}
    params = dict(reference.named_parameters())
    named = {roles[n]: p for n, p in params.items()}
    want = run_torch(lambda ids: torch_loss(reference, ids), named, PLAIN, batches)
    got = run_weft(model, PLAIN, batches)
    np.testing.assert_allclose(got, want, atol=1e-3)
    assert got[-1] < got[0] - 0.2
    again = pair(tmp_path)
    assert run_weft(again, PLAIN, batches) == got
    for role, value in again.arrays().items():
        np.testing.assert_array_equal(value, model.arrays()[role])


class LoraLinear(torch.nn.Module):
    """PEFT's layer in a few lines: the frozen layer plus scale (x A^T) B^T."""

    def __init__(self, inner, a: np.ndarray, b: np.ndarray, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale
        self.a, self.b = (torch.nn.Parameter(torch.tensor(v)) for v in (a, b))

    def forward(self, x):
        return self.inner(x) + (x @ self.a.T @ self.b.T) * self.scale


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    "name, targets",
    few(
        [("gpt2", ("c_attn", "c_proj")), ("llama2", ("q_proj", "down_proj"))],
        ("gpt2", ("c_attn", "c_proj")),
    ),
)
def test_lora_follows_pytorch(name: str, targets, steps: int, tmp_path: Path) -> None:
    batches = RNG.integers(0, VOCAB, (3, 2, 13)).astype(np.int32)[np.arange(steps) % 3]
    reference = write_model(name, tmp_path).eval()
    reference.requires_grad_(False)
    config, weights = folder_weights(tmp_path)
    roles = adapters.target_roles(config, targets)
    low = adapters.fresh(config, roles, rank=3, seed=5)
    config = replace(config, adapter_scale=8 / 3)
    model = TrainableDecoder(config, weights | low, 16, trainable=lambda r: ".lora_" in r)
    names = adapters.modules(config)
    trained = {}
    for role in roles:
        parent, _, last = names[role].rpartition(".")
        holder = reference.get_submodule(parent)
        layer = LoraLinear(
            getattr(holder, last), low[f"{role}.lora_a"], low[f"{role}.lora_b"], 8 / 3
        )
        setattr(holder, last, layer)
        trained |= {f"{role}.lora_a": layer.a, f"{role}.lora_b": layer.b}
    o = replace(PLAIN, lr=2e-3)  # at 5e-3 PyTorch in float32 leaves its own float64 run by 8e-3
    want = run_torch(lambda ids: torch_loss(reference, ids), trained, o, batches)
    got = run_weft(model, o, batches)
    np.testing.assert_allclose(got, want, atol=1e-3)
    assert got[(steps - 1) // 3 * 3] < got[0]  # the same batch, at the end and at the start
    for role in roles:
        np.testing.assert_array_equal(model.arrays()[f"{role}.w"], weights[f"{role}.w"])
    if steps > 20:
        return
    adapter = adapters.Adapter(
        3, 8.0, 0.0, str(tmp_path), {r: v for r, v in model.arrays().items() if ".lora_" in r}
    )
    out = tmp_path / "adapter"
    out.mkdir()
    adapters.write(out, config, adapter)
    want_logits = reference(torch.tensor(IDS[:1].astype(np.int64))).logits[0].detach().numpy()
    got_logits = weft.load(out, device="cpu").logits(IDS[0])
    np.testing.assert_allclose(got_logits, want_logits, atol=2e-3)


def test_adapters_are_named_as_peft_names_them(tmp_path: Path) -> None:
    """Names and shapes as PEFT's documentation of its checkpoint format gives them."""
    from safetensors.numpy import load_file

    base = tmp_path / "base"
    write_model("llama2", base)
    config, _ = folder_weights(base)
    roles = adapters.target_roles(config, ())
    weights = adapters.fresh(config, roles, rank=2, seed=0)
    adapters.write(tmp_path, config, adapters.Adapter(2, 4.0, 0.0, str(base), weights))
    found = {k: v.shape for k, v in load_file(tmp_path / "adapter_model.safetensors").items()}
    want = {}
    for i in range(config.layers):
        for layer, width in (("q_proj", 32), ("v_proj", 16)):
            stem = f"base_model.model.model.layers.{i}.self_attn.{layer}"
            want |= {f"{stem}.lora_A.weight": (2, 32), f"{stem}.lora_B.weight": (width, 2)}
    assert found == want
    back = peft_files.read(tmp_path, config)
    assert back.scale == 2.0 and back.weights.keys() == weights.keys()


def test_merging_gives_the_same_model(tmp_path: Path) -> None:
    base, low, out = (tmp_path / n for n in ("base", "low", "out"))
    write_model("gpt2", base)
    low.mkdir()
    config, _ = folder_weights(base)
    weights = adapters.fresh(config, adapters.target_roles(config, ()), rank=2, seed=0)
    weights = {k: RNG.standard_normal(v.shape).astype(np.float32) for k, v in weights.items()}
    adapters.write(low, config, adapters.Adapter(2, 1.0, 0.0, str(base), weights))
    merge_folders(base, low, out)
    one = weft.load(out, device="cpu", context=16).logits(IDS[0])
    two = weft.load(low, device="cpu", context=16).logits(IDS[0])
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - weft.load(base, device="cpu", context=16).logits(IDS[0])).max() > 0.1


@pytest.mark.parametrize("precision", few(["bfloat16", "float16"], "float16"))
def test_mixed_precision_stays_close(precision: str, tmp_path: Path) -> None:
    write_model("llama3", tmp_path)
    batches = RNG.integers(0, VOCAB, (2, 2, 13)).astype(np.int32)[np.arange(10) % 2]
    want = run_weft(pair(tmp_path), PLAIN, batches)
    model = pair(tmp_path, compute=precision)
    scaler = optim.LossScaler() if precision == "float16" else None
    settings = TrainSettings(steps=10, batch=2, context=12)
    step = make_step(model, make_optimizer(model, PLAIN, 10), settings, PLAIN, "cpu", scaler)
    got = [step(b[None, :, :-1].copy(), b[None, :, 1:].copy(), KEY)["loss"].item() for b in batches]
    np.testing.assert_allclose(got, want, atol=0.05)
    assert all(t.dtype == weft.float32 for _, t in model.named_parameters())
