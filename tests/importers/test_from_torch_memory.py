"""Modules of PyTorch that write into memory, keep parameters as they are, or are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from from_torch_kit import DEVICES, Frozen, agree, imported
from present import opened
from torch import nn
from torch.export import export

import weft
from weft.core.errors import (
    DTypeError,
    FileFormatError,
    ModelError,
)
from weft.importers import from_torch

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
        assert "test_from_torch_memory.py:" in said
        assert said.count("inv") >= 1 and "2x" in said and "i0" in said
        assert len(said.splitlines()) <= 2


class Decomposes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addr(torch.zeros(3, 3), x, x) + torch.special.xlogy(x, x)


def test_what_is_lacking_is_decomposed_where_that_helps() -> None:
    x = torch.tensor([0.5, 1.0, 2.0])
    agree(imported(Decomposes(), x)(x), Decomposes()(x), "dot")
