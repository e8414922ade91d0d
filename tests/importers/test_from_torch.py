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
from present import opened
from rows import few
from torch import nn
from torch.export import Dim, export
from torch_models import MODELS, Built, exported

import weft
from weft.core.errors import (
    CallError,
    DTypeError,
    FileFormatError,
    ModelError,
    ShapeError,
    UsageError,
)
from weft.core.tolerance import compare
from weft.importers import from_torch
from weft.importers.imported import Imported
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


def agree(got: Any, want: torch.Tensor | np.ndarray, kind: str = "model") -> None:
    array = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    found = compare(got.numpy().astype(array.dtype), array, kind)
    assert found.ok, found.message


def imported(module: nn.Module, *args: Any, **options: Any) -> Imported:
    return from_torch(export(module, args, **options))


DEVICES = ("eager", "cpu", "vulkan")


@pytest.mark.parametrize(("name", "device"), few(
    [(n, d) for n in MODELS for d in DEVICES],
    *((n, "eager") for n in MODELS),
    ("resnet", "cpu"), ("bert", "cpu"), ("llama", "cpu"), ("llama", "vulkan"), ("resnet", "vulkan"),
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


# -- memory


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 6, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, at, new)
        self.keys[:, 0] *= 2
        self.keys[1, 2:4, :1] = 7.0
        self.count += 1
        return self.keys.sum() + self.count


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decomposed", [False, True])
def test_buffers_are_written(device: str, decomposed: bool) -> None:
    rng = np.random.default_rng(0)
    reference = Cache()
    ep = export(reference, (torch.tensor([1, 2]), torch.ones(2, 2, 3)))
    module = from_torch(ep.run_decompositions() if decomposed else ep)
    assert [name for name, _ in module.plan.writes] == ["keys", "count"]
    run = module if device == "eager" else weft.compile(module, device=opened(device))
    for _ in range(3):
        at = rng.permutation(6)[:2]
        new = rng.standard_normal((2, 2, 3)).astype("f")
        want = reference(torch.from_numpy(at), torch.from_numpy(new))
        agree(run(at, new), want)
    agree(module.keys, reference.keys)
    assert module.count.item() == 3


class Views(nn.Module):
    """Writes through views, and reads of others of the same memory afterwards."""

    def __init__(self, which: int):
        super().__init__()
        self.which = which

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1.0
        if self.which == 0:
            row, column = y[1], y[:, 2]
            row.add_(10)
            column.mul_(2)
            return y + row.sum() + column.sum()
        if self.which == 1:
            t = y.transpose(0, 1)
            t[1:3] = -1.0
            return y * 3 + t.sum()
        if self.which == 2:
            a, b = y.chunk(2, 1)
            a.copy_(b)
            b.zero_()
            return torch.cat([y, a, b], 1)
        if self.which == 3:
            v = y.view(2, 2, 4).permute(2, 0, 1)
            v.unsqueeze(0).clamp_(max=0.25)
            return y + v.sum()
        if self.which == 4:
            y[::2].sub_(1)
            y[y > 0.5] = 0
            first, second, *_ = y.unbind(0)
            second += first
            return y
        z = y.detach()
        z.relu_()
        return y.sigmoid_() + z


@pytest.mark.parametrize("which", range(6))
def test_writes_through_views(which: int) -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(which))
    module = imported(Views(which), x)
    agree(module(x), Views(which)(x), "dot")


class Perhaps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y.reshape(-1)
        z.add_(1)
        return y + z.sum()


def test_memory_that_is_perhaps_shared(tmp_path: Path) -> None:
    """A program in memory is made functional by PyTorch; a file is refused."""
    ep = export(Perhaps(), (torch.ones(2, 3),))
    agree(from_torch(ep)(np.ones((2, 3), "f")), Perhaps()(torch.ones(2, 3)))
    torch.export.save(ep, tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="may have written to its memory"):
        from_torch(tmp_path / "m.pt2")
    torch.export.save(ep.run_decompositions(), tmp_path / "f.pt2")
    agree(from_torch(tmp_path / "f.pt2")(np.ones((2, 3), "f")), Perhaps()(torch.ones(2, 3)))


class WritesInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2


def test_an_input_that_is_written_is_refused() -> None:
    with pytest.raises(
        (ModelError, FileFormatError), match=r"writes to its input x|USER_INPUT_MUT"
    ):
        imported(WritesInput(), torch.ones(2))


# -- gradients off, dtypes, what is not supported


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fixed = x * self.a
        with torch.autocast("cpu", enabled=False):
            return fixed * self.b


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(3))
        self.b = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.a + self.b


def test_frozen_parameters_stay_parameters(tmp_path: Path) -> None:
    ep = export(Fixed(), (torch.ones(3),))
    torch.export.save(ep, tmp_path / "m.pt2")
    for given in (ep, tmp_path / "m.pt2"):
        module = from_torch(given)
        assert {n: p.requires_grad for n, p in module.named_parameters()} == {"a": True, "b": False}
        module.train()(np.ones(3, "f")).sum().backward()
        assert module.a.grad is not None and module.b.grad is None


def test_regions_without_gradients() -> None:
    module = imported(Frozen(), torch.ones(3)).train()
    module(np.full(3, 2.0, "f")).sum().backward()
    assert module.a.grad is None
    assert module.b.grad.tolist() == [2, 2, 2]


class Wide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([2**40, 1])


class WideFill(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.full((2,), 2**40)


def test_integers_beyond_int32_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"lifted_tensor_0.*1099511627776; int32"):
        imported(Wide(), torch.tensor([1, 2]))
    with pytest.raises(DTypeError, match=r"aten.full.default.*1099511627776 is beyond int32"):
        imported(WideFill(), torch.tensor([1, 2]))(np.array([1, 2]))
    module = imported(nn.Embedding(4, 2), torch.tensor([1]))
    assert module(np.array([3])).shape == (1, 2)  # int64 that int32 holds
    with pytest.raises(DTypeError, match="holds 1099511627776"):
        module(np.array([2**40]))


class Lacking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.inv(x) + torch.special.i0(x)
        return torch.linalg.inv(y) + torch.nonzero(x).sum()


def test_unsupported_operators_are_named_at_once(tmp_path: Path) -> None:
    ep = export(Lacking(), (torch.eye(3),))
    torch.export.save(ep, tmp_path / "m.pt2")
    for given in (ep, tmp_path / "m.pt2"):
        with pytest.raises(ModelError) as found:
            from_torch(given)
        said = str(found.value)
        assert "aten.nonzero.default" in said
        assert "test_from_torch.py:" in said
        assert said.count("inv") >= 1 and "2x" in said and "i0" in said
        assert len(said.splitlines()) <= 2


class Decomposes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addr(torch.zeros(3, 3), x, x) + torch.special.xlogy(x, x)


def test_what_is_lacking_is_decomposed_where_that_helps() -> None:
    x = torch.tensor([0.5, 1.0, 2.0])
    agree(imported(Decomposes(), x)(x), Decomposes()(x), "dot")


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
