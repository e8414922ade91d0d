"""PyTorch's names: each call gives what PyTorch gives, with the gradients, eager and compiled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.core.errors import CallError, DTypeError, GradientError, ShapeError, TraceError

A = np.random.default_rng(0).uniform(-2, 2, (4, 6)).astype(np.float32)
B = np.random.default_rng(1).uniform(0.5, 2, (4, 6)).astype(np.float32)
C = np.random.default_rng(2).uniform(-1, 1, (3, 4, 5)).astype(np.float32)
PLACES = np.array([[2, 0, 1, 1, 3, 0], [1, 1, 0, 2, 2, 3]], np.int64)
N = np.random.default_rng(3).integers(-9, 9, (4, 6)).astype(np.int32)
M = np.array([7, -7, 3, -3, 5, 2], np.int32)
V = np.array([2, 2, -2, 3, -5, 4], np.int32)

# name -> (function of the module and tensors, tensors)
CALLS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "sum": (lambda m, x: x.sum(dim=1, keepdim=True), (A,)),
    "sum of several": (lambda m, x: m.sum(x, dim=(0, 2)), (C,)),
    "mean": (lambda m, x: x.mean(dim=-1), (A,)),
    "var": (lambda m, x: x.var(dim=0), (A,)),
    "var, biased": (lambda m, x: x.var(dim=0, unbiased=False, keepdim=True), (A,)),
    "std": (lambda m, x: m.std(x, dim=1), (A,)),
    "max": (lambda m, x: x.max(dim=1).values, (A,)),
    "max, both": (lambda m, x: m.max(x, dim=0, keepdim=True), (A,)),
    "min": (lambda m, x: x.min(dim=1)[1], (A,)),
    "sort": (lambda m, x: x.sort(dim=0, descending=True), (A,)),
    "argsort": (lambda m, x: m.argsort(x, dim=1), (A,)),
    "argmax": (lambda m, x: x.argmax(dim=1, keepdim=True), (A,)),
    "topk": (lambda m, x: x.topk(2, dim=0), (A,)),
    "all": (lambda m, x: (x > 0).all(dim=1), (A,)),
    "cumsum": (lambda m, x: x.cumsum(dim=1), (A,)),
    "logsumexp": (lambda m, x: x.logsumexp(dim=1, keepdim=True), (A,)),
    "softmax": (lambda m, x: m.softmax(x, dim=0), (A,)),
    "squeeze": (lambda m, x: x.unsqueeze(dim=1).squeeze(dim=0).squeeze(dim=1), (A,)),
    "cat": (lambda m, x, y: m.cat([x, y], dim=1), (A, B)),
    "stack": (lambda m, x, y: m.stack([x, y], dim=-1), (A, B)),
    "split": (lambda m, x: x.split(4, dim=1), (A,)),
    "chunk": (lambda m, x: m.chunk(x, chunks=4, dim=1), (A,)),
    "unbind": (lambda m, x: x.unbind(1), (C,)),
    "flip": (lambda m, x: x.flip(dims=(0, 1)), (A,)),
    "roll": (lambda m, x: x.roll(shifts=2, dims=1), (A,)),
    "permute": (lambda m, x: x.permute(dims=(2, 0, 1)), (C,)),
    "transpose": (lambda m, x: x.transpose(dim0=0, dim1=2), (C,)),
    "swapaxes": (lambda m, x: m.swapaxes(x, 0, 1), (A,)),
    "movedim": (lambda m, x: x.movedim(0, 2), (C,)),
    "flatten": (lambda m, x: x.flatten(start_dim=1), (C,)),
    "unflatten": (lambda m, x: x.unflatten(1, (-1, 2)), (A,)),
    "ravel": (lambda m, x: m.ravel(x), (A,)),
    "t": (lambda m, x: x.t(), (A,)),
    "repeat": (lambda m, x: x.repeat(2, 1, 3), (A,)),
    "expand_as": (lambda m, x, y: x[:, :1].expand_as(y), (A, B)),
    "view_as": (lambda m, x: x.view_as(x.reshape(3, 8)), (A,)),
    "select": (lambda m, x: x.select(1, -2), (C,)),
    "diagonal": (lambda m, x: x.diagonal(1), (A,)),
    "diagonal of a batch": (lambda m, x: x.diagonal(-1, 2, 1), (C,)),
    "trace": (lambda m, x: x.trace(), (A,)),
    "tril": (lambda m, x: x.tril(1), (A,)),
    "fliplr": (lambda m, x: m.fliplr(x), (A,)),
    "repeat_interleave": (lambda m, x: m.repeat_interleave(x, 2, dim=0), (A,)),
    "index_select": (lambda m, x, i: x.index_select(1, i), (A, PLACES[0])),
    "gather": (lambda m, x, i: x.gather(dim=0, index=i), (A, PLACES)),
    "take_along_dim": (lambda m, x, i: m.take_along_dim(x, i, dim=0), (A, PLACES)),
    "masked_fill": (lambda m, x: x.masked_fill(x > 0.5, -1.0), (A,)),
    "scatter": (lambda m, x, i: x.scatter(1, i[:, :1], 7.0), (A[:2], PLACES)),
    "scatter_add by columns": (
        lambda m, x, i, y: x.T.scatter_add(1, i.T, y[:2].T), (A, PLACES, B)
    ),
    "scatter_add": (lambda m, x, i, y: x.scatter_add(0, i, y), (A, PLACES, B[:2])),
    "index_add": (lambda m, x, i, y: x.index_add(1, i, y, alpha=2), (A, PLACES[0], B)),
    "add": (lambda m, x, y: x.add(y, alpha=0.5), (A, B)),
    "sub": (lambda m, x, y: m.sub(x, y, alpha=2), (A, B)),
    "mul": (lambda m, x, y: m.mul(x, y), (A, B)),
    "div": (lambda m, x, y: x.div(y), (A, B)),
    "div, floor": (lambda m, x, y: x.div(y, rounding_mode="floor"), (A, B)),
    "div, trunc": (lambda m, x, y: x.div(y, rounding_mode="trunc"), (A, B)),
    "div of integers": (lambda m, x, y: x.div(y, rounding_mode="trunc"), (M, V)),
    "pow": (lambda m, x: x.pow(3), (A,)),
    "neg": (lambda m, x: m.neg(x), (A,)),
    "addcmul": (lambda m, x, y: x.addcmul(x, y, value=0.3), (A, B)),
    "addcdiv": (lambda m, x, y: x.addcdiv(x, y, value=0.3), (A, B)),
    "clamp": (lambda m, x: x.clamp(-1, 1), (A,)),
    "clamp_min": (lambda m, x: m.clamp_min(x, 0.25), (A,)),
    "clamp_max": (lambda m, x: x.clamp(max=0.25), (A,)),
    "compare": (lambda m, x, y: (x.gt(y), x.le(y), x.eq(x), x.ne(y), m.lt(x, y)), (A, B)),
    "log1p": (lambda m, x: x.log1p(), (B,)),
    "atan2": (lambda m, x, y: x.atan2(y), (A, B)),
    "lerp": (lambda m, x, y: x.lerp(y, 0.25), (A, B)),
    "isfinite": (lambda m, x: x.log().isfinite(), (A,)),
    "bitwise": (lambda m, x, y: (x.bitwise_and(y), x.bitwise_not(), x.bitwise_xor(y)), (M, V)),
    "norm": (lambda m, x: x.norm(dim=1), (A,)),
    "norm of 3": (lambda m, x: x.norm(p=3), (A,)),
    "amax": (lambda m, x: x.amax(dim=(0, 1)), (C,)),
    "count_nonzero": (lambda m, x: (x > 0).count_nonzero(dim=1), (A,)),
    "mm": (lambda m, x, y: m.mm(x, y.t()), (A, B)),
    "bmm": (lambda m, x: m.bmm(x, x.transpose(1, 2)), (C,)),
    "mv": (lambda m, x, y: x.mv(y[0]), (A, B)),
    "dot": (lambda m, x, y: m.dot(x[0], y[1]), (A, B)),
    "outer": (lambda m, x, y: m.outer(x[0], y[1]), (A, B)),
    "addmm": (lambda m, x, y: m.addmm(x[:, :4], x, y.t(), beta=0.5, alpha=2), (A, B)),
    "casts": (lambda m, x: (x.float(), x.half(), x.int(), x.bool(), x.bfloat16().float()), (A,)),
    "new": (lambda m, x: (x.new_zeros(2, 3), x.new_ones((2,)), x.new_full((3,), 2.5)), (A,)),
    "in place": (lambda m, x, y: (x * 1).add_(y).mul_(2).clamp_(-1, 3).neg_().copy_(y[:1]), (A, B)),
    "in place on a view": (lambda m, x: _through_a_view(x * 1), (A,)),
    "in place, picked": (
        lambda m, x, i, y: (x * 1).scatter_add_(0, i, y[:2]).index_add_(1, i[0], y), (A, PLACES, B),
    ),
    "masked_fill_": (lambda m, x: (x * 1).masked_fill_(x < 0, 0.5).sqrt_(), (A,)),
    "zero_": (lambda m, x: (x * 1).zero_() + x, (A,)),
    "functional": (lambda m, x: m.nn.functional.normalize(x, dim=1) if m is torch
                   else weft.functional.normalize(x, dim=1), (A,)),
}  # fmt: skip


def _through_a_view(x: Any) -> Any:
    x[1].mul_(3)
    x.t()[0].add_(1)
    return x


def leaves(found: Any) -> list[Any]:
    return [x for one in found for x in leaves(one)] if isinstance(found, tuple | list) else [found]


def agree(got: Any, want: Any) -> None:
    mine, theirs = leaves(got), leaves(want)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs):
        assert tuple(a.shape) == tuple(b.shape)
        assert a.dtype.is_float == b.dtype.is_floating_point
        theirs_ = b.detach().float().numpy() if b.dtype == torch.bfloat16 else b.detach().numpy()
        np.testing.assert_allclose(a.detach().numpy(), theirs_, rtol=2e-6, atol=2e-6)


def arguments(of: Callable[[np.ndarray], Any], given: tuple[np.ndarray, ...]) -> list[Any]:
    return [of(x) if x.dtype != np.float32 else of(x).requires_grad_() for x in given]


def loss(found: Any) -> Any:
    floats = [x for x in leaves(found) if (x.dtype in (torch.float32, weft.float32))]
    parts = [(x * x * 0.5 + x).sum() for x in floats]
    return sum(parts[1:], parts[0]) if parts else None


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients(name: str) -> None:
    call, given = CALLS[name]
    mine, theirs = arguments(weft.tensor, given), arguments(torch.tensor, given)
    got, want = call(weft, *mine), call(torch, *theirs)
    agree(got, want)
    total, expected = loss(got), loss(want)
    if expected is None or not expected.requires_grad:
        return
    total.backward()
    expected.backward()
    for a, b in zip(mine, theirs):
        if b.requires_grad and b.grad is not None:
            mine_ = np.zeros(b.shape) if a.grad is None else a.grad.numpy()
            np.testing.assert_allclose(mine_, b.grad.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CALLS)
def test_compiled(name: str) -> None:
    call, given = CALLS[name]
    tensors = [weft.tensor(x) for x in given]
    compiled = weft.compile(lambda *xs: call(weft, *xs), device="cpu")
    want = call(torch, *[torch.tensor(x) for x in given])
    agree(compiled(*tensors), want)


def test_an_integer_takes_no_float_in_place() -> None:
    with pytest.raises(DTypeError, match="use add"):
        weft.tensor([1, 2]).add_(0.5)
    assert weft.tensor([1, 2]).add_(3).tolist() == [4, 5]


def test_a_result_of_another_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match="the result is"):
        weft.ones((1, 3)).add_(weft.ones((2, 3)))


def test_a_leaf_that_requires_gradients_is_not_written() -> None:
    with pytest.raises(GradientError, match="no_grad"):
        weft.ones(3).requires_grad_().add_(1)


def test_a_gradient_through_a_written_value_is_right() -> None:
    """PyTorch refuses it; here what a tape holds never changes."""
    x = weft.tensor([1.0, 2.0]).requires_grad_()
    y = x * 2
    z = y * y
    y.add_(1)
    z.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8.0, 16.0]


def test_two_names_of_one_argument() -> None:
    with pytest.raises(CallError, match="one argument"):
        weft.ones((2, 2)).sum(axis=0, dim=1)


def test_facts() -> None:
    x = weft.ones((2, 3))
    assert (x.dim(), x.numel(), x.element_size(), x.nbytes) == (2, 6, 4, 24)
    assert x.size == 6 and x.size() == (2, 3) and x.size(-1) == x.size(dim=1) == 3
    assert type(pickle.loads(pickle.dumps(x.size))) is int  # our own, not a stranger's
    with pytest.raises(ShapeError, match="axis 2"):
        x.size(2)
    assert x.is_floating_point() and x.is_leaf and not (x.requires_grad_() * 2).is_leaf
    assert x.equal(weft.ones((2, 3))) and not x.equal(weft.ones(3))
    assert weft.allclose(x, x + 1e-7) and not weft.allclose(x, x + 1)
    assert weft.masked_select(x, x > 0).shape == (6,)


@pytest.mark.parametrize("module", [weft, torch])
def test_augmented_assignments_are_writes(module: Any) -> None:
    x = module.ones((2, 3))
    y, row = x, x[0]
    y += 1
    row *= 3
    y -= 0.5
    y /= 2
    y **= 2
    assert x.tolist() == [[7.5625] * 3, [0.5625] * 3]
    mask = module.ones(2) > 0
    other = mask
    other &= module.ones(2) < 0
    assert mask.tolist() == [False, False]


def test_a_compiled_function_writes_to_no_argument() -> None:
    def fn(x: Any) -> Any:
        x += 1
        return x

    with pytest.raises(TraceError, match="is assigned to"):
        weft.compile(fn, device="cpu")(weft.ones(3))


def test_a_step_of_gradient_descent_by_hand() -> None:
    w = weft.ones(3).requires_grad_()
    held = w
    (w * w).sum().backward()
    with weft.no_grad():
        w -= 0.25 * w.grad  # type: ignore[operator]
    assert held.tolist() == [0.5] * 3 and held.requires_grad
