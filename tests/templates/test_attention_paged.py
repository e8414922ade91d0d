"""A cache in pages gives the bits of the same cache in slots, whichever pages hold what."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dotkit as kit
import numpy as np
import pytest
from attention_kit import QUICK, TIERS, Tier, each_tier
from dotkit import f, source
from hypothesis import given, settings, strategies as st
from rows import covering, few

from weft.backends.llvm import gpu_target, offline, ptxas
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.dtypes import DType
from weft.core.errors import ShapeError
from weft.graph.ir import Graph, toposort
from weft.ops.attention import PAGE
from weft.ops.evaluate import evaluate
from weft.templates import registry
from weft.templates.group import Group
from weft.transform.split_for_gpu import split_decoding

sys.path.append(str(Path(__file__).parents[1] / "backends"))  # for gpu_emulator

RNG = np.random.default_rng(11)


class Planes:
    """A cache in slots and the same in pages, at random places among pages that nobody reads;
    `lacking` rows of the table, from a column on, name no page."""

    def __init__(
        self, slots: int, columns: int, g: int, d: int, dtype: DType, rng: np.random.Generator,
        spare: int = 3,
    ) -> None:  # fmt: skip
        self.coded, shape = dtype is dt.int8, (slots, g, columns * PAGE)
        count = slots * columns + spare
        self.table = rng.permutation(count)[: slots * columns].reshape(slots, columns)
        self.table = self.table.astype(np.int32)
        if self.coded:
            planes = [rng.integers(-127, 128, (*shape, d)).astype(np.int8) for _ in "kv"]
            planes.append(rng.uniform(0.5, 1.5, (*shape, 2)).astype(np.float32) / 127)
        else:
            planes = [rng.standard_normal((*shape, d)).astype(dtype.numpy) for _ in "kv"]
        self.slots, self.pages = planes, [self._paged(x, count) for x in planes]

    def _paged(self, plane: np.ndarray, count: int) -> np.ndarray:
        slots, g, length, width = plane.shape
        junk = np.nan if plane.dtype.kind != "i" else 77
        out = np.full((g, count, PAGE, width), junk, plane.dtype)
        out[:, self.table] = plane.swapaxes(0, 1).reshape(g, slots, length // PAGE, PAGE, width)
        return out

    def unmapped(self, seen: dict[int, int]) -> np.ndarray:
        """The table with any number where slots have no position that is seen."""
        table = self.table.copy()
        for slot in range(len(table)):
            table[slot, -(-seen.get(slot, 0) // PAGE) :] = (-(1 << 31), 1 << 30)[slot % 2]
        return table


def play(
    target: Any, q: np.ndarray, planes: list[np.ndarray], slot: list[int], pos: list[int],
    more: list[tuple[str, np.ndarray]], **params: Any,
) -> np.ndarray:  # fmt: skip
    """One `cached_attention`: on a device, or for None its meaning."""
    places = [("slot", np.asarray(slot, np.int32)), ("pos", np.asarray(pos, np.int32))]
    given = [("q", q), ("kc", planes[0]), ("vc", planes[1]), *places]
    given += [("by", x) for x in planes[2:]] + more
    ins = [source(name, x.shape, dt.as_dtype(x.dtype)) for name, x in given]
    plain = {"scale": 0.3, "window": 0, "softcap": 0.0}
    out = f.call("cached_attention", *ins, **(plain | params))
    arrays = [x for _, x in given]
    if target is None:
        return np.asarray(evaluate(Graph(tuple(ins), (out,)), arrays)[0])
    return kit.play(target, "cached_attention", ins, [out], arrays)[0]


def agree(
    target: Any, planes: Planes, slot: list[int], pos: list[int], h: int, dtype: DType,
    sinks: bool = False, **params: Any,
) -> None:  # fmt: skip
    d = planes.slots[0].shape[-1]
    wide = dt.float32 if planes.coded else dtype
    q = RNG.standard_normal((len(slot), h, d)).astype(wide.numpy)
    more = [("sinks", RNG.standard_normal(h).astype(np.float32))] if sinks else []
    seen: dict[int, int] = {}
    for s, p in zip(slot, pos):
        seen[s] = max(seen.get(s, 0), p + 1)
    want = play(target, q, planes.slots, slot, pos, more, **params)
    table = planes.table if target is None else planes.unmapped(seen)
    got = play(target, q, planes.pages, slot, pos, [("table", table), *more], **params)
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


SHORT = [0, 1, 63, 64, 70, 127]  # positions on both sides of pages' seams


@each_tier(QUICK | {"units, wave 64"})
@pytest.mark.parametrize("rows", few([3, 20, 70], 20))
def test_pages_give_the_bits_of_slots(tier: Tier, rows: int) -> None:
    """Few rows, of slots in any order, and many, side by side; grouped heads."""
    planes = Planes(3, 2, 2, 16, tier.dtype, np.random.default_rng(rows))
    slot = [2, 0, 2] if rows == 3 else [1] * (rows - 14) + [0] * 8 + [2] * 6
    pos = [70, 127, 3] if rows == 3 else [*range(50, 36 + rows), *range(60, 68), *SHORT]
    agree(tier.device, planes, slot, pos, 4, tier.dtype)
    agree(tier.device, planes, slot, pos, 4, tier.dtype, window=5)


@pytest.mark.parametrize("name, rows", covering(["cpu", "vulkan"], [18, 2]))
def test_long_caches(name: str, rows: int) -> None:
    """Several spans of keys; codes with scales, sinks, windows, caps."""
    device = Tier(name).device
    pos = [1150, 511] if rows == 2 else [511, 512, *range(700, 707), *range(1143, 1152)]
    slot = [1, 0] if rows == 2 else [0] * 9 + [1] * 9
    for dtype in (dt.float32, dt.int8, dt.bfloat16):
        planes = Planes(2, 18, 2, 32, dtype, np.random.default_rng(1))
        agree(device, planes, slot, pos, 4, dtype)
        agree(device, planes, slot, pos, 4, dtype, sinks=True, softcap=9.0)
        agree(device, planes, slot, pos, 4, dtype, window=100)


@pytest.mark.parametrize("name", [n for n in PRESETS if PRESETS[n].max_bindings > 8])
def test_codes_everywhere(name: str) -> None:
    planes = Planes(2, 1, 1, 8, dt.int8, np.random.default_rng(2))
    agree(Tier(name).device, planes, [1, 0], [63, 9], 2, dt.int8, sinks=True)
    agree(Tier(name).device, planes, [1] * 17, list(range(40, 57)), 2, dt.int8)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_pages(data: st.DataObject) -> None:
    """Slots, positions, tables and windows as they come, on this CPU."""
    slots, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 10))
    dtype = data.draw(st.sampled_from([dt.float32, dt.bfloat16, dt.int8]))
    rows = data.draw(st.integers(1, 20))
    places = st.tuples(st.integers(0, slots - 1), st.integers(0, columns * PAGE - 1))
    drawn = data.draw(st.lists(places, min_size=rows, max_size=rows))
    slot, pos = (list(x) for x in zip(*(sorted(drawn) if rows > 16 else drawn)))
    seed = data.draw(st.integers(0, 99))
    planes = Planes(slots, columns, 2, 8, dtype, np.random.default_rng(seed))
    window = data.draw(st.sampled_from([0, 1, 64, 70, 300]))
    agree(TIERS["one thread"].device, planes, slot, pos, 6, dtype, window=window)


@pytest.mark.parametrize("dtype", [dt.float32, dt.int8], ids=str)
def test_the_meaning(dtype: DType) -> None:
    """NumPy's, and what a table that names no page reads: the nearest one."""
    planes = Planes(3, 3, 2, 8, dtype, np.random.default_rng(3), spare=0)
    agree(None, planes, [2, 0, 1], [191, 64, 3], 4, dtype)
    q = RNG.standard_normal((1, 4, 8)).astype(np.float32)
    ends = [np.full((1, 3), x, np.int32) for x in (-5, 0, 9999, 8)]
    got = [play(None, q, planes.pages, [0], [150], [("table", t)]) for t in ends]
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[2], got[3])


