"""WGSL through a second compiler: Tint (see tint.py; skipped where it was not installed)."""

import numpy as np
from own_kernels import double, normal, product, softmax
from tint import refusal

import weft
from weft.backends import wgsl
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel.ir import Kernel
from weft.tensor.tracing import Spec, trace

F32 = dt.float32


def kernels() -> list[Kernel]:
    """Kernels of many templates, compiled for a browser's Caps."""
    f, f16 = weft.functional, dt.float16
    cases = [
        (lambda x, w, b: f.layer_norm(f.gelu(x @ w), b, b),
         [((33, 64), F32), ((64, 48), F32), ((48,), F32)]),
        (lambda x: f.softmax(x), [((40, 300), F32)]),
        (lambda x: f.silu(x) * 2, [((7, 31), f16)]),
        (lambda x: (x * 2).sum(axis=1) + x.max(axis=1), [((17, 90), F32)]),
        (lambda q, k, v: f.attention(q, k, v, causal=True),
         [((1, 4, 9, 32), F32), ((1, 2, 20, 32), F32), ((1, 2, 20, 32), F32)]),
    ]  # fmt: skip
    programs = [
        compile_graph(trace(fn, [Spec(*s) for s in specs]), PRESETS["webgpu"])
        for fn, specs in cases
    ]
    return [kernel for program in programs for kernel in program.kernels]


def test_tint_accepts_what_naga_accepts():
    for kernel in kernels():
        assert refusal(wgsl.render(kernel, PRESETS["webgpu"])) is None


def test_tint_refuses_what_is_wrong():
    text = "@compute @workgroup_size(1)\nfn main() {{ let x = {}; }}\n"
    assert refusal(text.format("1i")) is None
    assert "shift" in refusal(text.format("2147483647i << 40u"))


def test_tint_accepts_kernels_of_ones_own():
    x, square = normal(5, 70), normal(9, 9)
    half = np.float16(x)
    for kernel, given in [(double, (x,)), (double, (half,)), (softmax, (x,)), (softmax, (half,)),
                          (product, (square, square))]:  # fmt: skip
        assert refusal(kernel.source(*given, target="wgsl")) is None
