"""Products that end with a layer or rms norm: the bits of two kernels, and when one is chosen."""

from __future__ import annotations

from typing import Any

import dotkit as kit
import numpy as np
import pytest
import torch
from dotkit import source
from harness import targets
from hypothesis import given, settings, strategies as st
from product_kit import device
from rows import few

import weft
from weft import ops
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.dtypes import DType
from weft.graph.ir import Graph
from weft.kernel.verify import verify
from weft.templates import registry
from weft.templates.group import Group

CPUS = [name for name, caps in PRESETS.items() if caps.is_cpu]
CPU = PRESETS["cpu-avx512"]


class Case:
    """norm(x @ w.T + bias + residual) * 2 [+ residual] over [*lead, n], as graph nodes."""

    def __init__(
        self, lead: tuple[int, ...], n: int, k: int, norm: str = "layer_norm",
        dtype: DType = dt.float32, plain: bool = False, **attrs: Any,
    ) -> None:  # fmt: skip
        self.x, self.w = source("x", (*lead, k), dtype, **attrs), source("w", (n, k), dtype)
        self.r = source("r", (*lead, n), dtype)
        self.bias, self.g, self.b = (source(s, (n,), dtype) for s in ("bias", "g", "b"))
        self.inputs = (self.x, self.w, self.r, self.bias, self.g, self.b)
        with ops.building():
            w = ops.transpose(self.w, (1, 0))
            y = ops.dot(self.x, ops.broadcast(w, (*lead[:-1], k, n)))
            y = ops.add(y, ops.broadcast(self.bias, y.shape))
            self.value = ops.add(y, self.r)
            weights = (self.g, self.b) if norm == "layer_norm" else (self.g,)
            self.call = ops.call(norm, self.value, *weights, eps=1e-5)
            self.out = ops.add(self.call, self.call)

    def graph(self, keep: bool) -> Graph:
        return Graph(self.inputs, (self.value, self.out) if keep else (self.out,))

    def arrays(self) -> list[np.ndarray]:
        return [kit.fill(x) for x in self.inputs]


def play(name: str, group: Group, arrays: list[np.ndarray], config: dict[str, Any], *scalars: int):  # type: ignore[no-untyped-def]
    kernel = registry.get(group.kind)(group, device(name).caps, config)
    verify(kernel)
    blanks = [np.full(o.shape, 77, o.dtype.numpy) for o in group.outputs]
    return run_kernel(device(name), kernel, [*arrays, *blanks], scalars)[len(arrays) :]


def one_and_two(name: str, case: Case, keep: bool, **config: Any) -> tuple[Any, Any]:
    """The outputs of one kernel, and those of a product's kernel followed by a norm's."""
    arrays = case.arrays()
    outputs = case.graph(keep).outputs
    one = play(name, Group("matmul", case.inputs, outputs), arrays, config)
    (x,) = play(name, Group("matmul", case.inputs[:4], (case.value,)), arrays[:4], config)
    norm = Group("norm", (case.value, case.g, case.b), (case.out,), case.call)
    two = [x, *play(name, norm, [x, *arrays[4:]], {})]
    return one, two if keep else two[1:]


def truth(case: Case, arrays: list[np.ndarray]) -> torch.Tensor:
    x, w, r, bias, g, b = (torch.from_numpy(a.astype(np.float64)) for a in arrays)
    value = x @ w.T + bias + r
    size = (value.shape[-1],)
    if case.call.attrs["name"] == "rms_norm":
        return 2 * torch.nn.functional.rms_norm(value, size, g, 1e-5)
    return 2 * torch.nn.functional.layer_norm(value, size, g, b, 1e-5)


@pytest.mark.parametrize("name", few([*CPUS, "cpu"], "cpu-avx512", "cpu"))
def test_one_kernel_has_the_bits_of_two(name: str) -> None:
    for lead, n, k, norm, config in [
        ((19,), 37, 21, "layer_norm", {}),  # one block of K, ragged columns
        ((2, 5), 24, 300, "rms_norm", {}),  # several blocks of K
        ((5,), 7, 5, "layer_norm", {"pack_a": True}),  # fewer columns than lanes
    ]:
        for keep in (True, False):
            one, two = one_and_two(name, Case(lead, n, k, norm), keep, **config)
            for a, b in zip(one, two, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", targets(*CPUS))
def test_narrow_rows_are_normalised_as_stored(name: str) -> None:
    for keep, dtype in ((True, dt.bfloat16), (False, dt.bfloat16), (True, dt.float16)):
        one, two = one_and_two(name, Case((18,), 33, 64, "rms_norm", dtype), keep)
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


@settings(max_examples=4, deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 40), st.one_of(st.integers(1, 40), st.integers(250, 280)),
    st.booleans(), st.booleans(), st.sampled_from(["layer_norm", "rms_norm"]),
)  # fmt: skip
def test_any_shape(m: int, n: int, k: int, keep: bool, packed: bool, norm: str) -> None:
    one, two = one_and_two("cpu-avx2", Case((m,), n, k, norm), keep, pack_a=packed)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_bounded_at_run_time() -> None:
    case = Case((20,), 24, 16)
    fields = {"rows": "n", "slots": {"n": 0}}
    group = Group("matmul", case.inputs, (case.value, case.out), **fields)  # type: ignore[arg-type]
    arrays = case.arrays()
    whole, part = (play("cpu-avx512", group, arrays, {}, rows) for rows in (20, 11))
    for a, b in zip(whole, part):
        np.testing.assert_array_equal(a[:11], b[:11])
        assert (b[11:] == 77).all()


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-amx", "cpu"])
def test_a_batch_of_products(name: str) -> None:
    x, w, g = source("x", (3, 10, 20)), source("w", (3, 20, 24)), source("g", (24,))
    with ops.building():
        value = ops.dot(x, w)
        rows = ops.reshape(value, (30, 24))
        out = ops.call("rms_norm", rows, g, eps=1e-5)
    arrays = [kit.fill(n) for n in (x, w, g)]
    got, kept = play(name, Group("matmul", (x, w, g), (out, value)), arrays, {})
    a, b, weight = (torch.from_numpy(v.astype(np.float64)) for v in arrays)
    np.testing.assert_allclose(kept, (a @ b).numpy(), rtol=1e-4, atol=1e-4)
    want = torch.nn.functional.rms_norm((a @ b).reshape(30, 24), (24,), weight, 1e-5)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-4)