@pytest.mark.parametrize("window", [0, 600])
def test_parts_of_a_decoding_step(window: int) -> None:
    """`cached_attention_parts` and their merge mean what the whole does."""
    planes = Planes(2, 18, 2, 8, dt.float32, np.random.default_rng(4), spare=0)
    shapes = [((2, 4, 8), dt.float32), *[(planes.pages[0].shape, dt.float32)] * 2]
    shapes += [((2,), dt.int32)] * 2 + [(planes.table.shape, dt.int32)]
    ins = [source(f"x{i}", *x) for i, x in enumerate(shapes)]
    out = f.call("cached_attention", *ins, scale=0.3, window=window, softcap=0.0)
    cut = split_decoding(Graph(tuple(ins), (out,)), lambda node: True)
    names = [n.attrs["name"] for n in toposort(cut.roots()) if n.op == "call"]
    assert names == ["cached_attention_parts", "attention_merge"]
    q = RNG.standard_normal((2, 4, 8)).astype(np.float32)
    places = [np.asarray(x, np.int32) for x in ([1, 0], [1150, 77])]
    arrays = [q, *planes.pages, *places, planes.table]
    whole, parts = (np.asarray(evaluate(g, arrays)[0]) for g in (Graph(tuple(ins), (out,)), cut))
    np.testing.assert_allclose(parts, whole, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "shapes,dtype",
    [
        ([(2, 5, 32, 8), (2, 3)], dt.int32),  # pages of another size
        ([(2, 0, 64, 8), (2, 3)], dt.int32),
        ([(2, 5, 64, 8), (2, 0)], dt.int32),
        ([(2, 5, 64, 8), (2, 3), (2, 3)], dt.int32),
        ([(2, 5, 64, 8), (2, 3, 1)], dt.int32),
    ],
)
def test_what_is_no_table(shapes: list[tuple[int, ...]], dtype: DType) -> None:
    cache, *tables = shapes
    ins = [source("q", (2, 4, 8)), source("kc", cache), source("vc", cache)]
    ins += [source(n, (2,), dt.int32) for n in ("slot", "pos")]
    ins += [source("t", shape, dtype) for shape in tables]
    with pytest.raises(ShapeError, match="table"):
        f.call("cached_attention", *ins, scale=0.3, window=0, softcap=0.0)


