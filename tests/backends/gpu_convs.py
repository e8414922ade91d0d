"""Convolutions shaped for GPUs: kernels of every way that the compiler has, and of a whole net."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gpu_case as case
import pytest

import weft
from weft import nn
from weft.backends.llvm.gpu_target import gpu_target
from weft.bench import image_nets as nets
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.tensor.tracing import Spec, trace

F = weft.functional
# Name -> convolution, and the shapes of its operand and weights.
WAYS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "residual": (lambda x, w, b, r: (F.conv2d(x, w, b, padding=1) + r).relu(),
                 [(2, 20, 9, 7), (33, 20, 3, 3), (33,), (2, 33, 9, 7)]),
    "depthwise": (lambda x, w: F.silu(F.conv2d(x, w, stride=2, padding=2, groups=18)),
                  [(1, 18, 11, 13), (18, 1, 5, 5)]),
    "first": (lambda x, w: F.max_pool2d(F.conv2d(x, w, stride=2, padding=3).relu(), 3, 2, 1),
              [(1, 3, 30, 22), (16, 3, 7, 7)]),
    "pointwise": (lambda x, w: F.hardswish(F.conv2d(x, w)).mean((2, 3)),
                  [(2, 40, 5, 9), (24, 40, 1, 1)]),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=(2, 3)), [(1, 8, 12, 9), (5, 8, 3, 2)]),
    "long": (lambda x, w: F.conv2d(x, w, padding=1), [(1, 260, 4, 3), (64, 260, 3, 3)]),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=3), [(1, 12, 8, 6), (9, 4, 3, 3)]),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2),
                   [(1, 6, 5, 4), (6, 7, 3, 3)]),
    "line": (lambda x, w: F.conv1d(x, w, padding=2), [(2, 8, 31), (12, 8, 5)]),
    "volume": (lambda x, w: F.conv3d(x, w), [(1, 4, 5, 6, 7), (6, 4, 3, 3, 3)]),
    "joined": (lambda x, w: weft.cat([F.conv2d(x, w), F.interpolate(x[:, :, 1:-1], scale_factor=1)
                                      [:, :, :, 1:-1]], 1), [(1, 8, 8, 6), (8, 8, 3, 3)]),
}  # fmt: skip
FEW = ("residual", "depthwise", "first")


def kernels(caps: Caps, names: tuple[str, ...], frozen: bool = True) -> list[Kernel]:
    """The kernels of some of WAYS, and of nets of the benches (for small images)."""
    found = []
    for name in names:
        if name in WAYS:
            fn, shapes = WAYS[name]
            x, *weights = shapes
            own = [Spec(s, dt.float32, f"w{i}", "weight") for i, s in enumerate(weights)]
            if name == "residual":
                own[-1] = Spec(weights[-1], dt.float32, "r")
            graph = trace(fn, [Spec(x, dt.float32, "x"), *own])
        else:
            net = nets.build(name, nn, weft.cat)
            graph = trace(net.forward, [Spec((1, 3, 64, 64), dt.float32, "x")])
        graph = replace(graph, meta={**graph.meta, "frozen": frozen})
        found += [case.apart(kernel) for kernel in compile_graph(graph, caps).kernels]
    assert any(kernel.name.startswith("conv") for kernel in found)
    return found


def cases(names: tuple[str, ...]) -> list[Any]:
    """Parameters: a target, and what it compiles. By default a vendor's first target takes FEW."""
    every = (*WAYS, "mobilenet_v3")
    slow = [pytest.param(gpu_target(n), every, id=n, marks=pytest.mark.slow) for n in names]
    return [pytest.param(gpu_target(names[0]), FEW, id=f"{names[0]}-few"), *slow]
