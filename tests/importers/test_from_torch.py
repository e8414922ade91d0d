"""Programs of torch.export, imported: equal to PyTorch, eagerly and compiled, forward and back."""

from __future__ import annotations

import copy
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from from_torch_kit import DEVICES, Frozen, agree, imported
from present import opened
from rows import few
from torch import nn
from torch.export import Dim
from torch_models import MODELS, Built, exported

import weft
from weft.core.errors import (
    CallError,
    DTypeError,
    ShapeError,
    UsageError,
)
from weft.importers import from_torch
from weft.quantize.imported import quantize_imported

program = lru_cache(exported)


def leaves(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [leaf for v in x.values() for leaf in leaves(v)]
    if isinstance(x, list | tuple):
        return [leaf for v in x for leaf in leaves(v)]
    return [x]


def tensors(x: Any) -> list[weft.Tensor]:
    return [v for v in leaves(x) if isinstance(v, weft.Tensor)]


def wanted(built: Built) -> list[torch.Tensor]:
    module, args, kwargs, _ = built
    found = torch.utils._pytree.tree_leaves(module(*args, **kwargs))
    return [x for x in found if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize(("name", "device"), few(
    [(n, d) for n in MODELS for d in DEVICES],
    *((n, "eager") for n in MODELS if n not in ("qwen2", "vit", "clip")),
    ("resnet", "cpu"), ("llama", "vulkan"),
))  # fmt: skip
def test_models_agree(name: str, device: str) -> None:
    ep, built = program(name)
    module = from_torch(ep)
    run = module if device == "eager" else weft.compile(module, device=opened(device))
    got = tensors(run(*built[1], **built[2]))
    want = wanted(built)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        agree(g, w)


def backward(module: Any, built: Built, seeds: list[np.ndarray], of: Any) -> None:
    """The gradients of sum(result * seed) over the results that are floats."""
    out = of(module(*built[1], **built[2]))
    total = None
    for o, seed in zip(out, seeds):
        part = (o * (seed if isinstance(o, weft.Tensor) else torch.from_numpy(seed))).sum()
        total = part if total is None else total + part
    total.backward()


@pytest.mark.parametrize(("name", "device"), few(
    [(n, d) for n in MODELS for d in DEVICES],
    ("resnet", "eager"), ("bert", "eager"), ("qwen2", "eager"), ("unet", "eager"), ("llama", "cpu"),
))  # fmt: skip
def test_gradients_agree(name: str, device: str) -> None:
    ep, built = program(name)
    reference = copy.deepcopy(built[0])
    rng = np.random.default_rng(5)
    want = [w for w in wanted(built) if w.is_floating_point()]
    seeds = [rng.standard_normal(w.shape).astype(np.float32) for w in want]
    floats = lambda out: [x for x in torch.utils._pytree.tree_leaves(out)  # noqa: E731
                          if isinstance(x, torch.Tensor) and x.is_floating_point()]  # fmt: skip
    backward(reference, built, seeds, floats)
    module = from_torch(ep)  # evaluating, as the reference

    def step(*args: Any, **kwargs: Any) -> None:
        backward(module, (None, args, kwargs, None), seeds,
                 lambda out: [t for t in tensors(out) if t.dtype.is_float])  # fmt: skip

    if device == "eager":
        step(*built[1], **built[2])
    else:
        weft.compile(step, device=opened(device))(*built[1], **built[2])
    mine = dict(module.named_parameters())
    theirs = dict(reference.named_parameters())
    assert set(mine) == set(theirs)
    checked = 0
    for key, p in theirs.items():
        if p.grad is None:
            assert mine[key].grad is None or not mine[key].grad.numpy().any()
            continue
        scale = max(float(p.grad.abs().max()), 1.0)
        agree(mine[key].grad / scale, p.grad / scale)
        checked += 1
    assert checked > 10


# -- files


def test_a_file_is_read_without_pytorch(tmp_path: Path) -> None:
    ep, built = program("qwen2")
    torch.export.save(ep, tmp_path / "m.pt2")
    np.savez(tmp_path / "in.npz", **{k: v.numpy() for k, v in built[2].items()})
    code = (
        "import sys, numpy as np\n"
        "from weft.importers import from_torch\n"
        "m = from_torch('m.pt2')\n"
        "out = m(**np.load('in.npz'))['logits']\n"
        "assert 'torch' not in sys.modules\n"
        "np.save('out.npy', out.numpy())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True,
                   env={"PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    agree(weft.tensor(np.load(tmp_path / "out.npy")), wanted(built)[0])


def test_a_file_and_the_program_give_one_module(tmp_path: Path) -> None:
    for name in ("llama", "yolo"):
        ep, _ = program(name)
        torch.export.save(ep, tmp_path / "m.pt2")
        one, two = from_torch(ep), from_torch(tmp_path / "m.pt2")
        steps = [[(s.op, s.where) for s in m.plan.steps] for m in (one, two)]
        assert steps[0] == steps[1]
        assert one.plan.bounds == two.plan.bounds
        assert [p.text() for p in one.plan.inputs] == [p.text() for p in two.plan.inputs]
        assert one.state_dict().keys() == two.state_dict().keys()


def test_state_dicts_are_pytorchs() -> None:
    ep, built = program("qwen2")
    module = from_torch(ep)
    state = module.state_dict()
    assert set(state) == set(built[0].state_dict())
    for key, value in built[0].state_dict().items():
        assert np.array_equal(state[key], value.numpy()), key
    module.load_state_dict({k: v * 0 + 1 for k, v in state.items()})
    assert module.tensor("lm_head.weight") is module.tensor("model.embed_tokens.weight")  # tied
    assert sum(p.size for p in module.parameters()) == sum(p.numel() for p in built[0].parameters())


# -- sizes


def test_open_sizes_are_bound_by_each_call() -> None:
    ep, built = program("llama")
    module = from_torch(ep)
    for run in (module, weft.compile(module, device="cpu")):
        for batch, length in ((1, 4), (3, 9)):
            ids = torch.randint(0, 96, (batch, length))
            kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            with torch.no_grad():
                want = built[0](**kwargs).logits
            agree(run(**kwargs)["logits"], want)


def test_sizes_outside_their_range_are_refused() -> None:
    ep, _ = program("bert")
    module = from_torch(ep)
    ids = np.zeros((2, 65), np.int32)
    with pytest.raises(ShapeError, match=r"is 65; exported for 1 to 64"):
        module(ids, ids)
    with pytest.raises(ShapeError, match=r"int32\[.*not \[2, 3\], where"):
        module(ids[:, :8], ids[:, :3])
    with pytest.raises(ShapeError, match=r"not \[2\]"):
        module(ids[0, :2], ids)
    with pytest.raises(DTypeError, match=r"input_ids: int32.*not float32; cast the value"):
        module(ids[:, :8].astype(np.float32), ids[:, :8])
    with pytest.raises(CallError, match="attention_mask is missing"):
        module(ids[:, :8])
    with pytest.raises(CallError, match="'other'"):
        module(ids, other=ids)


class Halves(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(1) + y


def test_sizes_that_follow_from_others() -> None:
    n = Dim("n", min=1, max=50)
    shapes = {"x": {0: 2 * n}, "y": {0: n}}
    module = imported(Halves(), torch.ones(6), torch.ones(3), dynamic_shapes=shapes)
    assert module(np.ones(10, "f"), np.ones(5, "f")).shape == (5,)
    with pytest.raises(ShapeError, match=r"10 for \(?2\*"):
        module(np.ones(10, "f"), np.ones(4, "f"))


class Nested(nn.Module):
    def forward(
        self, pair: tuple[torch.Tensor, Any], scale: float, n: int, mask: Any = None
    ) -> Any:
        a, more = pair
        return {"out": a * scale + more["b"], "rest": [a.sum(), n + a.shape[0], None]}


def test_arguments_and_results_nest() -> None:
    args = ((torch.ones(2), {"b": torch.ones(2)}), 2.5, 3)
    module = imported(Nested(), *args)
    out = module((np.ones(2, "f"), {"b": np.full(2, 4.0, "f")}), 2.5, 3)
    assert out["out"].tolist() == [6.5, 6.5]
    assert out["rest"][1:] == [5, None]
    with pytest.raises(CallError, match=r"made for 2.5 only"):
        module((np.ones(2, "f"), {"b": np.ones(2, "f")}), 3.5, 3)
    with pytest.raises(CallError, match="pair does not nest"):
        module([np.ones(2, "f")], 2.5, 3)


# -- other uses


def test_it_trains() -> None:
    """As PyTorch does, step by step."""
    ep, built = program("resnet")
    reference, module = copy.deepcopy(built[0]), from_torch(ep)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.05)
    optim = weft.optim.SGD(module.parameters(), lr=0.05)
    labels = weft.tensor([1, 7])

    def step(x: Any) -> Any:
        loss = weft.functional.cross_entropy(module(x), labels)
        optim.zero_grad()
        loss.backward()
        optim.step()
        return loss

    run = weft.compile(step, device="cpu")
    for _ in range(4):
        want = torch.nn.functional.cross_entropy(reference(built[1][0]), torch.tensor([1, 7]))
        theirs.zero_grad()
        want.backward()
        theirs.step()
        agree(run(built[1][0]), want)


@pytest.mark.parametrize(("scheme", "device"), few(
    [(s, d) for s in ("int8", "int4", "nf4", "q4_k") for d in ("eager", "cpu", "vulkan")],
    ("int8", "cpu"), ("int4", "eager"),
))  # fmt: skip
def test_it_quantises(scheme: str, device: str) -> None:
    """Equal to the module with the weights that the codes stand for."""
    ep, built = program("qwen2")
    module = from_torch(ep)
    small = quantize_imported(module, scheme)
    name = "model.layers.0.mlp.down_proj.weight"
    assert f"{name}.codes" in small.state_dict() and name not in small.state_dict()
    assert "lm_head.weight" in small.state_dict()  # tied to the embedding
    size = lambda m: sum(v.nbytes for v in m.state_dict().values())  # noqa: E731
    assert size(small) < 0.7 * size(module)
    for value, dotted in module.plan.tensors:
        steps = [
            s
            for s in small.plan.steps
            if s.op == "dequantize" and s.args[0].name == f"{value}.codes"
        ]
        if steps:
            parts = [small.tensor(f"{dotted}.{r.name.rpartition('.')[2]}") for r in steps[0].args]
            with weft.no_grad():
                module.tensor(dotted).assign(steps[0].run(*parts))
    want = module(**built[2])["logits"]
    run = small if device == "eager" else weft.compile(small, device=opened(device))
    agree(run(**built[2])["logits"], want.numpy())


class Sized(nn.Module):
    """A size that code without gradients computes is read outside it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            count = torch.sym_min(x.shape[1], torch.sym_max(4, x.shape[0]))
            top = x.topk(count, 1)[0] * 2
        return top.new_ones((count,)) + top


@pytest.mark.parametrize("length", [3, 9])
def test_sizes_leave_regions_without_gradients(length: int) -> None:
    free = {1: torch.export.Dim.DYNAMIC}
    module = imported(Sized(), torch.randn(2, 5), dynamic_shapes=(free,))
    x = torch.randn(2, length)
    agree(module(x.numpy()), Sized()(x))


def test_nothing_to_quantise() -> None:
    with pytest.raises(UsageError, match="no linear weight"):
        quantize_imported(imported(Frozen(), torch.ones(3)))


def test_a_copy_is_its_own() -> None:
    module = imported(nn.Linear(3, 2), torch.ones(1, 3))
    other = copy.deepcopy(module)
    other.load_state_dict({k: v * 0 for k, v in module.state_dict().items()})
    assert module(np.ones((1, 3), "f")).numpy().any()
    assert not other(np.ones((1, 3), "f")).numpy().any()


def test_it_moves_to_a_device_as_a_whole() -> None:
    """Eagerly there, with what the graph makes itself beside its weights."""
    ep, built = program("llama")
    device = opened("vulkan")
    module = from_torch(ep).to(device)
    kwargs = {k: weft.tensor(v.int()).to(device) for k, v in built[2].items()}
    agree(module(**kwargs)["logits"].cpu(), wanted(built)[0])


def test_other_objects_are_refused() -> None:
    for bad in (3, nn.Linear(2, 2), None):
        with pytest.raises(UsageError, match="is not an ExportedProgram; give"):
            from_torch(bad)
