"""Derivatives by the tape and by central differences, for the gradient tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import ops
from weft.ops.tape import Tracked, plain, walk

Fn = Callable[..., Any]


def seed_for(out: np.ndarray) -> np.ndarray:
    """Unequal weights for the elements of a result."""
    return (
        (np.cos(np.arange(out.size, dtype=np.float64)) + 1.5).reshape(out.shape).astype(out.dtype)
    )


def grads(fn: Fn, *xs: np.ndarray, seed: np.ndarray | None = None) -> list[np.ndarray]:
    """The tape's gradients of sum(fn(*xs) * seed); zeros for an operand that gets none."""
    leaves = [Tracked(x) if x.dtype.kind == "f" else x for x in xs]
    out = fn(*leaves)
    if not isinstance(out, Tracked):
        return [np.zeros_like(x) for x in xs]
    found = walk(out, seed_for(out.value) if seed is None else seed)
    return [found[id(t)][1] if id(t) in found else np.zeros_like(x) for t, x in zip(leaves, xs)]


def differences(fn: Fn, xs: Sequence[np.ndarray], at: int, step: float = 1e-6) -> np.ndarray:
    """Central differences of sum(fn(*xs) * seed) by operand `at`, in float64."""
    xs = [np.array(x) for x in xs]
    x, out = xs[at], np.zeros(xs[at].shape)
    for i in np.ndindex(x.shape):
        before, sides = x[i], []
        for s in (step, -step):
            x[i] = before + s
            value = np.asarray(fn(*xs))
            sides.append(float((value * seed_for(value)).sum()))
        x[i] = before
        out[i] = (sides[0] - sides[1]) / (2 * step)
    return out


def check(fn: Fn, *xs: np.ndarray, rtol: float = 1e-5) -> None:
    """First derivatives against central differences."""
    for i, (x, got) in enumerate(zip(xs, grads(fn, *xs))):
        if x.dtype.kind == "f":
            assert got.shape == x.shape and got.dtype == x.dtype, f"operand {i}: {got.dtype}"
            np.testing.assert_allclose(
                got, differences(fn, xs, i), rtol=rtol, atol=1e-6, err_msg=f"operand {i}"
            )


def slope(fn: Fn, *xs: Any) -> Any:
    """sum(weights * first derivatives), as a value that can be differentiated again."""
    leaves = [x if isinstance(x, Tracked) or x.dtype.kind != "f" else Tracked(x) for x in xs]
    out = fn(*leaves)
    found = walk(out, seed_for(plain(out)), {id(t) for t in leaves}, create_graph=True)
    total: Any = np.zeros(())
    for i, t in enumerate(leaves):
        if id(t) in found:
            g = found[id(t)][1]
            weights = np.sin(np.arange(plain(g).size) + i + 1.0).reshape(plain(g).shape)
            total = ops.add(total, ops.sum_(ops.mul(g, weights)))
    return total


def check_second(fn: Fn, *xs: np.ndarray, rtol: float = 1e-4) -> None:
    """Second derivatives: central differences of the first ones."""
    first = lambda *values: plain(slope(fn, *values))  # noqa: E731
    leaves = [Tracked(x) if x.dtype.kind == "f" else x for x in xs]
    out = slope(fn, *leaves)
    found = walk(out, np.ones(())) if isinstance(out, Tracked) else {}
    for i, (t, x) in enumerate(zip(leaves, xs)):
        if x.dtype.kind == "f":
            got = found[id(t)][1] if id(t) in found else np.zeros_like(x)
            want = differences(first, xs, i) / float(seed_for(np.zeros(())))
            np.testing.assert_allclose(got, want, rtol=rtol, atol=2e-6, err_msg=f"operand {i}")