def some(few: tuple[str, ...], more: tuple[str, ...]) -> pytest.MarkDecorator:
    slow = [pytest.param(a, marks=pytest.mark.slow) for a in more]
    return pytest.mark.parametrize("arch", [*few, *slow])


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")
@some(("gfx1100",), ("sm_80", "gfx90a", "gfx942"))
def test_as_code(arch: str) -> None:
    """What LLVM makes of it, executed: in matrix units and without."""
    from gpu_emulator import Emulated

    for dtype in (dt.bfloat16, dt.float32):
        planes = Planes(2, 2, 1, 16, dtype, np.random.default_rng(5))
        agree(Emulated(gpu_target(arch)), planes, [1, 0], [70, 127], 2, dtype)
        agree(Emulated(gpu_target(arch)), planes, [0] * 17, list(range(60, 77)), 2, dtype)


@some(("gfx942",), ("sm_90", "sm_80", "sm_120", "gfx90a", "gfx1100"))
def test_resources(arch: str) -> None:
    """At the sizes of models a lookup per block costs no thread a spilled register."""
    if arch.startswith("sm_") and ptxas.find() is None:
        pytest.skip("ptxas was not found")
    target, made = gpu_target(arch), []
    for rows in (1, 64, 512):
        ins = [source("q", (rows, 32, 128), dt.bfloat16)]
        ins += [source(n, (8, 900, PAGE, 128), dt.bfloat16) for n in "kv"]
        ins += [source(n, (rows,), dt.int32) for n in ("slot", "pos")]
        ins += [source("table", (16, 64), dt.int32)]
        out = f.call("cached_attention", *ins, scale=0.1, window=0, softcap=0.0)
        group = Group("cached_attention", tuple(ins), (out,), None, name=f"cached{rows}")
        made.append(registry.get(group.kind)(group, target.caps, {}))
    for name, taken in offline.resources(made, target).items():
        assert taken.spills == 0 and taken.stack <= 528, (name, taken)
