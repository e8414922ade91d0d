"""Groups built by hand from traced functions, run as one kernel, against the graph oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from product_kit import device

from weft import ops
from weft.conform.harness import check_close, check_equal, run_kernel
from weft.core.caps import PRESETS, Caps
from weft.core.dtypes import DType, as_dtype
from weft.graph.ir import Graph, Node, toposort
from weft.kernel import interp
from weft.kernel.verify import verify
from weft.ops.evaluate import evaluate
from weft.program.device import Device
from weft.templates import registry
from weft.templates.group import Group

TARGETS = ("cpu-avx512", "cpu-avx2", "cpu-neon", "webgpu", "lavapipe", "cuda", "hip-wave64")
TIERS = (*TARGETS, "cpu")  # interpreted for these, and this CPU's own code
# Each has kernels of its own; the other presets are variations, for the slow tests.
QUICK = ("cpu", "vulkan", "cpu-avx512", "cpu-amx", "webgpu", "cuda")


def targets(*cases: Any) -> list[Any]:
    """Names of targets, or tuples that begin with one, as parameters: most are slow tests."""
    named = [c if isinstance(c, tuple) else (c,) for c in cases]
    slow = pytest.mark.slow
    return [pytest.param(*c, marks=[] if c[0] in QUICK else [slow]) for c in named]


# What plays a case: who has kernels of its own by default, the variations as a slow test.
some_tiers = pytest.mark.parametrize(
    "tiers",
    [
        pytest.param(tuple(t for t in TIERS if t in QUICK), id="some"),
        pytest.param(
            tuple(t for t in TIERS if t not in QUICK), id="others", marks=pytest.mark.slow
        ),
    ],
)


def random(dtype: DType, shape: Sequence[int], seed: int = 0, scale: float = 2.0) -> np.ndarray:
    """Values of a dtype that make mistakes visible: signed, distinct, not too large."""
    rng = np.random.default_rng([seed, *shape])
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_float:
        return (rng.standard_normal(shape) * scale).astype(np.float32).astype(dtype.numpy)
    low = -100 if dtype.kind == "int" else 0
    return rng.integers(low, 101, shape).astype(dtype.numpy)


def trace(fn: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Graph:
    """The graph of `fn` on inputs like `arrays`."""
    inputs = tuple(
        ops.input_node(f"x{i}", a.shape, as_dtype(a.dtype)) for i, a in enumerate(arrays)
    )
    with ops.building():
        out = fn(*inputs)
    return Graph(inputs, tuple(out) if isinstance(out, tuple | list) else (out,))


def anchor_of(graph: Graph, op: str) -> Node:
    return next(n for n in toposort(graph.outputs) if n.op == op)


def group_of(graph: Graph, kind: str, anchor: str | None, **extra: Any) -> Group:
    big = [n for n in toposort(graph.outputs) if n.op == "const" and n.shape != ()]
    node = None if anchor is None else anchor_of(graph, anchor)
    return Group(kind, (*graph.inputs, *big), graph.outputs, node, **extra)


def play(
    tier: str | Caps | Device, group: Group, arrays: Sequence[np.ndarray], *scalars: int
) -> list[np.ndarray]:
    """The group's outputs, computed by the interpreter with a target's Caps, or by a device."""
    if isinstance(tier, str):
        tier = PRESETS[tier] if tier in PRESETS else device(tier)
    caps = tier if isinstance(tier, Caps) else tier.caps
    if tier is not caps and not all(tier.supports(as_dtype(a.dtype)) for a in arrays):
        pytest.skip(f"{tier.info.id} does not store these dtypes")
    kernel = registry.get(group.kind)(group, caps, {})
    verify(kernel)
    buffers, where = _buffers(group, arrays)
    if isinstance(tier, Caps):
        interp.run(kernel, buffers, list(scalars), caps=caps)
    else:
        buffers = run_kernel(tier, kernel, buffers, scalars)
    return [buffers[w][: o.size].reshape(o.shape) for o, w in zip(group.outputs, where)]


def _buffers(group: Group, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    values = [*arrays, *(n.attrs["value"] for n in group.inputs[len(arrays) :])]
    flat = [np.array(v).reshape(-1) for v in values]
    flat = [v if v.size else np.zeros(1, v.dtype) for v in flat]
    where = []
    for i, o in enumerate(group.outputs):
        if i in group.in_place:
            where.append(group.in_place[i])
            continue
        where.append(len(flat))
        flat.append(np.zeros(max(o.size, 1), o.dtype.numpy))
        flat[-1].view(np.uint8)[:] = 0x5B if o.dtype.kind != "bool" else 0
    return flat, where


def check(
    fn: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    kind: str = "map",
    anchor: str | None = None,
    tiers: Sequence[str] = TIERS,
    tolerance: str | None = None,
) -> None:
    """Plays fn's group on every tier and compares with the oracle: exactly for integers, else by
    the tolerance table."""
    graph = trace(fn, arrays)
    group = group_of(graph, kind, anchor)
    with np.errstate(all="ignore"):
        want = evaluate(graph, list(arrays))
    for tier in tiers:
        for got, w, node in zip(play(tier, group, arrays), want, group.outputs):
            try:
                if node.dtype.is_float and tolerance != "exact":
                    check_close(got, w, tolerance or "elementwise", node.dtype)
                else:
                    check_equal(got, w)
            except Exception as error:
                raise AssertionError(f"{tier}: {node!r}: {error}") from error
