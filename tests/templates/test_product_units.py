"""Which unit computes a product and in which blocks: what is chosen, what fits, what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from dotkit import f, source
from product_kit import GPUS, Product, device, problem
from rows import by_turns

from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import CompileError
from weft.kernel.tiles import has_tiles
from weft.templates import registry
from weft.templates.product import blocked_threads, blocked_units

BF16 = dt.bfloat16


@pytest.mark.parametrize(
    "tier,dtype,layout",
    by_turns(itertools.product(GPUS[:2], [dt.float32, dt.float16]), ["NN", "TT", "NT", "TN"], 2),
)
def test_large_blocks(tier: str, dtype: dt.DType, layout: str) -> None:
    """Blocks of 128 x 128, with and without edges."""
    largest: Any = blocked_units if dtype == dt.float16 else blocked_threads
    names = ("down", "across") if dtype == dt.float16 else ("tm", "tn")
    for m, n, k in ((128, 128, 64), (136, 129, 50)):
        p = Product(m, n, k, dtype, layout)
        plan = largest.plans(p.problem(), device(tier).caps)[0]
        assert plan.rows == 128
        p.check(tier, config={x: getattr(plan, x) for x in ("rows", "columns", "bk", *names)})


def test_which_operands_a_gpus_units_take() -> None:
    caps = PRESETS["cuda"]

    def suits(m: int, n: int, k: int, dtype: dt.DType = dt.float32) -> bool:
        return blocked_units.suits(Product(m, n, k, dtype).problem(), caps)

    assert suits(1, 8, 8, BF16) and suits(500, 64, 64, dt.float16)
    assert suits(4, 64, 64, dt.int8) and not suits(4, 64, 64, dt.uint8)
    few = Product(1, 64, 64, dt.int8).problem()
    assert not blocked_units.streams(few, caps)  # few rows go on streaming: the sums are exact
    assert not suits(64, 64, 64) and not suits(64, 64, 7, dt.float16)
    x, w = source("x", (40, 64)), source("w", (70, 64), dt.float16)
    mixed = f.dot(x, f.swap_last(f.cast(w, dt.float32)))
    assert not blocked_units.suits(problem([x, w], [mixed]), caps)


@pytest.mark.parametrize(
    "preset,dtype,k,tiles",
    [
        ("cpu-amx", BF16, 64, True), ("cpu-amx", BF16, 8, False),
        ("cpu-amx", dt.float32, 64, False), ("cpu-amx", dt.float16, 64, False),
        ("cpu-avx512", BF16, 64, False),
    ],
)  # fmt: skip
def test_which_products_a_cpus_registers_take(
    preset: str, dtype: dt.DType, k: int, tiles: bool
) -> None:
    kernel = registry.get("matmul")(Product(40, 40, k, dtype).group(), PRESETS[preset], {})
    assert has_tiles(kernel.body) == tiles


@pytest.mark.parametrize(
    "dtype,config,why",
    [
        (dt.float32, {"rows": 1024}, "threads"),
        (dt.float32, {"tm": 3}, "fours"),
        (dt.float32, {"bk": 256}, "bytes"),
        (dt.float32, {"columns": 48}, "patches"),
        (BF16, {"bk": 24}, "tiles of 16 x 16"),
        (BF16, {"down": 1, "across": 64, "columns": 1024}, "threads"),
        (BF16, {"bk": 1024}, "bytes"),
    ],
)
def test_configurations_that_do_not_fit(dtype: dt.DType, config: dict[str, int], why: str) -> None:
    with pytest.raises(CompileError, match=why):
        Product(64, 64, 64, dtype).check("cuda", config=config)
