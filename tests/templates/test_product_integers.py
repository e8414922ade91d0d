"""Products of integers with scales (quantised rows times packed weights): the bits of a reference
that adds one run after the other, alone and among many rows, on every target."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from product_kit import TILES, device as tiles_device, fma
from rows import few

from weft import ops
from weft.backends.cpu import CpuDevice
from weft.backends.interp import InterpDevice
from weft.backends.llvm import cpu_target, gpu_target, render
from weft.backends.llvm.optimise import has_register_tile
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.compile.passes import groups_of
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.order import CHUNK, SPAN
from weft.core.packed import Form, codes_of, dequantized, packed_codes
from weft.graph.ir import Graph
from weft.kernel.tiles import has_tiles
from weft.ops import functions as f
from weft.ops.packed import dequantize
from weft.ops.quantize import BLOCK, quantize, rescale
from weft.program.session import Session

sys.path.append(str(Path(__file__).parent.parent / "backends"))
FORMS = {
    "q8_0": Form(8, 32, offset=128),
    "q4_0": Form(4, 32, offset=8),
    "q4_1": Form(4, 32, shift="low"),
    "q5_0": Form(5, 32, offset=16),
    "q6_k": Form(6, 16, offset=32, super_group=256),
    "q4_k": Form(4, 32, shift="low", super_group=256),
    "int4 with zeros": Form(4, 128, shift="zero"),
    "int8 per channel": Form(8, 256, offset=128),
    "int8 with zeros": Form(8, 64, offset=3, shift="zero"),
    "3 bits": Form(3, 32, offset=4),
    "2 bits": Form(2, 16, shift="low"),
}
LESS = {"no AVX-512": ("avx512", "amx"), "no VNNI": ("avx512", "amx", "avxvnni")}
CPUS = [p for p, caps in PRESETS.items() if caps.is_cpu]
GPUS = ["vulkan", *(p for p in PRESETS if p not in CPUS)]
EMULATED = ["sm_80", "gfx90a", "gfx1100"]


def parts_of(form: Form, n: int, k: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A random matrix, its extremes included."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << form.bits, (n, k), dtype=np.uint8)
    codes[0], codes[1] = 0, (1 << form.bits) - 1
    parts = packed_codes(form, codes)
    for part, shape in form.shapes(n, k).items():
        if part == "zeros" or (form.super_group and part in ("scales", "lows")):
            parts[part] = rng.integers(0, 64, shape).astype(np.uint8)
        elif part not in parts:
            parts[part] = rng.standard_normal(shape).astype(np.float16)
    form.check(parts, n, k)
    return {p: parts[p] for p in form.parts}


def twice_rounded(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """lavapipe's fused multiply-add (docs/numerics.md, "Equal bits")."""
    return a * b + c


