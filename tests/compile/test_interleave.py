"""Weights that a CPU's products read interleaved: the same bits as of the checkpoint's order."""

import dataclasses

import numpy as np
import pytest
from graphs import f32, i32, values_for
from hypothesis import given, settings, strategies as st

from weft import ops
from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import CompileError, DTypeError, FileFormatError, ShapeError, UsageError
from weft.graph.ir import Graph
from weft.ops.graph_listener import input_node
from weft.program.program import BufferSpec, Program
from weft.program.recipe import Recipe
from weft.program.session import Session
from weft.program.weights import _PIECE, arranged

DTYPES = (dt.float32, dt.float16, dt.bfloat16)


def linear(m, n, k, dtype=dt.float32, frozen=True, rank=2, gated=False):
    """tanh(x @ w.T), with a second weight silu-like in its epilogue where `gated`."""
    x = f32("x", *(2,) * (rank - 2), m, k)
    ws = [input_node(name, (n, k), dtype, "weight") for name in ("w", "v")[: 1 + gated]]
    with ops.building():
        dots = []
        for w in ws:
            columns = ops.transpose(ops.cast(w, dt.float32), (1, 0))
            if rank > 2:
                columns = ops.broadcast(columns, (2,) * (rank - 2) + (k, n))
            dots.append(ops.dot(x, columns))
        y = ops.tanh(dots[0]) if not gated else ops.mul(ops.tanh(dots[0]), dots[1])
    return Graph((x, *ws), (y,), meta={"frozen": frozen})


def played(graph, device, values):
    program = compile_graph(graph, device.caps)
    weights = {x.attrs["name"] for x in graph.inputs if x.attrs["role"] == "weight"}
    session = Session(program, device, {n: v for n, v in values.items() if n in weights})
    return program, session.run({n: v for n, v in values.items() if n not in weights})


def same_bits(make, device, seed=0):
    """The Program with interleaved weights, after its results were those without, bit for bit."""
    values = values_for(make(frozen=True), seed)
    _, plain = played(make(frozen=False), device, values)
    program, kept = played(make(frozen=True), device, values)
    for a, b in zip(plain, kept):
        np.testing.assert_array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))
    return program


sizes = st.tuples(st.integers(1, 70), st.integers(1, 12), st.integers(2, 300))


@settings(max_examples=4, deadline=None)
@given(sizes, st.integers(0, 15), st.sampled_from(DTYPES), st.booleans())
def test_any_shape_has_the_bits_of_the_plain_order(size, more, dtype, gated):
    cpu, (m, bands, k) = get("cpu"), size
    n = bands * cpu.caps.lanes + more

    def make(frozen):
        return linear(m, n, k, dtype, frozen, gated=gated)

    program = same_bits(make, cpu)
    pairs = dtype is dt.bfloat16 and {"dot2_bf16", "mma_bf16"} & cpu.caps.features
    assert bool(program.recipes) != bool(pairs)


