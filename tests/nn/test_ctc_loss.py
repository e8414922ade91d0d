"""ctc_loss against PyTorch's values and gradients, by function, module, compiled and ATen: targets
that fit and that do not, repeated classes, empty ones, and lengths as numbers and as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import nn
from weft.core.errors import WeftError
from weft.importers.aten import entry
from weft.tensor import functional as F
from weft.tensor.core import Tensor


@dataclass(frozen=True)
class Case:
    """Shapes [T, N, C], the length of each sequence and of its target, and options. `most` is S,
    or None for targets one after another; `raw` numbers do not come from log_softmax."""

    shape: tuple[int, int, int]
    times: tuple[int, ...]
    sizes: tuple[int, ...]
    most: int | None = 3
    blank: int = 0
    zero_infinity: bool = False
    raw: bool = False


CASES = {
    "plain": Case((6, 3, 4), (6, 5, 4), (3, 2, 1)),
    "empty target": Case((6, 3, 4), (6, 5, 4), (3, 2, 0)),
    "repeated classes": Case((7, 3, 2), (7, 7, 6), (3, 3, 3)),
    "too long": Case((4, 3, 4), (4, 2, 4), (3, 3, 0)),
    "too long, zeros": Case((4, 3, 4), (4, 2, 4), (3, 3, 0), zero_infinity=True),
    "no steps": Case((5, 2, 3), (5, 0), (2, 0), most=2),
    "no steps, too long": Case((5, 2, 3), (5, 0), (2, 1), most=2, zero_infinity=True),
    "one after another": Case((6, 3, 4), (6, 5, 4), (3, 2, 1), most=None, blank=2),
    "raw numbers": Case((6, 3, 4), (6, 5, 4), (3, 2, 1), blank=3, raw=True),
}


def given(case: Case) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal(case.shape).astype(np.float32)
    x = x if case.raw else torch.from_numpy(x).log_softmax(-1).numpy()
    others = [c for c in range(case.shape[2]) if c != case.blank]
    targets = draw.choice(others, (case.shape[1], case.most or 3)).astype(np.int32)
    if case.most is None:
        targets = np.concatenate([row[:n] for row, n in zip(targets, case.sizes)])
    return x, targets


def by_torch(case: Case, reduction: str) -> tuple[np.ndarray, np.ndarray]:
    x, targets = given(case)
    a = torch.from_numpy(x.copy()).requires_grad_()
    loss = torch.nn.CTCLoss(case.blank, reduction, case.zero_infinity)
    sizes = (torch.tensor(case.times), torch.tensor(case.sizes))
    out = loss(a, torch.from_numpy(targets.astype(np.int64)), *sizes)
    out.sum().backward()
    assert a.grad is not None
    return out.detach().numpy(), a.grad.numpy()


def near(case: Case, reduction: str, run: Any, data: bool) -> None:
    x, targets = given(case)
    b = Tensor(x.copy()).requires_grad_()
    lengths: list[Any] = [case.times, case.sizes]
    if data:
        lengths = [Tensor(np.array(n, np.int32)) for n in lengths]
    got = run(b, Tensor(targets), *lengths)
    got.sum().backward()
    assert b.grad is not None
    for made, want in zip((got, b.grad), by_torch(case, reduction)):
        np.testing.assert_allclose(made.numpy(), want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, reduction: str) -> None:
    case = CASES[name]
    options = (case.blank, reduction, case.zero_infinity)
    near(case, reduction, lambda *xs: F.ctc_loss(*xs, *options), False)
    near(case, reduction, nn.CTCLoss(*options), True)


@pytest.mark.parametrize("kind", ["IntList", "Tensor"])
@pytest.mark.parametrize("name", ["plain", "one after another"])
def test_aten(name: str, kind: str) -> None:
    case, found = CASES[name], entry(f"aten.ctc_loss.{kind}")
    assert found is not None
    near(case, "sum", lambda *xs: found.run(*xs, case.blank, 2, False), kind == "Tensor")


@pytest.mark.parametrize("name", ["plain", "too long, zeros"])
def test_compiled_is_one_program(name: str) -> None:
    case = CASES[name]
    x, targets = given(case)

    def loss(x: Tensor, targets: Tensor, times: Tensor, sizes: Tensor) -> Tensor:
        return F.ctc_loss(x, targets, times, sizes, zero_infinity=case.zero_infinity)

    run = weft.compile(weft.value_and_grad(loss), "cpu")
    sizes = [Tensor(np.array(n, np.int32)) for n in (case.times, case.sizes)]
    for made, want in zip(run(Tensor(x), Tensor(targets), *sizes), by_torch(case, "mean")):
        np.testing.assert_allclose(made.numpy(), want, rtol=1e-5, atol=2e-6)
    assert len(run.programs()) == 1


def test_one_sequence_alone_and_narrow_floats() -> None:
    x, targets = given(CASES["plain"])
    alone = torch.from_numpy(x[:, 0])
    want = torch.nn.functional.ctc_loss(alone, torch.from_numpy(targets[0]).long(), (6,), (3,))
    got = F.ctc_loss(Tensor(x[:, 0].copy()), Tensor(targets[0]), 6, 3)
    assert got.shape == ()
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)
    for dtype, step in (("float16", 2.0**-10), ("bfloat16", 2.0**-7)):
        made = F.ctc_loss(Tensor(x[:, 0].copy()).cast(dtype), Tensor(targets[0]), 6, 3)
        assert made.dtype.name == "float32"
        np.testing.assert_allclose(made.numpy(), want.numpy(), rtol=2 * step)


def test_classes_that_do_not_exist_and_wrong_calls() -> None:
    x, targets = (Tensor(v) for v in given(CASES["plain"]))
    assert np.isnan(F.ctc_loss(x, weft.full((3, 3), 9, dtype="int32"), (6, 6, 6), (1, 1, 1)).item())
    for wrong, text in (
        (lambda: F.ctc_loss(x, targets, (7, 5, 4), (3, 2, 1)), "input_lengths"),
        (lambda: F.ctc_loss(x, targets, (6, 5, 4), (4, 2, 1)), "target_lengths"),
        (lambda: F.ctc_loss(x, targets, (6, 5), (3, 2, 1)), "3 sequences"),
        (lambda: F.ctc_loss(x, targets, (6, 5, 4), (3, 2, 1), blank=4), "blank 4"),
        (lambda: F.ctc_loss(x, x, (6, 5, 4), (3, 2, 1)), "integers"),
        (lambda: F.ctc_loss(x, targets[:2], (6, 5, 4), (3, 2, 1)), "3 sequences"),
    ):
        with pytest.raises(WeftError, match=text):
            wrong()
