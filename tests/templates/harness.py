"""Groups built by hand from traced functions, run as one kernel, against the graph oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from weft import ops
from weft.conform.harness import check_close, check_equal, run_kernel
from weft.core.caps import PRESETS, Caps
from weft.core.dtypes import DType
from weft.graph.ir import Graph, Node, toposort
from weft.kernel.verify import verify
from weft.ops.evaluate import evaluate
from weft.templates import registry
from weft.templates.group import Group

TARGETS = ("cpu-avx512", "cpu-avx2", "cpu-neon", "webgpu", "lavapipe", "cuda", "hip-wave64")
CPU_STYLE, GPU_STYLE = TARGETS[:3], TARGETS[3:]
# Each has kernels of its own; the other presets are variations, for the slow tests.
QUICK = ("cpu", "vulkan", "cpu-avx512", "cpu-amx", "webgpu", "cuda")


def targets(*cases: Any) -> list[Any]:
    """Names of targets, or tuples that begin with one, as parameters: most are slow tests."""
    named = [c if isinstance(c, tuple) else (c,) for c in cases]
    slow = pytest.mark.slow
    return [pytest.param(*c, marks=[] if c[0] in QUICK else [slow]) for c in named]


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
    from weft.core.dtypes import as_dtype

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


@functools.lru_cache
def cpu_device() -> Any:
    from weft.backends.registry import get

    return get("cpu")


def run_interp(
    group: Group, caps: Caps, arrays: Sequence[np.ndarray], scalars: Sequence[int] = ()
) -> list[np.ndarray]:
    """The group's outputs, computed by the interpreter on these Caps."""
    from weft.kernel import interp

    kernel = registry.get(group.kind)(group, caps, {})
    verify(kernel)
    buffers, where = _buffers(group, arrays)
    interp.run(kernel, buffers, list(scalars), caps=caps)
    return _outputs(group, buffers, where)


def run_device(
    device: Any, group: Group, arrays: Sequence[np.ndarray], scalars: Sequence[int] = ()
) -> list[np.ndarray]:
    """The group's outputs, computed by a device."""
    kernel = registry.get(group.kind)(group, device.caps, {})
    verify(kernel)
    buffers, where = _buffers(group, arrays)
    return _outputs(group, run_kernel(device, kernel, buffers, scalars), where)


def run_cpu(
    group: Group, arrays: Sequence[np.ndarray], scalars: Sequence[int] = ()
) -> list[np.ndarray]:
    """The group's outputs, computed by native code on the host."""
    return run_device(cpu_device(), group, arrays, scalars)


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


def _outputs(group: Group, buffers: Sequence[np.ndarray], where: Sequence[int]) -> list[np.ndarray]:
    return [buffers[w][: o.size].reshape(o.shape) for o, w in zip(group.outputs, where)]


def check(
    fn: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    kind: str = "map",
    anchor: str | None = None,
    targets: Sequence[str] = TARGETS,
    cpu: bool = True,
    tolerance: str | None = None,
    device: Any = None,
) -> None:
    """Runs fn's group everywhere and compares with the oracle: exactly for integers, else by the
    tolerance table."""
    graph = trace(fn, arrays)
    group = group_of(graph, kind, anchor)
    with np.errstate(all="ignore"):
        want = evaluate(graph, list(arrays))
    runs = {t: functools.partial(run_interp, group, PRESETS[t], arrays) for t in targets}
    if cpu:
        runs["cpu"] = functools.partial(run_cpu, group, arrays)
    if device is not None:
        runs[device.info.id] = functools.partial(run_device, device, group, arrays)
    for name, run in runs.items():
        for got, w, node in zip(run(), want, group.outputs):
            try:
                if node.dtype.is_float and tolerance != "exact":
                    check_close(got, w, tolerance or "elementwise", node.dtype)
                else:
                    check_equal(got, w)
            except Exception as error:
                raise AssertionError(f"{name}: {node!r}: {error}") from error