@pytest.mark.parametrize("name", ["cpu-avx512", "cpu-avx2", "cpu-neon", "cpu-amx"])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_every_cpu_in_the_interpreter(name, rows):
    """Also where zeros fill up the last band."""
    caps = PRESETS[name]

    def make(frozen):
        return linear(rows, 3 * caps.lanes + rows // 5, 70, dt.float16, frozen)

    assert same_bits(make, InterpDevice(caps)).recipes


def test_a_batch_of_texts_reads_one_weight():
    cpu = get("cpu")

    def make(frozen):
        return linear(9, 4 * cpu.caps.lanes, 40, frozen=frozen, rank=3)

    assert same_bits(make, cpu).recipes


def test_a_weight_of_many_pieces():
    cpu = get("cpu")
    k = 2 * _PIECE // (4 * cpu.caps.lanes * 3)

    def make(frozen):
        return linear(1, 8 * cpu.caps.lanes - 3, k, frozen=frozen)

    assert same_bits(make, cpu).recipes


def tied(frozen):
    """A weight that a product and a gather read."""
    x, w, ids = f32("x", 2, 24), f32("w", 64, 24, role="weight"), i32("ids", 3)
    with ops.building():
        y = ops.dot(x, ops.transpose(w, (1, 0)))
        rows = ops.gather(w, ids, axis=0)
    return Graph((x, ids, w), (y, rows), meta={"frozen": frozen})


def test_a_tied_embedding_is_gathered_from_the_checkpoint():
    program = same_bits(tied, get("cpu"))
    lanes = get("cpu").caps.lanes
    held = {b.name: b.shape for b in program.buffers if b.role == "weight"}
    assert held == {"w": (64, 24), f"w@{lanes}": (64 // lanes, 24, lanes)}


def experts(frozen, dtype=dt.float16, shape=(5, 48, 24)):
    """x times two of five matrices, by numbers that are in memory."""
    x, w = f32("x", 1, shape[-1]), input_node("w", shape, dtype, "weight")
    ids = i32("ids", 2)
    with ops.building():
        numbers = ops.remainder(ids, 5)
        stacked = ops.reshape(w, (5, -1, shape[-1]))
        picked = ops.transpose(ops.gather(stacked, numbers), (0, 2, 1))
        wide = ops.broadcast(ops.reshape(x, (1, 1, -1)), (2, 1, shape[-1]))
        y = ops.dot(wide, ops.cast(picked, dt.float32))
    return Graph((x, ids, w), (y,), meta={"frozen": frozen})


@pytest.mark.parametrize("shape", [(5, 48, 24), (240, 24)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_that_are_picked_have_the_bits_of_the_plain_order(dtype, shape):
    cpu = get("cpu")
    program = same_bits(lambda frozen: experts(frozen, dtype, shape), cpu)
    pairs = dtype is dt.bfloat16 and cpu.caps.features & {"dot2_bf16", "mma_bf16"}
    assert pairs or {r.rows for r in program.recipes.values()} == {240}
    (kernel,) = (k for k in program.kernels if "matvec" in k.name)
    assert kernel.bytes == 24 * 4 + 2 * 48 * 24 * dtype.itemsize + 2 * 4 + 2 * 48 * 4


@pytest.mark.parametrize(
    "graph",
    [
        linear(2, 64, 8, frozen=False),
        linear(2, 3, 8),
        experts(True, shape=(5, 49, 24)),
        linear(2, 64, 1),
        Graph(
            (x := f32("x", 2, 8), w := f32("w", 8, 64, role="weight")),
            (ops.dot(x, w),),
            meta={"frozen": True},
        ),
    ],
    ids=["not frozen", "no band", "experts of no whole bands", "one column", "w[K, N]"],
)
def test_what_stays_in_the_order_of_the_checkpoint(graph):
    assert not compile_graph(graph, get("cpu").caps).recipes


@pytest.mark.parametrize("name", ["webgpu", "cuda", "hip-wave64"])
def test_gpus_read_the_order_of_the_checkpoint(name):
    assert not compile_graph(linear(2, 64, 8), PRESETS[name]).recipes


def test_programs_share_an_interleaved_weight_and_files_keep_the_recipe(tmp_path):
    cpu = get("cpu")
    values = values_for(linear(1, 64, 24))
    one, many = (compile_graph(linear(m, 64, 24), cpu.caps) for m in (1, 40))
    many.save(tmp_path / "p")
    many = Program.load(tmp_path / "p")
    first = Session(one, cpu, {"w": values["w"]})
    second = Session(many, cpu, {"w": values["w"], **first.weights})
    assert first.weights == second.weights
    x = np.repeat(values["x"], 40, axis=0)
    row, rows = first.run({"x": values["x"]})[0], second.run({"x": x})[0]
    np.testing.assert_array_equal(np.repeat(row, 40, axis=0), rows)


@pytest.mark.parametrize("item", [1, 4])
@pytest.mark.parametrize("rows", [32, 27])
def test_the_order_is_that_of_its_definition(rows, item):
    w = np.random.default_rng(0).integers(0, 99, (rows, 24)).astype(np.uint8)
    spec = BufferSpec("w@8", "weight", dt.uint8, (4, 24 // item, 8 * item), 32 * 24)
    found = arranged(Recipe("w", 0, rows, 8, item), spec, w)
    padded = np.concatenate([w, np.zeros((32 - rows, 24), np.uint8)])
    wanted = padded.reshape(4, 8, 24 // item, item).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(found, wanted.reshape(spec.shape))


def test_wrong_weights_are_named():
    cpu, program = get("cpu"), compile_graph(linear(1, 64, 24), get("cpu").caps)
    with pytest.raises(UsageError, match="weight 'w' was not given"):
        Session(program, cpu)
    with pytest.raises(ShapeError, match=r"'w' is an array of shape \[64, 24\]"):
        Session(program, cpu, {"w": np.zeros((64, 23), np.float32)})
    with pytest.raises(DTypeError, match="is float32, got float16"):
        Session(program, cpu, {"w": np.zeros((64, 24), np.float16)})


@pytest.mark.parametrize("change", [{"lanes": 0}, {"lanes": 3}, {"rows": 48}, {"start": 8}])
def test_a_file_whose_recipe_does_not_fit_is_refused(change, tmp_path):
    program = compile_graph(linear(1, 64, 24), get("cpu").caps)
    ((name, recipe),) = program.recipes.items()
    meta = {**program.meta, "recipes": {name: recipe._replace(**change)}}
    dataclasses.replace(program, meta=meta).save(tmp_path / "p")
    with pytest.raises(FileFormatError, match="is not a part of weight 'w'"):
        Program.load(tmp_path / "p")


def test_nothing_but_a_product_reads_an_interleaved_weight():
    whole = {"name": "w", "role": "weight", "part": (0, 64), "whole": (64, 24), "interleave": 8}
    w = dataclasses.replace(f32("w", 64, 24, role="weight"), attrs=whole)
    with ops.building():
        y = ops.tanh(w)
    with pytest.raises(CompileError, match="interleaved"):
        compile_graph(Graph((), (y,)), get("cpu").caps)
