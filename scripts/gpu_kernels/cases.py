"""The cases: one graph for each kind of kernel, in sizes that a GPU meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import weft
from weft import ops
from weft.core import dtypes as dt
from weft.core.packed import Form
from weft.graph.ir import Graph
from weft.importers.packed import gguf
from weft.ops.packed import dequantize
from weft.ops.quantize import quantize, rescale
from weft.tensor.core import Tensor
from weft.tensor.tracing import Spec, trace

F = weft.functional
F32, BF16, F16, I32 = dt.float32, dt.bfloat16, dt.float16, dt.int32
Case = tuple[str, str, Any, list[Any]]  # kind, name, function, (shape, dtype) of its arguments
ROWS = [((4096, 4096), F32)]
HEADS = (8, 16, 256)
SIDE = 4096  # of a packed matrix
PACKED = ("Q8_0", "Q4_0", "Q4_K", "Q6_K")


def graphs() -> Iterator[tuple[str, str, Callable[[], Graph]]]:
    """Yields kind, name and what makes the graph."""
    for kind, name, fn, specs in (*_products(), *_attention(), *_rows(), *_others()):
        yield kind, name, partial(trace, fn, [Spec(*s) for s in specs])
    for name in PACKED:
        form: Form = gguf.FORMS[name][0]
        for rows in (1, 256):
            for planes in (0, 1):
                inputs = f", int{8 * planes} inputs" if planes else ""
                label = f"{rows} x {SIDE} x {SIDE} {name}{inputs}"
                yield "packed product", label, partial(_packed, form, rows, planes)


def _products() -> Iterator[Case]:
    for d in (F32, F16, BF16):
        for m in (1, 8, 1024):
            specs = [((m, 1024), d), ((1024, 1024), d)]
            yield "product", f"{m} x 1024 x 1024 {d} w[N, K]", lambda x, w: x @ w.mT, specs
    specs = [((1024, 1024), F32)] * 2
    yield "product", "1024 cubed float32 w[K, N]", lambda x, w: x @ w, specs
    yield "product", "1024 cubed float32 x[K, M]", lambda x, w: x.mT @ w, specs
    specs = [((1024, 1024), BF16)] * 2
    yield "product", "1024 cubed bfloat16 w[K, N]", lambda x, w: x @ w, specs
    for m in (1, 1024):
        specs = [((m, 1024), dt.int8), ((1024, 1024), dt.int8)]
        yield "product", f"{m} x 1024 x 1024 int8", lambda x, w: x @ w.mT, specs


def _attention() -> Iterator[Case]:
    for d in (F32, BF16):
        for size in (64, 128):
            specs = [((*HEADS, size), d)] * 3
            forward = partial(F.attention, causal=True)
            grad = partial(_gradients, forward)
            yield "attention", f"forward {d} x {size}", forward, specs
            yield "attention", f"backward {d} x {size}", grad, [*specs, specs[0]]
    for d in (F16, dt.int8):
        for rows, length in ((1, 4096), (1, 512), (32, 4096)):
            q, slots = ((rows, 32, 128), F32 if d == dt.int8 else d), ((rows,), I32)
            cache = ((rows, 8, length, 128), d)
            scales = [((rows, 8, length, 2), F32)] if d == dt.int8 else []
            name = f"decode {rows} x {length}, {d} cache"
            yield "attention", name, _cached, [q, cache, cache, slots, slots, *scales]


def _cached(*inputs: Tensor) -> Tensor:
    values = [x.value for x in inputs]
    params = {"scale": 128**-0.5, "window": 0, "softcap": 0.0}
    return Tensor(ops.call("cached_attention", *values, **params))


def _gradients(fn: Any, *inputs: Tensor) -> Any:
    """Those of the function's operands; the last input weighs its result."""
    *operands, weight = inputs
    given = [t.detach().requires_grad_() for t in operands]
    return tuple(weft.grad(fn(*given), given, weight))