def reference(
    x: np.ndarray, planes: int, form: Form, parts: Mapping[str, np.ndarray], fma: Any = fma
) -> np.ndarray:
    """x times the packed matrix, run by run, in the order of core/order."""
    *codes, scales = quantize(x, planes)
    whole = codes[0].astype(np.int64) * (128 if planes == 2 else 1)
    whole = whole + (codes[1] if planes == 2 else 0)
    w = codes_of(form, parts).astype(np.int64) - form.offset
    (m, k), n, run = x.shape, len(w), min(form.group, BLOCK)

    def number(part: str) -> np.ndarray:
        found = parts[part].astype(np.float32)
        if form.super_group and part != "zeros":
            top = parts[f"super_{part}"].astype(np.float32)
            found = found * np.repeat(top, found.shape[1] // top.shape[1], 1)
        return found

    if form.shift == "zero":
        w = w - np.repeat(parts["zeros"].astype(np.int64), form.group, 1)
    sw = number("scales")
    total = None
    for s in range(0, k, SPAN):
        span = None
        for c in range(s, min(s + SPAN, k), CHUNK):
            acc = np.zeros((m, n), np.float32)
            for at in range(c, min(c + CHUNK, s + SPAN, k), run):
                sums = whole[:, at : at + run] @ w[:, at : at + run].T
                sx = scales[:, at // BLOCK, None]
                acc = fma(sums.astype(np.float32), sx * sw[None, :, at // form.group], acc)
                if form.shift == "low":
                    of_x = whole[:, at : at + run].sum(1).astype(np.float32)[:, None] * sx
                    acc = fma(
                        *np.broadcast_arrays(of_x, number("lows")[None, :, at // form.group], acc)
                    )
            span = acc if span is None else span + acc
        total = span if total is None else total + span
    return total


def device_of(name: str):  # type: ignore[no-untyped-def]
    if name in LESS:
        host = get("cpu").host
        kept = [f for f in host.features.split(",") if not any(x in f for x in LESS[name])]
        return CpuDevice(target=replace(host, cpu="haswell", features=",".join(kept)))
    if name in EMULATED:
        if sys.platform != "linux":
            pytest.skip("the emulator needs Linux")
        from gpu_emulator import Emulated

        return Emulated(gpu_target(name))
    return InterpDevice(PRESETS[name]) if name in PRESETS else get(name)


def graph_of(form: Form, parts: Mapping[str, np.ndarray], m: int, k: int, planes: int) -> Graph:
    x = ops.input_node("x", (m, k), dt.float32)
    nodes = {
        p: ops.input_node(f"w.{p}", v.shape, dt.as_dtype(v.dtype), "weight")
        for p, v in parts.items()
    }
    left = rescale(*quantize(x, planes)) if planes else x
    y = f.dot(left, f.swap_last(dequantize(form, nodes)))
    return Graph((x, *nodes.values()), (y,), meta={"frozen": True})


def product(name: str, form: Form, parts: Mapping[str, np.ndarray], x: np.ndarray, planes: int = 1):  # type: ignore[no-untyped-def]
    device = device_of(name)
    graph = graph_of(form, parts, *x.shape, planes)
    groups = groups_of(graph, device.caps)
    assert groups[0].kind == "quantize" and len(groups) == 2, [g.name for g in groups]
    program = compile_graph(graph, device.caps)
    session = Session(program, device, {f"w.{p}": v for p, v in parts.items()})
    return session.run({"x": x})[0]


def rows_of(m: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((m, k)).astype(np.float32) * 3
    x[0, :BLOCK], x[-1, 5] = 0, 65504
    return x


TILED = ["q8_0", "q4_k", "int8 with zeros", "q6_k"]
QUICK = [("q4_k", 2), ("q6_k", 1), ("int8 with zeros", 1), ("q8_0", 2)]


@pytest.mark.parametrize("name,planes", few([(n, p) for n in FORMS for p in (1, 2)], *QUICK))
def test_the_bits_of_the_reference(name: str, planes: int) -> None:
    """On this CPU, by the streaming and by the blocked kernel."""
    form, k = FORMS[name], 512
    parts, x = parts_of(form, 43, k), rows_of(21, k)
    want = reference(x, planes, form, parts)
    exact = rescale(*quantize(x, planes)).astype(np.float64) @ dequantized(form, parts).T
    np.testing.assert_allclose(want, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
    for m in (6, 21):
        np.testing.assert_array_equal(product("cpu", form, parts, x[:m], planes), want[:m])


@pytest.mark.parametrize("name", ["q8_0", "q4_k"])
def test_the_blocked_kernel_takes_few_of_llvms_passes(name: str) -> None:
    cpu = get("cpu")
    if cpu.caps.lanes < 16:
        pytest.skip("its products are instructions that LLVM's text names otherwise")
    graph = graph_of(FORMS[name], parts_of(FORMS[name], 256, 512), 64, 512, 1)
    target = cpu_target(cpu.host.triple, cpu.host.enabled)
    kernels = compile_graph(graph, cpu.caps.without("mma_int8")).kernels
    assert any(has_register_tile(render(kernel, cpu.caps, target)) for kernel in kernels)


@pytest.mark.parametrize(
    "name,form",
    few(
        [(c, name) for c in (*CPUS, *GPUS, *EMULATED) for name in FORMS],
        *zip(CPUS, ("q8_0", "q6_k", "q4_k", "int8 with zeros")),
        *zip(GPUS, ("q4_k", "q5_0", "2 bits", "q8_0", "int8 with zeros", "q6_k", "q4_1")),
        *zip(EMULATED, ("q4_k", "int8 with zeros", "q6_k")),
        ("vulkan", "q6_k"),
    ),
)
def test_every_target(name: str, form: str) -> None:
    """The interpreter with each target's Caps, lavapipe, and what LLVM makes of kernels for GPUs,
    emulated; on GPUs in the kernel of few rows and in that of many."""
    n = 29 if name in CPUS else 32
    parts, x = parts_of(FORMS[form], n, 256), rows_of(2 if name in CPUS else 20, 256)
    for planes in (1, 2):
        if planes + len(parts) + 1 >= device_of(name).caps.max_bindings:
            continue  # more buffers than a kernel may have
        fused = twice_rounded if name == "vulkan" else fma
        want = reference(x, planes, FORMS[form], parts, fused)
        for m in {3, len(x)} - {3 if name in CPUS else 0}:
            got = product(name, FORMS[form], parts, x[:m], planes)
            np.testing.assert_array_equal(got, want[:m])


@pytest.mark.parametrize(
    "tier,name",
    few([(t, n) for t in TILES for n in FORMS], *((t, n) for t in TILES for n in TILED)),
)
def test_in_matrix_registers(tier: str, name: str) -> None:
    """Whole tiles of rows and others, a last block of K and columns that fill none; runs of half a
    tile's depth alone are multiplied there."""
    form, at = FORMS[name], tiles_device(tier)
    k = CHUNK + max(form.group, form.super_group, BLOCK)
    parts, x = parts_of(form, 43, k), rows_of(21, k)
    for planes in (1, 2):
        program = compile_graph(graph_of(form, parts, *x.shape, planes), at.caps)
        assert any(has_tiles(kernel.body) for kernel in program.kernels) == (form.group >= BLOCK)
        (got,) = Session(program, at, {f"w.{p}": v for p, v in parts.items()}).run({"x": x})
        np.testing.assert_array_equal(got, reference(x, planes, form, parts))


@pytest.mark.skipif("+avx2" not in get("cpu").host.features, reason="no x86 with AVX2")
@pytest.mark.parametrize("less", LESS)
def test_older_x86(less: str) -> None:
    """This CPU without newer instructions: vpdpbusd of AVX-VNNI where it has it, vpmaddubsw."""
    assert ("dot4" in device_of(less).caps.features) == (
        less == "no AVX-512" and "+avxvnni" in get("cpu").host.features
    )
    for name, planes in QUICK:
        parts, x = parts_of(FORMS[name], 21, 256), rows_of(19, 256)
        want = reference(x, planes, FORMS[name], parts)
        for m in (3, 19):
            got = product(less, FORMS[name], parts, x[:m], planes)
            np.testing.assert_array_equal(got, want[:m])


@pytest.mark.parametrize("name", ["cpu", "cuda", "vulkan"])
def test_spans_and_ragged_columns(name: str) -> None:
    """More than a span of K, and columns that are no whole panel."""
    form, k = FORMS["q4_0"], SPAN + CHUNK + BLOCK
    parts, x = parts_of(form, 37, k), rows_of(19, k)
    want = reference(x, 1, form, parts, twice_rounded if name == "vulkan" else fma)
    for m in (1, 19):
        np.testing.assert_array_equal(product(name, form, parts, x[:m]), want[:m])


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_runs_of_two_lengths_over_one_x(name: str) -> None:
    """Each weight's own: a row has the same bits alone and among many."""
    device, forms, n, k = device_of(name), (FORMS["q4_0"], FORMS["q6_k"]), 32, 256
    parts = [parts_of(form, n, k) for form in forms]
    arrays = {f"w{i}.{p}": v for i, own in enumerate(parts) for p, v in own.items()}
    rows = rows_of(20, k)

    def results(m: int) -> list[np.ndarray]:
        x = ops.input_node("x", (m, k), dt.float32)
        nodes = {
            name: ops.input_node(name, v.shape, dt.as_dtype(v.dtype), "weight")
            for name, v in arrays.items()
        }
        left, outs = rescale(*quantize(x)), []
        for i, form in enumerate(forms):
            own = {p: nodes[f"w{i}.{p}"] for p in form.parts}
            outs.append(f.dot(left, f.swap_last(dequantize(form, own))))
        graph = Graph((x, *nodes.values()), tuple(outs), meta={"frozen": True})
        session = Session(compile_graph(graph, device.caps), device, arrays)
        return session.run({"x": rows[-m:]})

    for one, many, form, own in zip(results(1), results(20), forms, parts):
        np.testing.assert_array_equal(many, reference(rows, 1, form, own))
        np.testing.assert_array_equal(one, many[-1:])


def test_no_library_is_offered_packed_weights() -> None:
    """Whose product it cannot do."""
    form = FORMS["q4_0"]
    for planes in (0, 1):
        graph = graph_of(form, parts_of(form, 256, 128), 64, 128, planes)
        program = compile_graph(graph, PRESETS["cuda"])
        assert len(program.kernels) == 1 + (planes > 0)


OUTLIERS = (65504.0, -65504.0, 1e30, 3e38, np.inf, np.nan)


@pytest.mark.parametrize(
    "name,form,planes",
    few(
        [(d, n, i) for d in ("cpu", "cuda", "webgpu", "vulkan") for n in FORMS for i in range(3)],
        ("cpu", "q4_k", 0), ("cpu", "q8_0", 2), ("cuda", "int4 with zeros", 1),
        ("cuda", "q6_k", 0), ("vulkan", "q4_1", 1), ("webgpu", "q4_0", 2),
    ),
)  # fmt: skip
def test_outliers_are_right_or_not_finite(name: str, form: str, planes: int) -> None:
    """In x and in scales: what float32 holds of a product is there, within its roundings; what it
    may not hold, or an x that is no number, is never a number."""
    n, k, device = 16, 256, device_of(name)
    parts = parts_of(FORMS[form], n, k)
    rng, top = np.random.default_rng(3), "super_scales" if FORMS[form].super_group else "scales"
    for part in (top, top.replace("scales", "lows")):
        if part in parts:
            at = rng.integers(0, parts[part].size, 9)
            parts[part].flat[at] = np.float16(65504) * rng.choice([-1, 1], 9)
    program = compile_graph(graph_of(FORMS[form], parts, 3, k, planes), device.caps)
    session = Session(program, device, {f"w.{p}": v for p, v in parts.items()})
    w = dequantized(FORMS[form], parts).astype(np.float64)
    for outlier in OUTLIERS:
        x = rng.standard_normal((3, k)).astype(np.float32)
        x[1, rng.integers(0, k, 3)] = outlier
        (got,) = session.run({"x": x})
        with np.errstate(all="ignore"):
            held = (rescale(*quantize(x, planes)) if planes else x).astype(np.float64)
            want, size = held @ w.T, np.abs(held) @ np.abs(w).T
            right = np.abs(got - want) <= 1e-5 * size
        number = np.isfinite(got)
        assert (right | ~number)[[0, 2]].all() and number[[0, 2]].all()
        assert (right[1] & number[1] if abs(outlier) < 1e31 else right[1] | ~number[1]).all()
        assert np.isfinite(outlier) or not number[1].any()


@pytest.mark.parametrize("spoilt", [np.inf, np.nan])
def test_no_finite_answer_from_what_is_not(spoilt: float) -> None:
    form = FORMS["q4_0"]
    parts, x = parts_of(form, 16, 64), rows_of(2, 64)
    x[1, 40] = spoilt
    got = product("cpu", form, parts, x)
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


def test_where_products_take_no_integers_they_take_what_these_stand_for() -> None:
    """A table of values, and parts that are more buffers than a kernel may have."""
    more = Form(5, 32, shift="low", super_group=64)
    for name, form in (("cpu", Form(4, 32, "iq4_nl")), ("webgpu", more)):
        parts, x = parts_of(form, 16, 64), rows_of(2, 64)
        device, graph = device_of(name), graph_of(form, parts, 2, 64, 1)
        session = Session(
            compile_graph(graph, device.caps), device, {f"w.{p}": v for p, v in parts.items()}
        )
        (got,) = session.run({"x": x})
        want = rescale(*quantize(x)).astype(np.float64) @ dequantized(form, parts).T
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-3 * np.abs(want).max())
