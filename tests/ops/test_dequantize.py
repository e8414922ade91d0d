"""The composite `dequantize` against core.packed, which is tested against the formats' packages."""

from __future__ import annotations

import numpy as np
import pytest
from rows import few

from weft import ops
from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import DTypeError, ShapeError
from weft.core.packed import Form, codes_of, dequantized, packed_codes
from weft.graph.ir import Graph
from weft.ops.packed import dequantize
from weft.ops.tape import Tracked, walk
from weft.program.session import Session

SCHEMES = {
    "int8 per channel": Form(8, 96, offset=128),
    "int4": Form(4, 32, offset=8),
    "int4 with a zero": Form(4, 32, shift="zero"),
    "q4_1": Form(4, 32, shift="low"),
    "q5_0": Form(5, 32, offset=16),
    "q6_k": Form(6, 16, offset=32, super_group=96),
    "q4_k": Form(4, 32, shift="low", super_group=96),
    "3 bits": Form(3, 8, offset=4),
    "2 bits": Form(2, 16, shift="low"),
    "1 bit": Form(1, 96, offset=1),
    "nf4": Form(4, 48, "nf4"),
    "iq4_nl": Form(4, 32, "iq4_nl"),
    "e4m3": Form(8, 32, "e4m3"),
}


def parts_of(form: Form, n: int, k: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Parts of a random matrix."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << form.bits, (n, k), dtype=np.uint8)
    if form.values == "e4m3":
        codes[codes & 127 == 127] = 5  # NaN
    parts = packed_codes(form, codes)
    for part, shape in form.shapes(n, k).items():
        if part in parts:
            continue
        if part == "zeros" or (form.super_group and "super" not in part):
            parts[part] = rng.integers(0, 64, shape).astype(np.int8)
        else:
            parts[part] = rng.standard_normal(shape).astype(np.float16)
    form.check(parts, n, k)
    return parts


def inputs_of(parts: dict[str, np.ndarray], role: str = "input") -> dict:
    return {
        p: ops.input_node(f"w.{p}", v.shape, dt.as_dtype(v.dtype), role) for p, v in parts.items()
    }


@pytest.mark.parametrize("form", SCHEMES.values(), ids=SCHEMES)
def test_the_body_is_its_meaning(form: Form) -> None:
    parts = parts_of(form, 5, 96)
    nodes = inputs_of(parts)
    graph = Graph(tuple(nodes.values()), (dequantize(form, nodes),))
    (found,) = ops.evaluate(graph, list(parts.values()), inline=True)
    assert np.array_equal(found, dequantized(form, parts))


def device_of(name: str):  # type: ignore[no-untyped-def]
    return InterpDevice(PRESETS[name]) if name in PRESETS else get(name)


@pytest.mark.parametrize("form", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("name", few(["cpu", "vulkan", "cuda", "cpu-avx2"], "cpu", "vulkan"))
def test_devices_give_its_bits(name: str, form: Form) -> None:
    device, parts = device_of(name), parts_of(form, 5, 96)
    nodes = inputs_of(parts)
    ids = ops.input_node("ids", (3,), dt.int32)
    matrix = dequantize(form, nodes)
    graph = Graph((*nodes.values(), ids), (matrix, ops.gather(matrix, ids)))
    program = compile_graph(graph, device.caps)
    given = {f"w.{p}": v for p, v in parts.items()} | {"ids": np.array([4, 0, 9], np.int32)}
    whole, rows = Session(program, device).run(given)
    wanted = dequantized(form, parts)
    assert np.array_equal(whole, wanted)
    assert np.array_equal(rows[:2], wanted[[4, 0]]) and np.isnan(rows[2]).all()


def test_every_8_bit_float() -> None:
    form, codes = Form(8, 256, "e4m3"), np.arange(256, dtype=np.uint8)[None]
    parts = {"codes": codes, "scales": np.ones((1, 1), np.float32)}
    nodes = inputs_of(parts)
    graph = Graph(tuple(nodes.values()), (dequantize(form, nodes),))
    device = InterpDevice(PRESETS["webgpu"])
    (got,) = Session(compile_graph(graph, device.caps), device).run(
        {f"w.{p}": v for p, v in parts.items()}
    )
    assert np.array_equal(got, dequantized(form, parts), equal_nan=True)


def test_scales_have_a_derivative() -> None:
    """It is the sum of the codes' values."""
    form = Form(4, 32, offset=8)
    parts = parts_of(form, 2, 64)
    scales = Tracked(parts["scales"])
    out = dequantize(form, {**parts, "scales": scales})
    ((_, got),) = walk(out, np.ones((2, 64), np.float32), {id(scales)}, False).values()
    values = codes_of(form, parts).astype(np.float64) - 8
    assert np.array_equal(got, values.reshape(2, 2, 32).sum(-1).astype(np.float16))


def test_wrong_parts_are_named() -> None:
    form = Form(4, 32, offset=8)
    parts = parts_of(form, 2, 64)
    with pytest.raises(ShapeError, match="has the parts codes, scales, not codes"):
        dequantize(form, {"codes": parts["codes"]})
    with pytest.raises(ShapeError, match="parts of a packed"):
        dequantize(form, {**parts, "scales": parts["scales"][:, :1]})
    with pytest.raises(DTypeError, match="7 bits"):
        dequantize(form._replace(bits=7), parts)
