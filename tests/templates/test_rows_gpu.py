"""Norms, reductions and maps on GPUs: teams of threads, vectors, rows kept in registers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import check, group_of, play, random, trace
from rows import by_turns

from weft import ops
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel import interp
from weft.templates import registry
from weft.templates.lanes import vector_lanes

sys.path.append(str(Path(__file__).parent.parent / "backends"))
F32, BF16 = dt.float32, dt.bfloat16
GPUS = [t for t in ("cuda", "hip-wave64", "hip-wave32", "webgpu") if t in PRESETS]


def _check(fn: Any, arrays: list[np.ndarray], kind: str = "norm", anchor: Any = "call") -> None:
    check(fn, arrays, kind, anchor, GPUS, tolerance="reduce")


@pytest.mark.parametrize(
    "n,dtype", by_turns([24, 136, 768, 1030, 2048, 6000], [F32, BF16]), ids=repr
)
def test_rows(n: int, dtype: dt.DType) -> None:
    """Parts of subgroups, whole ones, groups; rows that end inside a vector step."""
    x, w, g = random(dtype, (3, n)), random(dtype, (n,), 1), random(dtype, (3, n), 2)
    _check(lambda x: ops.call("softmax", x), [x])
    _check(lambda x, w, g: ops.call("layer_norm_grad", x, w, g, eps=1e-3), [x, w, g])


def test_rows_beyond_the_registers() -> None:
    x, t = random(F32, (2, 20000)), np.array([7, 19999], np.int32)
    _check(lambda x, t: ops.call("cross_entropy", x, t, label_smoothing=0.1), [x, t])
    _check(lambda x: ops.call("log_softmax", ops.mul(x, x)), [x])


def test_one_read_and_one_write() -> None:
    """A row that fits the registers is loaded once, two elements at a time."""
    for dtype, lanes in ((F32, 2), (BF16, 2)):
        arrays = [random(dtype, (2, 4096))]
        group = group_of(trace(lambda x: ops.call("softmax", x), arrays), "norm", "call")
        kernel = registry.get("norm")(group, PRESETS["cuda"], {})
        text = repr(kernel.body)
        loads = text.count("Load(source=Buffer(name='in0'")
        assert loads * lanes * kernel.threads[0] == 4096
        assert text.count("Store(target=Buffer(name='out0'") == loads


@pytest.mark.parametrize("dtype", [F32, BF16, dt.int8], ids=repr)
@pytest.mark.parametrize("shape", [(70, 3, 64), (5, 1100), (2, 3, 9000), (40, 7)], ids=repr)
def test_teams(shape: tuple[int, ...], dtype: dt.DType) -> None:
    x = random(dtype, shape)
    _check(lambda x: ops.sum_(x, (len(shape) - 1,)), [x], "reduce", "sum")
    _check(lambda x: ops.argmax(x, len(shape) - 1), [x], "reduce", "argmax")
    _check(lambda x: ops.max_(x, tuple(range(1, len(shape)))), [x], "reduce", "max")


@pytest.mark.parametrize("dtype", [F32, BF16, dt.int8], ids=repr)
@pytest.mark.parametrize("shape", [(35, 40), (300, 66), (2, 130, 132)], ids=repr)
def test_columns(shape: tuple[int, ...], dtype: dt.DType) -> None:
    x = random(dtype, shape)
    axis = len(shape) - 2
    _check(lambda x: ops.sum_(ops.mul(x, x), (axis,)), [x], "reduce", "sum")
    _check(lambda x: ops.add(ops.max_(x, (axis,)), 1.0), [x.astype(np.float32)], "reduce", "max")
    _check(lambda x: ops.argmax(x, axis), [x], "reduce", "argmax")


def test_large_maps_take_several_vectors() -> None:
    """A thread moves four vectors of a large map, and the kernel says so by its grid."""
    x = np.zeros((2048, 2048), np.float32)
    graph = trace(lambda x, y: (ops.mul(x, y), ops.add(x, 1.0)), [x, x])
    kernel = registry.get("map")(group_of(graph, "map", None), PRESETS["cuda"], {})
    assert kernel.grid[0].value * 256 * 4 * 4 == x.size  # type: ignore[attr-defined]
    small = registry.get("map")(group_of(graph, "map", None), PRESETS["webgpu"], {})
    assert small.grid[0].value * 256 * 4 == x.size  # type: ignore[attr-defined]


def test_several_vectors_compute_the_same() -> None:
    x, y = random(BF16, (64, 256)), random(BF16, (64, 256), 1)
    graph = trace(lambda x, y: (ops.mul(x, y), ops.reshape(ops.add(x, y), (32, 512))), [x, y])
    group = group_of(graph, "map", None)
    want = play("webgpu", group, [x, y])
    kernel = registry.get("map")(group, PRESETS["cuda"], {"threads": 64, "vectors": 4})
    out = [np.zeros(x.size, x.dtype) for _ in range(2)]
    interp.run(kernel, [x.reshape(-1), y.reshape(-1), *out], [], caps=PRESETS["cuda"])
    for got, w in zip(out, want):
        assert np.array_equal(got, w.reshape(-1))


def test_tuned_vectors_keep_inside() -> None:
    """A configuration measured at one size is safe at any other."""
    x = random(F32, (33, 100))
    group = group_of(trace(lambda x: ops.add(x, 1.0), [x]), "map", None)
    for config in registry.candidates(group, PRESETS["cuda"]):
        kernel = registry.get("map")(group, PRESETS["cuda"], config)
        out = np.zeros(x.size, np.float32)
        interp.run(kernel, [x.reshape(-1), out], [], caps=PRESETS["cuda"])
        assert np.array_equal(out, x.reshape(-1) + 1)


def test_vectors_divide_the_row() -> None:
    caps = PRESETS["cuda"]
    assert vector_lanes(caps, 1000, []) == 4 and vector_lanes(caps, 1001, []) == 1
