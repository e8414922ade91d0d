"""Kernels for a target that ends a thread's loops after so many turns (llvmpipe: 65,535)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from present import opened

import weft
from weft.backends.interp import InterpDevice
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import LimitError
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Kernel
from weft.kernel.turns import most_turns, within_turns
from weft.tensor import functional as F

CAPS = PRESETS["lavapipe"]

IDS = weft.tensor([0, 2] * 400)
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
CASES: dict[str, Case] = {
    "product": (lambda x, y: x @ y, ((1, 1100), (1100, 3))),
    "product of rows": (lambda x, y: x @ y.mT, ((17, 1100), (2, 1100))),
    "softmax": (lambda x: F.softmax(x), ((1, 1100),)),
    "sum": (lambda x: x.sum(1), ((2, 1300),)),
    "argmax": (lambda x: weft.argmax(x, axis=1), ((2, 1300),)),
    "argmax of columns": (lambda x: weft.argmax(x, axis=0), ((1300, 2),)),
    "take's gradient": (
        lambda x, y: weft.value_and_grad(lambda t: (weft.take(t, IDS, axis=0) * y).sum())(x)[1],
        ((3, 2), (800, 2)),
    ),
}


def looping(turns: int) -> Kernel:
    """Counts how often a loop in a loop goes round."""
    b = Builder("count")
    out = b.buffer("out", dt.int32, 1, "w")
    count = b.var(0, "count", kb.const(0).type)
    with b.loop(turns, name="i"), b.loop(10, 2, 3, name="j"):
        b.assign(count, count + 1)
    b.store(out, kb.const(0), count)
    return b.kernel((1,), (1,))


def test_turns_are_counted() -> None:
    """A loop's end counts: 7 outer turns of 3 + 1 inner ones and one more, and an end."""
    assert most_turns(looping(7)) == 7 * (3 + 1 + 1) + 1


def test_no_more_than_given() -> None:
    kernel = looping(7)
    assert within_turns(kernel, 36) is kernel and within_turns(kernel, 0) is kernel
    assert most_turns(within_turns(kernel, 35)) <= 35
    with pytest.raises(LimitError, match=r"count: .* 36 times, .* after 20"):
        within_turns(kernel, 20)


@pytest.mark.parametrize("name", CASES)
def test_fewer_turns_change_no_bit(name: str) -> None:
    fn, shapes = CASES[name]
    rng = np.random.default_rng(0)
    xs = [weft.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]
    results, turns = [], []
    for most in (0, 0.4):
        caps = replace(CAPS, max_turns=int(most * turns[0]) if most else 0)
        compiled = weft.compile(fn, device=InterpDevice(caps))
        results.append(compiled(*xs).numpy())
        turns.append(max(most_turns(k) for p in compiled.programs() for k in p.kernels))
    assert turns[1] <= 0.4 * turns[0]
    assert np.array_equal(*results)


def test_what_takes_too_long_is_refused() -> None:
    """By name, where the program is compiled."""
    ids = weft.tensor(np.zeros(1 << 22, np.int32))

    def gradient(table: Any, y: Any) -> Any:
        return weft.value_and_grad(lambda t: (weft.take(t, ids, axis=0) * y).sum())(table)[1]

    graph = weft.compile(gradient, device="cpu")
    graph(weft.tensor(np.zeros((3, 1), np.float32)), weft.tensor(np.ones((1 << 22, 1), np.float32)))
    with pytest.raises(LimitError, match=r"scatter_add float32\[3, 1\]: .* ends them after 65,5"):
        compile_graph(graph.graphs()[0], CAPS)


VULKAN: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "product": (lambda x, y: x @ y, lambda x, y: x @ y, ((1, 70000), (70000, 3))),
    "sum": (lambda x: x.sum(1), lambda x: x.sum(1), ((3, 100000),)),
    "max": (lambda x: x.max(1), lambda x: x.max(1), ((3, 300000),)),
    "softmax": (
        lambda x: F.softmax(x, axis=0).sum(1),
        lambda x: (np.exp(x - x.max(0)) / np.exp(x - x.max(0)).sum(0)).sum(1),
        ((300000, 2),),
    ),
    "argmax": (
        lambda x: weft.argmax(x, axis=0),
        lambda x: x.argmax(0),
        ((100000, 3),),
    ),
}


@pytest.fixture(scope="module")
def vulkan() -> str:
    return opened("vulkan").kind


@pytest.mark.parametrize("name", VULKAN)
def test_long_loops_on_vulkan(vulkan: str, name: str) -> None:
    """Against float64: llvmpipe ended these loops early, and gave what it had."""
    fn, reference, shapes = VULKAN[name]
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    for x in xs:
        x[..., -1] = 9  # what counts most comes last
    got = weft.compile(fn, device=vulkan)(*map(weft.tensor, xs)).numpy()
    want = reference(*(x.astype(np.float64) for x in xs))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-3)


def test_attention_gradients_on_vulkan(vulkan: str) -> None:
    """Of more than 300 rows of 64 components, against the CPU."""
    rng = np.random.default_rng(0)
    given = [weft.tensor(rng.standard_normal((1, 1, 310, 64)).astype(np.float32)) for _ in range(4)]

    def gradients(*xs: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            return (F.scaled_dot_product_attention(q, k, v, is_causal=True) * xs[3]).sum()

        return weft.value_and_grad(loss, (0, 1, 2))(*xs[:3])[1]

    want = weft.compile(gradients, device="cpu")(*given)
    for got, expected in zip(weft.compile(gradients, device=vulkan)(*given), want):
        np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=2e-5)
