"""The one order of sums over rows and columns (core/order.py): the same bits on every target, for
any number of rows, and those of a reference in NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import QUICK, group_of, play, random, trace
from rows import covering

import weft
from weft import ops
from weft.backends.llvm import gpu_target
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.order import COLUMN_SEGMENT, ROW_SEGMENT, ROW_STRANDS
from weft.graph.ir import toposort
from weft.transform.reduce import split_reductions

sys.path.append(str(Path(__file__).parent.parent / "backends"))
F32 = np.float32
FEW = tuple(name for name in PRESETS if name in QUICK)  # they play long rows
OTHERS = tuple(name for name in PRESETS if name not in QUICK)


def each_length(
    *lengths: int, short: tuple[int, ...] = (), more: tuple[int, ...] = ()
) -> pytest.MarkDecorator:
    """Lengths of rows and who plays them: every target the short ones, some the others. Those are
    slow tests on the other targets, and more lengths are everywhere."""
    cases = [pytest.param(n, tuple(PRESETS), id=str(n)) for n in short]
    cases += [pytest.param(n, FEW, id=str(n)) for n in lengths]
    slow = [(n, OTHERS, f"{n}-others") for n in lengths]
    slow += [(n, tuple(PRESETS), str(n)) for n in more]
    cases += [pytest.param(n, who, id=name, marks=pytest.mark.slow) for n, who, name in slow]
    return pytest.mark.parametrize("n,names", cases)


def row_sum(x: np.ndarray) -> np.float32:
    """The sum of a row by the rule."""
    if len(x) > ROW_SEGMENT:
        segments = [x[i : i + ROW_SEGMENT] for i in range(0, len(x), ROW_SEGMENT)]
        return row_sum(np.array([row_sum(s) for s in segments], F32))
    padded = np.zeros(-(-max(len(x), 1) // ROW_STRANDS) * ROW_STRANDS, F32)
    padded[: len(x)] = x
    strands = np.zeros(ROW_STRANDS, F32)
    for block in padded.reshape(-1, ROW_STRANDS):
        strands = strands + block
    while len(strands) > 1:
        half = len(strands) // 2
        strands = strands[:half] + strands[half:]
    return strands[0]


def column_sums(x: np.ndarray) -> np.ndarray:
    """The sums over axis 0 by the rule."""
    if len(x) > COLUMN_SEGMENT:
        chains = [x[i : i + COLUMN_SEGMENT] for i in range(0, len(x), COLUMN_SEGMENT)]
        return column_sums(np.array([column_sums(c) for c in chains]))
    total = np.zeros(x.shape[1:], F32)
    for row in x:
        total = total + row
    return total


def rows_of(fn: Callable[[np.ndarray], np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    return np.stack([fn(*row) for row in zip(*arrays)]).astype(F32)


def scale_of(x: np.ndarray, eps: float) -> np.float32:
    """1 / sqrt(mean(x^2) + eps)."""
    var = row_sum(x * x) * F32(1.0 / len(x))
    return F32(1) / np.sqrt(var + F32(eps))


def mean(x: np.ndarray) -> np.ndarray:
    return row_sum(x) * F32(1.0 / len(x))


def rms_norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x * scale_of(x, 1e-2) * (w + F32(1))


def softmax_grad(y: np.ndarray, g: np.ndarray) -> np.ndarray:
    return y * (g - row_sum(y * g))


def everywhere(
    fn: Any, arrays: list[np.ndarray], kind: str, anchor: str, names: Iterable[str] = PRESETS
) -> Any:
    """The result of this CPU and every target (or a list of several), which must be one."""
    group = group_of(trace(fn, arrays), kind, anchor)
    want = play("cpu", group, arrays)
    for name in names:
        for got, same in zip(play(name, group, arrays), want, strict=True):
            assert np.array_equal(got, same), name
    return want if len(want) > 1 else want[0]


@each_length(700, 1024, 1025, 4097, short=(1, 15, 63, 64, 65), more=(4096, 9000))
def test_row_sums(n: int, names: tuple[str, ...]) -> None:
    x, g, w = (random(dt.float32, shape, k) for k, shape in enumerate([(2, n), (2, n), (n,)]))
    got = everywhere(lambda x: ops.sum_(x, (1,)), [x], "reduce", "sum", names)
    assert np.array_equal(got, rows_of(row_sum, x))
    got = everywhere(lambda x: ops.call("moments", x, eps=1e-2), [x], "norm", "call", names)
    assert np.array_equal(got[0], rows_of(mean, x))
    assert np.array_equal(got[1], rows_of(lambda row: scale_of(row - mean(row), 1e-2), x))
    fn = lambda x, w: ops.call("rms_norm", x, w, eps=1e-2, offset=1.0)  # noqa: E731
    got = everywhere(fn, [x, w], "norm", "call", names)
    assert np.array_equal(got, rows_of(lambda row: rms_norm(row, w), x))
    fn = lambda y, g: ops.call("softmax_grad", y, g)  # noqa: E731
    got = everywhere(fn, [x, g], "norm", "call", names)
    assert np.array_equal(got, rows_of(softmax_grad, x, g))


CALLS: dict[str, tuple[str, dict[str, float]]] = {
    "softmax": ("x", {}),
    "log_softmax": ("x", {}),
    "layer_norm": ("xww", {"eps": 1e-5}),
    "rms_scale": ("x", {"eps": 1e-2}),
    "cross_entropy": ("xt", {"label_smoothing": 0.1}),
    "log_softmax_grad": ("xx", {}),
    "layer_norm_grad": ("xwx", {"eps": 1e-2}),
    "rms_norm_grad": ("xwx", {"eps": 1e-2, "offset": 1.0}),
    "cross_entropy_grad": ("xtg", {"label_smoothing": 0.1}),
}


@pytest.mark.parametrize("name", CALLS)
@each_length(15, 1100, short=(65,), more=(700, 4097))
def test_targets_agree(n: int, names: tuple[str, ...], name: str) -> None:
    kinds, params = CALLS[name]
    shapes = {"x": (2, n), "w": (n,), "g": (2,)}
    target = np.array([7, -100], np.int32)
    arrays = [target if k == "t" else random(dt.float32, shapes[k], i) for i, k in enumerate(kinds)]
    everywhere(lambda *v: ops.call(name, *v, **params), arrays, "norm", "call", names)


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16], ids=repr)
@each_length(1160)
def test_narrow_rows(n: int, names: tuple[str, ...], dtype: dt.DType) -> None:
    """The same strands, in f32."""
    x = random(dtype, (2, n))
    fn = lambda x: ops.cast(ops.sum_(x, (1,)), dt.float32)  # noqa: E731
    got = everywhere(fn, [x], "reduce", "sum", names)
    assert np.array_equal(got, rows_of(row_sum, x.astype(F32)))
    everywhere(lambda x: ops.call("softmax", x), [x], "norm", "call", names)


@pytest.mark.parametrize("n", [5, 64, 100, 196])
def test_runs(n: int) -> None:
    """Reduced axes that lie apart: each run of the last begins at a multiple of the strands."""
    x = random(dt.float32, (21, 3, n))
    got = everywhere(lambda x: ops.sum_(x, (0, 2)), [x], "reduce", "sum")
    wide = np.zeros((21, 3, -(-n // ROW_STRANDS) * ROW_STRANDS), F32)
    wide[..., :n] = x
    assert np.array_equal(got, rows_of(row_sum, wide.transpose(1, 0, 2).reshape(3, -1)))


@pytest.mark.parametrize("shape", [(1, 4), (31, 33), (32, 40), (33, 5), (1100, 36)], ids=repr)
def test_columns(shape: tuple[int, int]) -> None:
    x = random(dt.float32, shape)
    got = everywhere(lambda x: ops.sum_(x, (0,)), [x], "reduce", "sum")
    assert np.array_equal(got, column_sums(x))


@pytest.mark.parametrize("target", ["cpu-avx512", "cuda"])
def test_a_row_longer_than_a_segment_of_segments(target: str) -> None:
    x = random(dt.float32, (1, ROW_SEGMENT**2 + 1500))
    group = group_of(trace(lambda x: ops.sum_(x, (1,)), [x]), "reduce", "sum")
    assert play(target, group, [x])[0][0] == row_sum(x[0])


@each_length(1100, short=(50,), more=(700, 4097))
def test_rows_do_not_depend_on_their_number(n: int, names: tuple[str, ...]) -> None:
    x = random(dt.float32, (7, n))
    for fn, kind, anchor in (
        (lambda x: ops.sum_(x, (1,)), "reduce", "sum"),
        (lambda x: ops.call("softmax", x), "norm", "call"),
    ):
        whole = everywhere(fn, [x], kind, anchor, names)
        for rows in (slice(0, 1), slice(2, 5)):
            assert np.array_equal(everywhere(fn, [x[rows]], kind, anchor, names), whole[rows])


@pytest.mark.parametrize(
    "shape,dtype",
    covering([(1 << 18,), (700, 400), (9000, 31), (300, 1000)], [dt.float32, dt.bfloat16]),
    ids=repr,
)
def test_a_split_changes_no_bit(shape: tuple[int, ...], dtype: dt.DType) -> None:
    """A long sum computed in pieces, by several kernels, and by one."""
    x = random(dtype, shape)
    for axes in {(0,), tuple(range(len(shape)))}:
        graph = trace(lambda x: ops.sum_(x, axes), [x])  # noqa: B023
        assert sum(n.op == "sum" for n in toposort(split_reductions(graph).outputs)) > 1
        whole = play("cpu", group_of(graph, "reduce", "sum"), [x])[0]
        split = weft.compile(lambda x: x.sum(axes), device="cpu")(weft.tensor(x))  # noqa: B023
        assert np.array_equal(split.numpy(), whole)


@pytest.mark.parametrize("arch,n", covering(["sm_80", "gfx90a", "gfx1100"], [65, 768, 2100]))
def test_machine_code_of_gpus_agrees(arch: str, n: int) -> None:
    """What the LLVM dialect makes of these kernels for GPUs, executed, against the CPU's."""
    from gpu_emulator import Emulated

    device = Emulated(gpu_target(arch))
    x, w = random(dt.float32, (2, n)), random(dt.float32, (n,), 1)
    for fn, arrays, kind, anchor in (
        (lambda x: ops.sum_(x, (1,)), [x], "reduce", "sum"),
        (lambda x: ops.call("softmax", x), [x], "norm", "call"),
        (lambda x, w: ops.call("layer_norm", x, w, w, eps=1e-5), [x, w], "norm", "call"),
        (lambda x, w: ops.call("rms_norm_grad", x, w, x, eps=1e-2), [x, w], "norm", "call"),
    ):
        group = group_of(trace(fn, arrays), kind, anchor)
        assert np.array_equal(*(play(at, group, arrays)[0] for at in (device, "cpu")))
