"""Tiles and blocks of products on a CPU: what each choice depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dotkit import source
from product_kit import Product

from weft.core import dtypes as dt
from weft.core.caps import PRESETS, Caps
from weft.core.order import CHUNK
from weft.kernel import ir
from weft.kernel.walk import walk
from weft.ops import functions as f
from weft.templates import registry
from weft.templates.group import Group
from weft.templates.product import cpu_plan
from weft.templates.product.problem import MatmulProblem, mode

WIDE, NARROW = PRESETS["cpu-avx512"], PRESETS["cpu-avx2"]


def problem(
    m: int, n: int, k: int, dtype: dt.DType = dt.float32, dots: int = 1, layout: str = "NN"
) -> MatmulProblem:
    return Product(m, n, k, dtype, layout, dots=dots).problem()


def test_the_mode_depends_on_dtypes_k_and_the_machine() -> None:
    for m in (1, 17, 4096):
        assert mode(problem(m, 64, 64), WIDE) == "f32"
        assert mode(problem(m, 64, 64, dt.bfloat16), WIDE) == "dot2"
        assert mode(problem(m, 64, 63, dt.bfloat16), WIDE) == "f32"
        assert mode(problem(m, 64, 64, dt.bfloat16), NARROW) == "f32"
        assert mode(problem(m, 64, 64, dt.int8), WIDE) == "i32"


def test_the_left_operand_is_packed_where_rows_cannot_be_read_or_are_many() -> None:
    assert cpu_plan.packs_left(problem(40, 64, 64, layout="TN"), "f32", WIDE, {"pack_a": False})
    assert cpu_plan.packs_left(problem(40, 64, 64, dt.float16), "f32", WIDE, {})
    assert not cpu_plan.packs_left(problem(40, 64, 64), "f32", WIDE, {})
    assert cpu_plan.packs_left(problem(cpu_plan.TALL, 512, 512), "f32", WIDE, {})
    assert not cpu_plan.packs_left(problem(cpu_plan.TALL, 512, 512), "f32", WIDE, {"pack_a": False})


@pytest.mark.parametrize("caps", [WIDE, NARROW, PRESETS["cpu-neon"]])
@pytest.mark.parametrize("dots", [1, 2, 3])
def test_a_tile_fits_the_registers(caps: Caps, dots: int) -> None:
    for m, n in ((3, 5), (128, 128), (512, 3072)):
        mr, nv = cpu_plan.register_tile(problem(m, n, 64, dots=dots), caps, False, {})
        assert 1 <= mr <= m and mr * nv * dots + nv * dots + 1 <= caps.registers


def test_wide_panels_unless_cores_would_be_idle() -> None:
    many = replace(WIDE, cores=16)
    assert cpu_plan.register_tile(problem(128, 128, 128), WIDE, False, {})[1] == 4
    assert cpu_plan.register_tile(problem(128, 128, 128), many, False, {})[1] < 4
    assert cpu_plan.register_tile(problem(512, 3072, 768), many, False, {})[1] == 4
    assert cpu_plan.register_tile(problem(128, 128, 128), WIDE, False, {"nv": 1, "mr": 5}) == (5, 1)


@pytest.mark.parametrize("cores", [1, 2, 6, 16, 64])
@pytest.mark.parametrize("size", [(40, 64), (256, 256), (5000, 700)])
def test_blocks_of_rows_are_whole_tiles_and_feed_the_cores(
    cores: int, size: tuple[int, int]
) -> None:
    m, n = size
    caps, p = replace(WIDE, cores=cores), problem(m, n, 512)
    for pack_a in (False, True):
        mr, nv = cpu_plan.register_tile(p, caps, pack_a, {})
        mb = cpu_plan.row_block(p, caps, mr, nv, pack_a)
        assert mb % mr == 0 and mb <= cpu_plan.ROWS + mr
        groups = -(-m // mb) * -(-n // (nv * caps.lanes))
        assert pack_a or groups >= min(cores, m // 40)


def test_a_block_of_k_is_a_chunk() -> None:
    for config in ({}, {"nv": 2}, {"pack_a": True}):
        assert cpu_plan.plan_of(problem(64, 64, 5000), WIDE, config).kc == CHUNK


@pytest.mark.parametrize("layout", ["interleaved", "columns"])
def test_spare_vectors_of_a_strip_read_what_is_there(layout: str) -> None:
    """A CPU takes hundreds of cycles for a masked read of memory that is not there."""
    n, k = 16 * 37, 2048  # 37 vectors: no whole number of strips
    x = source("x", (1, k))
    if layout == "interleaved":
        w = source("w", (n, k), dt.float16, role="weight", interleave=16)
        dot = f.dot(x, f.cast(f.swap_last(w), dt.float32))
    else:
        w = source("w", (k, n))
        dot = f.dot(x, w)
    group = Group("matvec", (x, w), (dot,), None, name="k")
    kernel = registry.get("matvec")(group, WIDE, {})
    loads = [e for e in walk(kernel.body) if isinstance(e, ir.Load)]
    read = [e for e in loads if e.source.name == kernel.buffers[1].name]
    assert read and all(e.mask is None for e in read)
