"""WGSL text and binding layout, without any device."""

import itertools

import numpy as np
import pytest

from weft.backends import wgsl
from weft.backends.wgsl import layout
from weft.backends.wgsl.constants import literal
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import CompileError, LimitError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, load

CAPS = PRESETS["webgpu"]


def copy(dtype=dt.float32, size=64, lanes=1, step=1):
    b = Builder("copy")
    x, y = b.buffer("x", dtype, size), b.buffer("y", dtype, size, "w")
    i = b.let(b.thread(0) * step, "i")
    b.store(y, i, load(x, i, lanes))
    return b.kernel(grid=(1,), threads=(16,))


def test_gpt2_embedding_splits_at_128_mib():
    nbytes = 50257 * 768 * 4
    found = layout.parts(nbytes, CAPS)
    assert found == [(0, 1 << 27), (1 << 27, nbytes - (1 << 27))]
    kernel = copy(size=50257 * 768)
    assert [b.buffer for b in wgsl.plan(kernel, CAPS).bindings] == [0, 0, 1, 1]
    text = wgsl.render(kernel, CAPS)
    assert "fn x_get(i: i32) -> f32" in text and "if (i < 33554432i)" in text


@pytest.mark.parametrize("nbytes", [0, 1, 16, 65535, 65536, 65537, 1 << 20, 3_000_001])
def test_parts_cover_the_buffer(nbytes):
    found = layout.parts(nbytes, PRESETS["webgpu-small"])
    assert found[0][0] == 0 and sum(size for _, size in found) >= max(nbytes, 1)
    assert all(a + n == b for (a, n), (b, _) in itertools.pairwise(found))
    assert all(size % 16 == 0 and size <= 65536 for _, size in found)


def test_fold_grid():
    assert wgsl.fold_grid((65535, 3, 2), False, CAPS, "k") == (65535, 3, 2)
    x, y, z = wgsl.fold_grid((70_001, 3, 1), True, CAPS, "k")
    assert x * y >= 70_001 * 3 and x <= 65535 and y <= 65535 and z == 1
    for grid, fold in (((1 << 31, 65535, 1), True), ((65536, 1, 1), False)):
        with pytest.raises(LimitError, match="kernel k: a grid of"):
            wgsl.fold_grid(grid, fold, CAPS, "k")


def test_vector_accesses_become_vector_units():
    assert "var<storage, read> x_: array<vec4<f32>>" in wgsl.render(copy(lanes=4, step=4), CAPS)
    assert "var<storage, read> x_: array<vec2<f32>>" in wgsl.render(copy(lanes=4, step=2), CAPS)
    assert "var<storage, read> x_: array<f32>" in wgsl.render(copy(lanes=4, step=1), CAPS)
    text = wgsl.render(copy(dt.int8, lanes=4, step=4), CAPS)
    assert "atomic" not in text and "array<u32>" in text
    assert "array<atomic<u32>>" in wgsl.render(copy(dt.int8), CAPS)


def test_shared_buffers_are_declared_writable():
    assert "read> x_" in wgsl.render(copy(), CAPS)
    assert "read_write> x_" in wgsl.render(copy(), CAPS, frozenset({0}))


def test_unrolled_loops_have_constant_indices():
    b = Builder("unroll")
    y = b.buffer("y", dt.float32, 8, "w")
    tile = b.array("tile", dt.float32, 8)
    with b.loop(4, unroll=True) as i, b.loop(2, unroll=True) as j:
        b.store(tile, i * 2 + j, cast(i + j, dt.float32))
    with b.loop(8, unroll=True) as i:
        b.store(y, i, load(tile, i))
    text = wgsl.render(b.kernel(grid=(1,)), CAPS)
    assert "for" not in text and "tile_[7i] = 4.0f" in text


@pytest.mark.parametrize("value", [0.1, -2.5, 1e-30, 3e38, 2.0**-130, -0.0, 1 / 3, 1e10])
def test_literals_read_back_exactly(value):
    text, single = literal(value, dt.float32), np.float32(value)
    if text.startswith("bitcast"):
        assert int(text[len("bitcast<f32>(") : -2], 16) == single.view(np.uint32)
    else:
        assert np.float32(text.strip("()f")) == single


def test_refusals_name_the_kernel():
    with pytest.raises(CompileError, match="kernel copy"):
        wgsl.render(copy(), PRESETS["cpu-avx2"])
    b = Builder("half")
    x = b.buffer("x", dt.float16, 4, "rw")
    half = load(x, 0)
    b.store(x, 0, ir.Binary("add", half, load(x, 1), half.type))
    with pytest.raises(CompileError, match="kernel half: arithmetic on float16"):
        wgsl.render(b.kernel(grid=(1,)), CAPS)
    b = Builder("nine")
    for k in range(9):
        b.buffer(f"x{k}", dt.float32, 4)
    with pytest.raises(LimitError, match="kernel nine needs 9 storage bindings"):
        wgsl.render(b.kernel(grid=(1,)), CAPS)


def test_scalars_are_the_last_binding():
    b = Builder("scalar")
    y = b.buffer("y", dt.int32, 4, "w")
    b.store(y, 0, ir.Param("n", 3) + 1)
    kernel = b.kernel(grid=(1,))
    plan = wgsl.plan(kernel, CAPS)
    assert plan.scalars and plan.bindings[-1].buffer == layout.SCALARS
    assert "@binding(1) var<uniform> w_scalars: array<vec4<i32>, 1>" in wgsl.render(kernel, CAPS)
    assert "w_scalars[0][3]" in wgsl.render(kernel, CAPS)


def test_scalars_take_no_storage_binding():
    """A packed matrix of six parts, its input and its result leave none of WebGPU's eight."""
    b = Builder("eight")
    parts = [b.buffer(f"x{k}", dt.float32, 4) for k in range(7)]
    y = b.buffer("y", dt.float32, 4, "w")
    b.store(y, ir.Param("n", 5), sum((load(x, 0) for x in parts[1:]), load(parts[0], 0)))
    kernel = b.kernel(grid=(1,))
    assert len(wgsl.plan(kernel, CAPS).bindings) == CAPS.max_bindings + 1
    assert "array<vec4<i32>, 2>" in wgsl.render(kernel, CAPS)
