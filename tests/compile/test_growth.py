"""What is compiled does not grow with an extent: kernels are loops, whatever their length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rows import covering

import weft
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel import ir
from weft.tensor import Tensor
from weft.tensor.tracing import Spec, trace

F, I = dt.float32, dt.int32  # noqa: E741
Fn = Callable[..., Any]


def size_of(kernel: ir.Kernel) -> int:
    """Statements and expressions of a kernel."""
    count, stack = 0, [kernel.body]
    while stack:
        at: Any = stack.pop()
        count += 1
        for field in dataclasses.fields(at):
            value = getattr(at, field.name)
            parts = value if isinstance(value, tuple) else (value,)
            stack += [v for v in parts if isinstance(v, ir.Expr | ir.Stmt)]
    return count


def program(fn: Fn, *shapes: Any, target: str = "cpu-avx512") -> Any:
    specs = [Spec(*s) if s and isinstance(s[0], tuple) else Spec(s, F) for s in shapes]
    return compile_graph(trace(fn, specs), PRESETS[target])


def slope(fn: Fn) -> Fn:
    """The gradient by the first operand."""

    def run(x: Tensor, *rest: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        y = fn(leaf, *rest)
        y = y[0] if isinstance(y, tuple) else y
        return weft.grad((y * y).sum(), [leaf])[0]

    return run


ROWS: dict[str, Fn] = {
    **{name: lambda x, name=name: getattr(x, name)(axis=1) for name in (
        "sum", "prod", "mean", "var", "max", "min", "softmax", "log_softmax", "sort",
        "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp",
    )},
    "initial": lambda x: weft.cumulative_prod(x, axis=1, include_initial=True),
    "topk": lambda x: x.topk(5),
    "diff": lambda x: weft.diff(x, n=2),
    "roll": lambda x: weft.roll(x, (3, 5), axis=(0, 1)),
    "pad": lambda x: x.pad([(1, 2), (3, 4)]),
    "repeat": lambda x: weft.repeat(x, 3, axis=1),
    "tile": lambda x: weft.tile(x, (2, 3)),
    "tril": lambda x: weft.tril(x),
    "flip": lambda x: weft.flip(x),
    "step": lambda x: x[:, ::-3],
    "concat": lambda x: weft.concat([x, x[:, 1:]], axis=1),
    "einsum": lambda x: weft.einsum("ij,kj->ik", x, x),
}  # fmt: skip
TARGETS = ("cpu-avx512", "webgpu", "cuda")
LARGEST = 4000  # of a kernel: some unroll by what fits a vector, a team or the registers
EXTENTS = (64, 4096, 65536)  # a team or one worker, several, parts that meet


@pytest.mark.parametrize("name,target", covering(ROWS, TARGETS))
def test_kernels_do_not_grow(name: str, target: str) -> None:
    for fn in (ROWS[name], slope(ROWS[name])):
        for rows in (1, 50):
            sizes, steps = [], []
            for n in EXTENTS:
                made = program(fn, (rows, n), target=target)
                sizes.append(max(map(size_of, made.kernels)))
                steps.append(len(made.steps))
                assert sizes[-1] < LARGEST, sizes
            assert max(steps) <= 3 * min(steps) + 2, steps


def test_kinds_of_index() -> None:
    """The same of what takes indices or weights of an extent."""
    cases: dict[str, tuple[Fn, Fn]] = {
        "take": (lambda x, i: weft.take(x, i), lambda n: ((n,), ((n,), I))),
        "along": (lambda x, i: weft.take_along_axis(x, i), lambda n: ((3, n), ((3, n), I))),
        "matmul": (lambda x, y: x @ y, lambda n: ((4, n), (n, 4))),
        "scatter": (weft.functional.scatter_add, lambda n: ((n, 3), ((n,), I), (n, 3))),
        "conv": (weft.functional.conv1d, lambda n: ((1, 2, n), (3, 2, 3))),
    }
    for name, (fn, specs) in cases.items():
        for form in (fn, slope(fn)):
            small, large = (
                max(map(size_of, program(form, *specs(n)).kernels)) for n in (256, 16384)
            )
            assert large <= 2 * small + 200, (name, small, large)


@pytest.mark.parametrize("size,target", covering([1, 3, 4, 17, 300], TARGETS))
def test_windows_do_not_unroll(size: int, target: str) -> None:
    """Pools and convolutions whose window is the extent, forward and backward."""
    f, image = weft.functional, (1, 2, 310, 310)
    cases: dict[str, tuple[Fn, tuple[Any, ...]]] = {
        "max": (lambda x: f.max_pool2d(x, size), (image,)),
        "max side by side": (lambda x: f.max_pool2d(x, size, stride=1), (image,)),
        "mean": (lambda x: f.avg_pool2d(x, size), (image,)),
        "mean by two": (lambda x: f.avg_pool2d(x, size, stride=2), (image,)),
        "line": (f.conv1d, ((1, 2, 400), (3, 2, size))),
        "plane": (lambda x, w: f.conv2d(x, w, padding=1), (image, (3, 2, size, size))),
        "depthwise": (lambda x, w: f.conv2d(x, w, groups=2), (image, (2, 1, size, size))),
    }
    for name, (fn, shapes) in cases.items():
        for form in (fn, slope(fn)):
            made = program(form, *shapes, target=target)
            largest = max(map(size_of, made.kernels), default=0)
            assert largest < 2 * LARGEST and len(made.steps) <= 12, (name, largest, made.steps)


def test_a_scan_is_what_it_was_before_growing() -> None:
    """One kernel for a short row and for many rows, three for a long one; and its values."""
    assert len(program(lambda x: x.cumsum(1), (64, 1024)).steps) == 1
    assert len(program(lambda x: x.cumsum(1), (64, 65536)).steps) == 1
    assert len(program(lambda x: x.cumsum(1), (1, 1 << 20)).steps) == 3
    x = np.arange(1 << 20, dtype=np.int32) % 7
    got = weft.compile(lambda x: x.cumsum(0))(weft.tensor(x)).numpy()
    assert np.array_equal(got, np.cumsum(x))