def _rows() -> Iterator[Case]:
    grad = partial(_gradients, F.layer_norm)
    for n in (1024, 4096, 32768):
        x, w = ((1 << 24) // n, n), ((n,), F32)
        for d in (F32, BF16):
            yield "softmax", f"{list(x)} {d}", F.softmax, [(x, d)]
            yield "norm", f"layer norm {list(x)} {d}", F.layer_norm, [(x, d), w, w]
        yield "norm", f"RMS norm {list(x)} float32", F.rms_norm, [(x, F32), w]
        yield "norm", f"layer norm's gradient {list(x)}", grad, [(x, F32), w, w, (x, F32)]
        yield "softmax", f"cross entropy {list(x)}", F.cross_entropy, [(x, F32), (x[:1], I32)]
    for axis in (0, 1):
        yield "reduction", f"sum over {axis} of 4096²", lambda x, a=axis: x.sum(axis=a), ROWS
    yield "reduction", "maximum over 1 of 4096²", lambda x: x.max(axis=1), ROWS
    yield "reduction", "argmax over 1 of 4096²", lambda x: weft.argmax(x, axis=1), ROWS
    yield "reduction", "sum of 2^24", lambda x: x.sum(), [((1 << 24,), F32)]
    for axis in (0, 1):
        yield "scan", f"cumsum over {axis} of 4096²", lambda x, a=axis: weft.cumsum(x, a), ROWS
    yield "scan", "cumsum of 2^22", lambda x: weft.cumsum(x, 0), [((1 << 22,), F32)]
    yield "sort", "rows of 4096²", lambda x: weft.sort(x, axis=1), ROWS
    yield "sort", "2^17", lambda x: weft.sort(x, axis=0), [((1 << 17,), F32)]


def _others() -> Iterator[Case]:
    yield from _recurrences()
    for c, size, k, stride in ((64, 56, 3, 1), (64, 56, 1, 1), (256, 14, 3, 1), (3, 224, 7, 2)):
        specs = [((8, c, size, size), F32), ((max(c, 64), c, k, k), F32)]
        fn = partial(F.conv2d, stride=stride, padding=k // 2)
        yield "convolution", f"8 x {c} x {size}², {k} x {k} / {stride}", fn, specs
    fn = partial(F.conv2d, padding=1, groups=128)
    specs = [((8, 128, 56, 56), F32), ((128, 1, 3, 3), F32)]
    yield "convolution", "8 x 128 x 56², depthwise", fn, specs
    for d in (F32, BF16):
        yield "elementwise", f"x + y, 4096² {d}", lambda x, y: x + y, [((4096, 4096), d)] * 2
        chain = lambda x, y: F.gelu(x) * y + x  # noqa: E731
        yield "elementwise", f"gelu(x) y + x, 4096² {d}", chain, [((4096, 4096), d)] * 2
    yield "elementwise", "transpose 4096²", lambda x: x.mT + 0.0, ROWS
    bias = lambda x, b: weft.maximum(x + b, 0)  # noqa: E731
    yield "elementwise", "relu(x + b), 4095²", bias, [((4095, 4095), F32), ((4095,), F32)]
    table, ids = ((32000, 4096), BF16), ((2048,), I32)
    yield "gather", "2048 of 32000 x 4096 bfloat16", lambda w, i: w[i], [table, ids]
    yield "scatter", "2048 rows added to 32000 x 512", _scatter, [((2048, 512), F32), ids]


def _scatter(x: Tensor, ids: Tensor) -> Tensor:
    table = weft.zeros((32000, 512)).requires_grad_()
    gradient: Tensor
    (gradient,) = weft.grad(table[ids], [table], x)
    return gradient


def _recurrences() -> Iterator[Case]:
    n, heads, size = 64, 16, 64
    x, slots = ((n, heads, size), F32), ((n,), I32)
    rate, memory = ((n, heads), F32), ((4, heads, size, size), F32)
    yield "recurrence", "delta rule, 64 rows", _recurrence, [x, x, x, rate, rate, slots, memory]
    yield "recurrence", "state space, 64 rows", _recurrence, [x, x, x, rate, slots, memory]
    one = [((4, heads, size), F32)] * 3
    yield (
        "recurrence", "state space, a row of 4", _recurrence,
        [*one, ((4, heads), F32), ((4,), I32), memory],
    )  # fmt: skip


def _recurrence(*inputs: Tensor) -> Any:
    found = ops.call("recurrence", *[x.value for x in inputs], tiled=False, scale=1.0)
    return tuple(Tensor(x) for x in found)


def _packed(form: Form, m: int, planes: int) -> Graph:
    side = SIDE
    x = ops.input_node("x", (m, side), F32)
    with ops.building():
        left = rescale(*quantize(x, planes)) if planes else x
        own = {
            part: ops.input_node(part, shape, _dtype(form, part), "weight")
            for part, shape in form.shapes(side, side).items()
        }
        out = ops.dot(left, ops.transpose(dequantize(form, own), (1, 0)))
    return Graph((x, *own.values()), (out,), meta={"frozen": True})


def _dtype(form: Form, part: str) -> dt.DType:
    if part in ("codes", "high", "zeros"):
        return dt.uint8
    return dt.int8 if form.super_group and part in ("scales", "lows") else F16
