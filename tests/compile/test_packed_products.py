"""Products of packed weights: the bits of the same weights in float32, read as they lie packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rows import covering

from weft import ops
from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.packed import Form, dequantized, packed_codes
from weft.graph.ir import Graph
from weft.ops.packed import dequantize
from weft.program.program import Program
from weft.program.session import Session

FORMS = {
    "q8_0": Form(8, 32, offset=128),
    "q4_0": Form(4, 32, offset=8),
    "q4_1": Form(4, 32, shift="low"),
    "q5_0": Form(5, 32, offset=16),
    "q4_k": Form(4, 32, shift="low", super_group=96),
    "q6_k": Form(6, 16, offset=32, super_group=96),
    "int4 with a zero": Form(4, 96, shift="zero"),
    "3 bits": Form(3, 32, offset=4),
    "2 bits": Form(2, 16, shift="low", super_group=96),
    "1 bit": Form(1, 96, offset=1),
    "nf4": Form(4, 48, "nf4"),
    "e4m3": Form(8, 96, "e4m3"),
}


def parts_of(form: Form, n: int, k: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Parts of a random matrix."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << form.bits, (n, k), dtype=np.uint8)
    parts = packed_codes(form, codes & 0xF7 if form.values == "e4m3" else codes)  # no NaN
    for part, shape in form.shapes(n, k).items():
        if part == "zeros" or (form.super_group and part in ("scales", "lows")):
            parts[part] = rng.integers(-20, 20, shape).astype(np.int8)
        elif part not in parts:
            parts[part] = rng.standard_normal(shape).astype(np.float16)
    return {p: parts[p] for p in form.parts}


def linear(form: Form | None, m: int, n: int, k: int, count: int = 1) -> Graph:
    """tanh(x @ w.T), of each of `count` weights: packed, or in float32."""
    x, given, out = ops.input_node("x", (m, k), dt.float32), [], []
    with ops.building():
        for i in range(count):
            if form is None:
                w = ops.input_node(f"w{i}", (n, k), dt.float32, "weight")
                given.append(w)
            else:
                nodes = {
                    p: ops.input_node(f"w{i}.{p}", v.shape, dt.as_dtype(v.dtype), "weight")
                    for p, v in parts_of(form, n, k).items()
                }
                given += nodes.values()
                w = dequantize(form, nodes)
            out.append(ops.tanh(ops.mul(ops.dot(x, ops.transpose(w)), 1 / 64)))
    return Graph((x, *given), tuple(out), meta={"frozen": True})


def played(form: Form, device, m: int, n: int, k: int, count: int = 1) -> Program:  # type: ignore[no-untyped-def]
    """The Program with packed weights, after its results were those of float32, bit for bit."""
    x = np.random.default_rng(9).standard_normal((m, k)).astype(np.float32)
    parts = [parts_of(form, n, k, seed) for seed in range(count)]
    packed = {f"w{i}.{p}": v for i, found in enumerate(parts) for p, v in found.items()}
    wide = {f"w{i}": dequantized(form, found) for i, found in enumerate(parts)}
    program = compile_graph(linear(form, m, n, k, count), device.caps)
    plain = compile_graph(linear(None, m, n, k, count), device.caps)
    got = Session(program, device, packed).run({"x": x})
    want = Session(plain, device, wide).run({"x": x})
    for a, b in zip(got, want):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))
    return program


def device_of(name: str):  # type: ignore[no-untyped-def]
    return InterpDevice(PRESETS[name]) if name in PRESETS else get(name)


def in_place(program: Program, n: int, k: int) -> bool:
    """Whether no buffer could hold the matrix in float32."""
    return all(b.nbytes < 4 * n * k for b in program.buffers if b.role != "input")


@pytest.mark.parametrize("name", ["cpu", "cpu-avx512", "cpu-neon"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_cpu_reads_them_packed(form: Form, name: str) -> None:
    device = device_of(name)
    m, n, k = (20 if form.bits == 4 else 3), 3 * device.caps.lanes - 5 * (name == "cpu"), 96
    program = played(form, device, m if name == "cpu" else 2, n, k)
    assert in_place(program, n, k) and program.recipes
    (line,) = program.meta["report"].weights
    size = sum(v.nbytes for v in parts_of(form, n, k).values())
    assert (line.name, line.bits) == ("w0", round(8 * size / (n * k), 3))
    assert line.read == f"{device.caps.lanes} rows interleaved"


GPUS = ["vulkan", "webgpu", "cuda", "hip-wave64", "hip-wave32", "lavapipe"]


@pytest.mark.parametrize(("form", "name"), covering(FORMS, GPUS))
def test_gpus_read_them_packed(form: str, name: str) -> None:
    n, k = (40, 96) if name != "cuda" else (37, 288)
    for m in (3, 20):
        assert in_place(played(FORMS[form], device_of(name), m, n, k), n, k)


@pytest.mark.parametrize("m", [1, 7, 40])
def test_chunks_and_spans(m: int) -> None:
    """K of several chunks and spans, several weights over one x, columns that no strip divides."""
    cpu = get("cpu")
    n = 5 * cpu.caps.lanes - 3
    assert in_place(played(FORMS["q5_0"], cpu, m, n, 2432, 3), n, 2432)


@pytest.mark.parametrize(
    ("form", "n", "k"),
    [(Form(4, 6, offset=8), 64, 96), (Form(1, 8), 64, 40)],
    ids=["a group of no words", "rows of no words"],
)
def test_what_no_band_holds_is_widened_first(form: Form, n: int, k: int) -> None:
    program = played(form, get("cpu"), 3, n, k)
    (line,) = program.meta["report"].weights
    assert not program.recipes and line.read == "widened in each run"


@pytest.mark.parametrize("limit", [1 << 13, 1 << 20])
def test_ranges_of_a_weight_too_large_to_bind(limit: int) -> None:
    """Its parts are cut at the same rows; products and gathers read range by range."""
    form, n, k = FORMS["q6_k"], 192, 96
    caps = replace(PRESETS["webgpu"], max_binding_bytes=limit)
    parts = parts_of(form, n, k)
    x, ids = ops.input_node("x", (3, k), dt.float32), ops.input_node("ids", (4,), dt.int32)
    with ops.building():
        nodes = {
            p: ops.input_node(f"w.{p}", v.shape, dt.as_dtype(v.dtype), "weight")
            for p, v in parts.items()
        }
        w = dequantize(form, nodes)
        out = ops.dot(x, ops.transpose(w)), ops.gather(w, ids)
    program = compile_graph(Graph((x, ids, *nodes.values()), out, meta={"frozen": True}), caps)
    assert max(r.nbytes for s in program.steps for r in s.args) <= limit
    assert in_place(program, n, k)
    values = {"x": np.ones((3, k), np.float32), "ids": np.array([191, 0, 40, 100], np.int32)}
    session = Session(program, InterpDevice(caps), {f"w.{p}": v for p, v in parts.items()})
    products, rows = session.run(values)
    wanted = dequantized(form, parts)
    np.testing.assert_array_equal(rows, wanted[values["ids"]])
    np.testing.assert_allclose(products, values["x"] @ wanted.T, rtol=1e-3, atol=1e-2)