# -- what is chosen


def kernels(graph: Graph, caps: Any = CPU) -> list[list[str]]:
    """The dots and norms of each launch."""
    lines = compile_graph(graph, caps).meta["report"].groups
    found = [[n for n in g.nodes if n in ("dot", "layer_norm", "rms_norm")] for g in lines]
    return [x for x in found if x]


@pytest.mark.parametrize("keep", [True, False])
def test_many_rows_are_normalised_where_they_are_summed(keep: bool) -> None:
    graph = Case((2, 1024), 96, 64).graph(keep)
    assert kernels(graph) == [["dot", "layer_norm"]]
    line = compile_graph(graph, CPU).meta["report"].groups[-1]
    assert line.kind == "matmul" and "layer_norm" in line.name
    assert line.output.count("float32") == (2 if keep else 1)


def test_where_two_kernels_stay() -> None:
    apart = [["dot"], ["layer_norm"]]
    assert kernels(Case((512,), 96, 64).graph(True)) == apart  # too few rows
    assert kernels(Case((2048,), 4096, 64).graph(True)) == apart  # rows too long for the scratch
    assert kernels(Case((2048,), 96, 64, rows="n").graph(True)) == apart  # few rows at run time
    narrow = Case((2048,), 96, 64, dtype=dt.bfloat16).graph(True)
    assert kernels(narrow, PRESETS["cpu-amx"]) == apart  # short products in matrix registers
    for name, caps in PRESETS.items():
        if not caps.is_cpu:
            assert kernels(Case((256,), 16, 16).graph(True), caps) == apart, name


def test_a_norm_that_needs_another_kernel_of_the_rows_stays_apart() -> None:
    case = Case((2048,), 64, 64)
    with ops.building():
        total = ops.reshape(ops.sum_(case.value, 1), (2048, 1))
        out = ops.mul(case.out, ops.broadcast(total, case.out.shape))
    assert kernels(Graph(case.inputs, (out,))) == [["dot"], ["layer_norm"]]
    assert kernels(Graph(case.inputs, (case.out, total))) == [["dot", "layer_norm"]]


def test_two_norms_in_a_chain() -> None:
    """Each product takes the norm after it, and the residual stream is written for both."""
    first, w2 = Case((2048,), 64, 64), source("w2", (64, 64))
    with ops.building():
        stream = ops.add(first.value, ops.dot(first.out, w2))
        out = ops.call("rms_norm", stream, first.g, eps=1e-5)
    graph = Graph((*first.inputs, w2), (out, stream))
    assert kernels(graph) == [["dot", "layer_norm"], ["dot", "rms_norm"]]


@pytest.mark.parametrize("keep", [True, False])
def test_rows_do_not_depend_on_their_number(keep: bool) -> None:
    """2048 rows in one kernel, 100 in two: the same bits; and PyTorch in float64 agrees."""
    case = Case((2048,), 72, 90)
    arrays = case.arrays()

    def block(x: Any, w: Any, r: Any, bias: Any, g: Any, b: Any) -> Any:
        y = weft.functional.linear(x, w, bias) + r
        z = weft.functional.layer_norm(y, g, b)
        return (y, z + z) if keep else z + z

    def run(rows: int) -> list[np.ndarray]:
        few = [a[:rows] if i in (0, 2) else a for i, a in enumerate(arrays)]
        compiled = weft.compile(block, "cpu")
        got = compiled(*few)
        if get("cpu").caps.cores == 2:
            assert len(compiled.programs()[0].steps) == (1 if rows == 2048 else 2)
        return [np.array(t.numpy()) for t in (got if keep else (got,))]

    many, few = run(2048), run(100)
    for a, b in zip(many, few, strict=True):
        np.testing.assert_array_equal(a[:100], b)
    np.testing.assert_allclose(many[-1], truth(case, arrays).numpy(), rtol=1e-4, atol=1e-4)
