"""Paddings, unpools, bags, bilinear forms and transformers against PyTorch: values, gradients and
names of parameters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nnkit import check, close, random
from rows import by_turns
from torch import nn as T

import weft
from weft import nn
from weft.core.errors import ShapeError, UsageError
from weft.tensor import functional as F

IMAGE, LINE, VOLUME = random(2, 4, 7, 5), random(2, 4, 9), random(1, 2, 5, 3, 7)
KINDS = ("Constant", "Zero", "Reflection", "Replication", "Circular")
PADDED = {1: (LINE, (2, 1)), 2: (IMAGE, (2, 1, 3, 0)), 3: (VOLUME, (2, 1, 0, 2, 1, 3))}


def _padding(kind: str, axes: int, width: Any) -> Callable[[Any], Any]:
    more = (1.5,) if kind == "Constant" else ()
    return lambda m: getattr(m, f"{kind}Pad{axes}d")(width, *more)


MODULES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    f"{kind}Pad{axes}d-{'sides' if pairs else 'all'}": (
        _padding(kind, axes, pairs or 2), x,
    )
    for kind in KINDS
    for axes, (x, widths) in PADDED.items()
    for pairs in (widths, ())
} | {
    "cut": (lambda m: m.ReflectionPad2d((-1, 2, 3, -2)), IMAGE),
    "cut-constant": (lambda m: m.ConstantPad1d((-2, 3), 0.5), LINE),
    "cut-replicate": (lambda m: m.ReplicationPad1d((3, -4)), LINE),
    "conv1d-circular": (lambda m: m.Conv1d(4, 6, 3, padding=2, padding_mode="circular"), LINE),
    "conv2d-reflect": (
        lambda m: m.Conv2d(4, 6, 3, 2, (2, 1), padding_mode="reflect"), IMAGE),
    "conv2d-replicate-same": (
        lambda m: m.Conv2d(4, 6, (4, 3), padding="same", padding_mode="replicate"), IMAGE),
    "conv3d-circular": (
        lambda m: m.Conv3d(2, 3, 2, padding=1, padding_mode="circular", dilation=2), VOLUME),
    "unflatten": (lambda m: m.Unflatten(1, (2, -1)), LINE),
    "unflatten-last": (lambda m: m.Unflatten(-1, (3, 1, 3)), LINE),
    "channel_shuffle": (lambda m: m.ChannelShuffle(2), random(2, 6, 3, 5)),
    "nearest2d": (lambda m: m.UpsamplingNearest2d(scale_factor=2), IMAGE),
    "bilinear2d": (lambda m: m.UpsamplingBilinear2d((5, 11)), IMAGE),
}  # fmt: skip


@pytest.mark.parametrize("name,way", by_turns(MODULES, ["compiled", "eager"]))
def test_forward_and_backward_are_pytorchs(name: str, way: str) -> None:
    make, x = MODULES[name]
    torch.manual_seed(0)
    check(make(nn), make(T), x, ways=(way,))


SHOWN = [n for n in MODULES if not n.startswith(("conv", "nearest", "bilinear"))]


@pytest.mark.parametrize("name", SHOWN)
def test_modules_are_shown_as_pytorchs(name: str) -> None:
    """Apart from sizes, which weft shows as they were given."""
    make, _ = MODULES[name]
    assert repr(make(nn)) == repr(make(T))


NAMED = ("Transformer", "MaxUnpool", "EmbeddingBag")


@pytest.mark.parametrize("name", [name for name in nn.__all__ if name.startswith(NAMED)])
def test_forward_takes_pytorchs_names(name: str) -> None:
    """Masks and offsets are often given by name; the first operand never is."""
    ours, theirs = (
        list(inspect.signature(getattr(m, name).forward).parameters)[1:] for m in (nn, T)
    )
    rest = slice(int(not name.startswith("Transformer")), None)
    assert ours[rest] == theirs[rest]


# -- unpools --------------------------------------------------------------------------------------


UNPOOLS: dict[str, tuple[int, tuple[Any, ...], np.ndarray, tuple[int, ...] | None]] = {
    "1d": (1, (2,), LINE, None),
    "1d-size": (1, (2,), LINE, (9,)),
    "1d-over": (1, (3, 2), LINE, None),
    "2d": (2, ((2, 3),), IMAGE, (7, 5)),
    "2d-padded": (2, (3, 2, 1), IMAGE, None),
    "2d-whole": (2, (2,), IMAGE, (2, 4, 7, 5)),
    "3d": (3, (2, (2, 1, 2)), VOLUME, (5, 3, 7)),
}


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("name", UNPOOLS)
def test_unpools_are_pytorchs(name: str, way: str) -> None:
    rank, options, x, size = UNPOOLS[name]

    def both(m: Any, x: Any) -> Any:
        y, at = getattr(m, f"MaxPool{rank}d")(*options, return_indices=True)(x)
        return getattr(m, f"MaxUnpool{rank}d")(*options)(y * 2.0, at, output_size=size)

    theirs = torch.tensor(x, requires_grad=True)
    want = both(T, theirs)
    weight = random(*want.shape, seed=9)
    (want * torch.tensor(weight)).sum().backward()

    def run(x: Any) -> Any:
        x = x.detach().requires_grad_()
        y = both(nn, x)
        (y * weft.tensor(weight)).sum().backward()
        return y.detach(), x.grad

    y, slope = (run if way == "eager" else weft.compile(run, "cpu"))(weft.tensor(x))
    close(y, want, 1e-7)
    close(slope, theirs.grad, 1e-6)


def test_sizes_that_do_not_fit() -> None:
    y, at = F.max_pool1d(weft.tensor(LINE), 2, return_indices=True)
    with pytest.raises(ShapeError, match=r"output_size \[11\]; expected \[8\]"):
        F.max_unpool1d(y, at, 2, output_size=(11,))
    with pytest.raises(ShapeError, match="expected one each"):
        F.max_unpool1d(y, at[:1], 2)
    for widths, mode in (((5, 0), "reflect"), ((0, 6), "circular"), ((-3, -3), "replicate")):
        with pytest.raises(ShapeError, match="do not fit an axis of 5"):
            F.pad(weft.ones((1, 1, 5)), widths, mode)
    with pytest.raises(ShapeError, match="3 widths"):
        F.pad(weft.ones((1, 1, 5)), (1, 2, 3))
    with pytest.raises(UsageError, match="expected one of constant, reflect"):
        F.pad(weft.ones((1, 1, 5)), (1, 2), "mirror")
    with pytest.raises(ShapeError, match="groups that divide C"):
        nn.ChannelShuffle(3)(weft.ones((1, 4, 2)))
    with pytest.raises(ShapeError, match=r"3 widths; expected 1 or 4"):
        nn.ZeroPad2d((1, 2, 3))
    with pytest.raises(UsageError, match="padding_mode 'mirror'; expected zeros"):
        nn.Conv2d(1, 1, 3, padding_mode="mirror")


# -- bags and forms -------------------------------------------------------------------------------

IDS = np.array([3, 1, 1, 6, 0, 3, 2, 6, 6], np.int64)
BAGS: dict[str, tuple[dict[str, Any], np.ndarray, np.ndarray | None]] = {
    "runs": ({}, IDS, np.array([0, 2, 2, 5, 9])),
    "first": ({}, IDS, np.array([0])),
    "last": ({"include_last_offset": True}, IDS, np.array([0, 4, 4, 9])),
    "rows": ({}, IDS.reshape(3, 3), None),
    "padding": ({"padding_idx": 6}, IDS, np.array([0, 3, 7])),
    "padding-rows": ({"padding_idx": -1}, IDS.reshape(3, 3), None),
}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", BAGS)
def test_bags_are_pytorchs(name: str, mode: str) -> None:
    options, ids, offsets = BAGS[name]
    torch.manual_seed(0)
    ours, theirs = (m.EmbeddingBag(7, 5, mode=mode, **options) for m in (nn, T))
    inputs = [ids] if offsets is None else [ids, offsets]
    check(ours, theirs, *inputs)


@pytest.mark.parametrize("runs", [True, False])
def test_weighted_bags_are_pytorchs(runs: bool) -> None:
    torch.manual_seed(0)
    weights = random(9, seed=3)
    table = random(7, 5)
    ids = IDS if runs else IDS.reshape(3, 3)
    start = np.array([0, 2, 2]) if runs else None
    theirs = [torch.tensor(a, requires_grad=True) for a in (table, weights.reshape(ids.shape))]
    want = torch.nn.functional.embedding_bag(
        torch.tensor(ids), theirs[0], None if start is None else torch.tensor(start),
        mode="sum", per_sample_weights=theirs[1],
    )  # fmt: skip
    want.square().sum().backward()
    ours = [weft.tensor(t.detach().numpy()).requires_grad_() for t in theirs]
    given = None if start is None else weft.tensor(start)
    made = F.embedding_bag(weft.tensor(ids), ours[0], given, "sum", ours[1])
    made.square().sum().backward()
    close(made.detach(), want, 1e-6)
    for a, b in zip(ours, theirs):
        close(a.grad, b.grad, 1e-6)


def test_bags_that_do_not_fit() -> None:
    table, ids = weft.ones((7, 5)), weft.tensor(IDS)
    with pytest.raises(ShapeError, match=r"or \[N\] with offsets"):
        F.embedding_bag(ids, table)
    with pytest.raises(UsageError, match="mode 'median'; expected one of sum, mean, max"):
        F.embedding_bag(ids, table, weft.tensor([0]), "median")
    with pytest.raises(UsageError, match="'sum' with per_sample_weights"):
        F.embedding_bag(ids, table, weft.tensor([0]), "max", weft.ones(9))
    with pytest.raises(UsageError, match="padding_idx 7 of 7 rows"):
        nn.EmbeddingBag(7, 5, padding_idx=7)
    with pytest.raises(ShapeError, match=r"expected \[\.\.\., I\]"):
        F.bilinear(weft.ones((2, 3)), weft.ones((2, 4)), weft.ones((5, 4, 3)))


@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_is_pytorchs(bias: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = (m.Bilinear(5, 3, 7, bias) for m in (nn, T))
    assert repr(ours) == repr(theirs)
    check(ours, theirs, random(2, 9, 5), random(2, 9, 3, seed=1))
    check(nn.Bilinear(5, 3, 1, bias), T.Bilinear(5, 3, 1, bias), random(5), random(3, seed=1))


# -- attention ------------------------------------------------------------------------------------


# -- transformers ---------------------------------------------------------------------------------


# -- containers of parameters ---------------------------------------------------------------------


class Scaled:
    """A module with a list and a dict of parameters, of weft or of PyTorch."""

    @staticmethod
    def of(m: Any, make: Callable[[np.ndarray], Any]) -> Any:
        class Call(m.Module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.listed = m.ParameterList([make(random(5)), make(random(4, 5, seed=1))])
                self.listed.append(make(random(1, seed=2)))
                self.named = m.ParameterDict({"b": make(random(5, seed=3))})
                self.named["a"] = make(random(5, seed=4))

            def forward(self, x: Any) -> Any:
                for p in self.listed:
                    x = x * p
                for name in self.named:
                    x = x + self.named[name]
                return x

        return Call()


def test_containers_of_parameters_are_pytorchs() -> None:
    ours, theirs = Scaled.of(nn, weft.tensor), Scaled.of(T, torch.tensor)
    check(ours, theirs, random(4, 5, seed=7))
    ours.listed[1] = weft.zeros((4, 5))
    assert len(ours.listed) == 3 and ours.listed[1].sum().item() == 0
    assert len(ours.named) == 2 and "a" in ours.named and "c" not in ours.named
    assert [n for n, _ in ours.named.items()] == list(ours.named.keys()) == ["b", "a"]
    assert [p.shape for p in ours.named.values()] == [(5,), (5,)]
    assert repr(ours.named) == "ParameterDict(b: float32[5], a: float32[5])"
    with pytest.raises(UsageError, match="a parameter cannot be called 'keys'"):
        ours.named["keys"] = weft.ones(1)


def _calls(fn) -> int:
    """The calls that a function makes, those of C included."""
    count = [0]

    def note(*_) -> None:
        count[0] += 1

    sys.setprofile(note)
    try:
        fn()
    finally:
        sys.setprofile(None)
    return count[0]


def test_containers_grow_and_are_indexed_in_proportion():
    """Ten thousand parameters took ten seconds to be put into a list."""
    one = nn.Parameter(weft.ones(1))

    def fill(n: int) -> None:
        kept, named = nn.ParameterList([one] * n), nn.ModuleDict()
        for i in range(n):
            kept.append(one)
            named[f"m{i}"] = nn.Identity()
            assert kept[i] is one and f"m{i}" in named and named[f"m{i}"] is not None

    assert _calls(lambda: fill(160)) < 2.2 * _calls(lambda: fill(80))
