"""Losses by every door (functional, nn, ATen) against PyTorch: values and gradients at kinks, at
zeros, very large numbers, infinities and NaN, in three dtypes; and shapes, options and errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as T

from weft import nn
from weft.core.errors import WeftError
from weft.importers.aten import entry
from weft.tensor import functional as F
from weft.tensor.core import Tensor

INF, NAN = math.inf, math.nan
ANY = [-INF, -1e30, -100.0, -89.0, -2.0, -1.0, -0.5, -1e-30, -0.0, 0.0, 1e-3, 0.5, 1.0, 1.5, 2.0,
       20.5, 88.8, 1e30, INF, NAN]  # fmt: skip
FEW = [-INF, -1e30, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, INF, NAN]
UNIT = [0.0, 1e-30, 0.25, 0.5, 1.0 - 2**-24, 1.0]
SIGN = [-1.0, 1.0]


@dataclass(frozen=True)
class Case:
    """A loss of elements: the values of its operands, PyTorch's function and weft's doors. With
    `limits`, weft may have the limit where an overflow gives PyTorch NaN or an infinity."""

    operands: tuple[list[float], ...]
    torch: Callable[..., torch.Tensor]
    functional: Callable[..., Tensor]
    module: Callable[..., Any]
    aten: Callable[..., Tensor] | None = None
    limits: bool = False
    rtol: float = field(default=2e-6)


def _aten(name: str, *options: Any) -> Callable[..., Tensor]:
    def run(*xs: Tensor) -> Tensor:
        found = entry(f"aten.{name}.default")
        assert found is not None
        made: Tensor = found.run(*xs, *options)
        return made

    return run


def _none(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda *xs: fn(*xs, reduction="none", **options)


def both(
    name: str, kind: str, operands: tuple[list[float], ...], aten: tuple[Any, ...] | None = (0,),
    options: dict[str, Any] | None = None, **more: Any,
) -> Case:  # fmt: skip
    given = options or {}
    return Case(
        operands, _none(getattr(T, name), **given), _none(getattr(F, name), **given),
        lambda: getattr(nn, kind)(reduction="none", **given),
        None if aten is None else _aten(name, *aten), **more,
    )  # fmt: skip


CASES = {
    "mse": both("mse_loss", "MSELoss", (ANY, FEW)),
    "l1": both("l1_loss", "L1Loss", (ANY, FEW)),
    "smooth_l1": both("smooth_l1_loss", "SmoothL1Loss", (ANY, FEW)),
    "smooth_l1_half": both("smooth_l1_loss", "SmoothL1Loss", (ANY, FEW), (0, 0.5), {"beta": 0.5}),
    "huber": both("huber_loss", "HuberLoss", (ANY, FEW)),
    "huber_two": both("huber_loss", "HuberLoss", (ANY, FEW), (0, 2.0), {"delta": 2.0}),
    "bce": both("binary_cross_entropy", "BCELoss", (UNIT, UNIT), (None, 0)),
    "bce_with_logits": both("binary_cross_entropy_with_logits", "BCEWithLogitsLoss",
                            (ANY, [0.0, 0.25, 1.0]),
                            (None, None, 0), limits=True, rtol=1e-4),
    "kl_div": both("kl_div", "KLDivLoss", ([-INF, -1e30, -2.0, -0.0, 0.5, NAN], UNIT), limits=True),
    "kl_div_logs": both("kl_div", "KLDivLoss", ([-1e30, -2.0, -0.0, NAN], [-2.0, -0.5, -0.0]),
                        (0, True), {"log_target": True}),
    "poisson": both("poisson_nll_loss", "PoissonNLLLoss", (ANY, [0.0, 1.0, 2.0, 1e3]),
                    (True, False, 1e-8, 0), limits=True),
    "poisson_rate": both("poisson_nll_loss", "PoissonNLLLoss",
                         ([0.0, 0.5, 2.0, 1e30, NAN], [0.0, 3.0]),
                         (False, True, 1e-8, 0), {"log_input": False, "full": True}, limits=True),
    "gaussian": both("gaussian_nll_loss", "GaussianNLLLoss",
                     (FEW, [-1.0, 0.0, 2.0], [0.0, 1e-6, 0.5, 1e10]), None, limits=True),
    "hinge": both("hinge_embedding_loss", "HingeEmbeddingLoss", (ANY, [*SIGN, 0.5]), (1.0, 0)),
    "ranking": both("margin_ranking_loss", "MarginRankingLoss", (FEW, FEW, SIGN), (0.5, 0),
                    {"margin": 0.5}),
    "soft_margin": both("soft_margin_loss", "SoftMarginLoss", (ANY, SIGN), limits=True, rtol=1e-4),
}  # fmt: skip


def grid(operands: tuple[list[float], ...]) -> list[np.ndarray]:
    rows = np.array(list(itertools.product(*operands)), np.float32)
    return [np.ascontiguousarray(rows[:, i]) for i in range(rows.shape[1])]


def by_torch(case: Case, dtype: str) -> list[np.ndarray]:
    """The values and the gradient of each operand."""
    xs = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in grid(case.operands)]
    xs = [x.requires_grad_(i == 0 or case.aten is None) for i, x in enumerate(xs)]
    out = case.torch(*xs)
    out.backward(torch.ones_like(out))
    return [t.detach().float().numpy() for t in (out, *(x.grad for x in xs if x.grad is not None))]


def by_weft(run: Callable[..., Tensor], case: Case, dtype: str) -> list[np.ndarray]:
    xs = [Tensor(x).cast(dtype) for x in grid(case.operands)]
    for i, x in enumerate(xs):
        x.requires_grad_(i == 0 or case.aten is None)
    out = run(*xs)
    out.backward(Tensor(np.ones(out.shape, np.float32)).cast(out.dtype))
    found = [out, *(x.grad for x in xs if x.grad is not None)]
    return [t.cast("float32").numpy() for t in found]


STEPS = {"float32": 0.0, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.mark.parametrize("dtype", STEPS)
@pytest.mark.parametrize("name", CASES)
def test_elements(name: str, dtype: str) -> None:
    """Narrow losses are float32 here, and narrow in PyTorch, which may then overflow."""
    case = CASES[name]
    narrow = dtype != "float32"
    want = by_torch(case, dtype)
    given = grid(case.operands)
    for door in ("functional", "module", "aten"):
        run = getattr(case, door)
        if run is None:
            continue
        got = by_weft(run() if door == "module" else run, case, dtype)
        assert len(got) == len(want)
        for what, g, w in zip(("value", "x", "y", "z"), got, want):
            near = np.isclose(g, w, rtol=max(case.rtol, 2 * STEPS[dtype]), atol=3e-7,
                              equal_nan=True)  # fmt: skip
            if case.limits or narrow:
                near |= ~np.isfinite(w)
            if narrow:  # rounded on the way there, once here
                near |= np.isclose(g, w, rtol=0, atol=8 * STEPS[dtype])
            at = np.flatnonzero(~near)[:5]
            assert near.all(), (door, what, [x[at] for x in given], g[at], w[at])


# -- losses of rows


def rows(*shape: int, seed: int = 0, low: float = -3, high: float = 3) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


SIGNS = np.array([1, -1, 1, 1, -1], np.float32)
CLASSES = np.array([2, 0, 3, 1, 2])
MANY = np.array([[2, 0, -1, 1], [-1, 1, 2, 3], [0, 3, 1, 2], [1, -1, -1, -1], [3, 2, 1, 0]])
X, Y, Z = (rows(5, 4, seed=i) for i in range(3))
P = rows(5, 4, low=0, high=1)
ROWS: dict[str, tuple[str, dict[str, Any], list[np.ndarray]]] = {
    "cosine_embedding_loss": ("CosineEmbeddingLoss", {"margin": 0.1}, [X, Y, SIGNS]),
    "triplet_margin_loss": ("TripletMarginLoss", {"margin": 2.0, "swap": True}, [X, Y, Z]),
    "triplet_margin_with_distance_loss": ("TripletMarginWithDistanceLoss", {}, [X, Y, Z]),
    "multi_margin_loss": ("MultiMarginLoss", {"p": 2, "margin": 0.5}, [X, CLASSES]),
    "multilabel_margin_loss": ("MultiLabelMarginLoss", {}, [X, MANY]),
    "multilabel_soft_margin_loss": ("MultiLabelSoftMarginLoss", {}, [X, P]),
    "nll_loss": ("NLLLoss", {"ignore_index": 3}, [X, CLASSES]),
    "cross_entropy": ("CrossEntropyLoss", {"label_smoothing": 0.1}, [X, CLASSES]),
    "gaussian_nll_loss": ("GaussianNLLLoss", {"full": True}, [X, Y, P[:, :1] + 0.1]),
    "poisson_nll_loss": ("PoissonNLLLoss", {"full": True}, [X, Z]),
    "kl_div": ("KLDivLoss", {}, [X, P]),
    "huber_loss": ("HuberLoss", {}, [X, Y]),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, reduction: str) -> None:
    kind, options, arrays = ROWS[name]
    theirs = [torch.from_numpy(a.copy()) for a in arrays]
    theirs[0].requires_grad_()
    want = getattr(torch.nn, kind)(reduction=reduction, **options)(*theirs)
    (want.sum() * 1.0).backward()
    for run in (getattr(nn, kind)(reduction=reduction, **options),
                lambda *xs: getattr(F, name)(*xs, reduction=reduction, **options)):  # fmt: skip
        ours = [Tensor(a.astype(np.int32) if a.dtype == np.int64 else a.copy()) for a in arrays]
        ours[0].requires_grad_()
        got = run(*ours)
        got.sum().backward()
        assert got.shape == tuple(want.shape)
        np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=2e-5, atol=1e-6)
        grad = theirs[0].grad
        assert grad is not None and ours[0].grad is not None
        np.testing.assert_allclose(ours[0].grad.numpy(), grad.numpy(), rtol=5e-5, atol=1e-6)


def test_batchmean_and_shapes_without_a_batch() -> None:
    x, y = Tensor(X), Tensor(P)
    want = T.kl_div(torch.from_numpy(X), torch.from_numpy(P), reduction="batchmean")
    np.testing.assert_allclose(F.kl_div(x, y, "batchmean").item(), want.item(), rtol=1e-5)
    for name, args in (
        ("multi_margin_loss", (X[0], CLASSES[0])), ("multilabel_margin_loss", (X[0], MANY[0])),
        ("cosine_embedding_loss", (X[0], Y[0], SIGNS[0])), ("nll_loss", (X[0], CLASSES[0])),
        ("triplet_margin_loss", (X[0], Y[0], Z[0])),
    ):  # fmt: skip
        want = getattr(T, name)(*map(torch.tensor, args))
        ours = (Tensor(np.asarray(a, np.int32 if np.asarray(a).dtype.kind == "i" else np.float32))
                for a in args)  # fmt: skip
        np.testing.assert_allclose(getattr(F, name)(*ours).item(), want.item(), rtol=1e-5)


def test_wrong_calls_are_named() -> None:
    x = Tensor(X)
    for wrong, text in (
        (lambda: F.huber_loss(x, x, delta=0.0), "delta is 0.0"),
        (lambda: F.smooth_l1_loss(x, x, beta=-1.0), "beta is -1.0"),
        (lambda: F.mse_loss(x, Tensor(X[:3])), "shapes must agree"),
        (lambda: F.kl_div(x, x, "average"), "reduction"),
        (lambda: F.gaussian_nll_loss(x, x, Tensor(X[:3])), "var"),
        (lambda: F.multi_margin_loss(x, Tensor(CLASSES.astype(np.int32)), p=3), "p is 3"),
        (lambda: F.multi_margin_loss(x, x), "targets are float32"),
        (lambda: F.multilabel_margin_loss(x, Tensor(CLASSES.astype(np.int32))), "twice"),
    ):
        with pytest.raises(WeftError, match=text):
            wrong()
