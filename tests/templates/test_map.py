"""map groups on every kind of target, against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import TARGETS, TIERS, check, group_of, play, random, some_tiers, trace
from hypothesis import given, settings, strategies as st

from weft import ops
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel import printer
from weft.ops.evaluate import evaluate
from weft.templates.map import build_map

F32, F16, BF16 = dt.float32, dt.float16, dt.bfloat16
x733, y733 = random(F32, (7, 33)), random(F32, (7, 33), 1)
IDS = np.array([[0, 6, -3], [9, 2, 1]], np.int32)

each_tiers = pytest.mark.parametrize(
    "tiers", [*some_tiers.args[1], pytest.param(("vulkan",), id="vulkan")]
)
CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "add": (ops.add, [x733, y733]),
    "vec4": (lambda x: ops.exp(ops.neg(x)), [random(F32, (6, 8))]),
    "one": (ops.neg, [random(F32, (1, 1))]),
    "scalar": (ops.exp, [random(F32, ())]),
    "row": (lambda x, y: ops.add(x, ops.broadcast(y, (7, 33))), [x733, random(F32, (33,))]),
    "column": (lambda x, y: ops.add(x, ops.broadcast(y, (7, 33))), [x733, random(F32, (7, 1))]),
    "transpose": (lambda x: ops.transpose(x, (1, 0, 2)), [random(F32, (5, 7, 9))]),
    "transpose inner": (lambda x: ops.neg(ops.transpose(x, (2, 0, 1))), [random(F32, (3, 5, 20))]),
    "reverse": (lambda x: ops.slice_(x, (6, 32), (-1, -1), (-1, -1)), [x733]),
    "stride": (lambda x: ops.slice_(x, (1, 32), (7, -1), (2, -2)), [x733]),
    "reshape": (lambda x: ops.reshape(ops.transpose(x, (1, 0)), (3, 77)), [x733]),
    "pad": (lambda x: ops.pad(x, (1, 2), (0, 3), 1.5), [x733]),
    "pad reshaped": (
        lambda x: ops.exp(ops.pad(ops.reshape(x, (21, 11)), (0, 2), (4, 3), -1.0)),
        [x733],
    ),
    "pad empty": (lambda x: ops.pad(x, (1, 2), (0, 3), 2.0), [random(F32, (0, 4))]),
    "only padding": (
        lambda x: ops.slice_(ops.pad(x, (1, 0), (0, 2), 4.0), (0, 1), (1, 5)),
        [random(F32, (1, 4))],
    ),
    "concat inner": (lambda x, y: ops.concat([x, y, x], 1), [x733, random(F32, (7, 3))]),
    "concat outer": (lambda x, y: ops.concat([x, ops.neg(y)], 0), [x733, random(F32, (2, 33))]),
    "concat of pads": (
        lambda x, y: ops.concat([ops.pad(x, (0, 1), (0, 2)), y], 1),
        [x733, random(F32, (7, 5))],
    ),
    "concat of many": (
        lambda x, y: ops.concat([ops.slice_(x, (i % 7, 0), (7, 33)) for i in range(9)] + [y], 0),
        [x733, random(F32, (1, 33))],
    ),
    "concat of many long": (
        lambda x: ops.concat([ops.mul(x, float(i)) for i in range(10)], 1),
        [random(F32, (1, 1101, 3))],
    ),
    "concat of many reshaped": (
        lambda x: ops.reshape(ops.concat([ops.add(x, float(i)) for i in range(12)], 0), (4, 231)),
        [random(F32, (7, 11))],
    ),
    "concat of many inner": (lambda x: ops.concat([x] * 10, 1), [x733]),
    "gather rows": (lambda x, i: ops.gather(x, i, 0), [x733, IDS]),
    "gather columns": (lambda x, i: ops.gather(x, i, 1), [x733, IDS]),
    "gather fused": (
        lambda x, i, y: ops.mul(ops.gather(ops.neg(x), i, 0), ops.exp(y)),
        [x733, IDS[0], random(F32, (3, 33))],
    ),
    "gather of pad": (lambda x, i: ops.gather(ops.pad(x, (2, 0), (2, 0)), i, 0), [x733, IDS]),
    "iota": (lambda x: ops.add(x, ops.iota((7, 33), 1, F32)), [x733]),
    "compare": (lambda x, y: ops.where(ops.less(x, y), x, 0.5), [x733, y733]),
    "two outputs": (
        lambda x, y: (ops.less(x, y), ops.reshape(ops.add(x, y), (33, 7))),
        [x733, y733],
    ),
}


@each_tiers
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, tiers: tuple[str, ...]) -> None:
    check(*CASES[name], tiers=tiers)


@each_tiers
@pytest.mark.parametrize("dtype", dt.DEVICE, ids=repr)
def test_dtypes(dtype: dt.DType, tiers: tuple[str, ...]) -> None:
    op = ops.bitwise_xor if dtype.kind == "bool" else ops.add
    for shape in ((1,), (5,), (3, 8), (2, 37)):
        check(op, [random(dtype, shape), random(dtype, shape, 1)], tiers=tiers)


@pytest.mark.parametrize("target", dt.DEVICE, ids=repr)
def test_casts(target: dt.DType) -> None:
    for source in (F32, F16, BF16, dt.int32, dt.uint8, dt.bool_):
        check(
            lambda x: ops.cast(x, target), [random(source, (3, 21))], tiers=(*TARGETS[::3], "cpu")
        )


def test_narrow_chains_round_once_and_at_casts() -> None:
    """A fused f16 chain keeps f32 inside; an explicit cast in it rounds."""
    x = (np.arange(64) / 7).astype(np.float16)
    third = np.full(64, 1 / 3, np.float16)

    def chain(a: Any, b: Any) -> Any:
        return ops.mul(ops.mul(a, b), b)

    def rounded(a: Any) -> Any:
        return ops.mul(ops.cast(ops.cast(a, F16), F32), 3.0)

    got = play("cpu", group_of(trace(chain, [x, third]), "map", None), [x, third])[0]
    wide = x.astype(np.float32) * third.astype(np.float32) * third.astype(np.float32)
    assert (got == wide.astype(np.float16)).all()
    y = random(F32, (64,))
    check(rounded, [y], tolerance="exact")


@pytest.mark.parametrize("n", [8192, 16384, 20000, 33333])
def test_several_groups(n: int) -> None:
    x = random(F32, (n,))
    check(lambda x: ops.mul(x, 2.0), [x], tiers=("cpu-avx512", "webgpu", "cpu"))
    check(
        lambda x: ops.add(x, ops.broadcast(ops.slice_(x, (0, 0), (3, 1)), (3, n))),
        [np.stack([x, x + 1, x + 2])],
        tiers=("cpu",),
    )


@pytest.mark.parametrize("shape", [(16, 16), (37, 53), (64, 32), (40, 16), (16, 41)], ids=repr)
def test_turned_tiles(shape: tuple[int, int]) -> None:
    """Transposes on a CPU go through register tiles."""
    x, y = random(F32, shape), random(F32, shape[:1])
    cpus = (*TARGETS[:3], "cpu")

    def scaled(x: Any, y: Any) -> Any:
        turned = ops.transpose(x, (1, 0))
        return ops.mul(turned, ops.broadcast(y, shape[::-1])), ops.less(turned, 0.0)

    check(scaled, [x, y], tiers=cpus)
    stack = random(dt.bfloat16, (2, *shape, 2))
    check(lambda x: ops.transpose(x, (3, 2, 0, 1)), [stack], tiers=cpus)
    check(lambda x: ops.transpose(x, (0, 2, 3, 1)), [stack], tiers=cpus)


@pytest.mark.parametrize("width", [8, 9, 20])
@pytest.mark.parametrize("phases", [2, 3])
def test_turned_tiles_of_interleaved_values(width: int, phases: int) -> None:
    """Channels-last values that take turns, put channels first: which one a tile's column comes
    from is known where the tile begins at a whole turn."""
    given = [random(F32, (2, 3, width, 20), i) for i in range(phases)]

    def woven(*values: Any) -> Any:
        lines = [ops.reshape(x, (2, 3, width, 1, 20)) for x in values]
        whole = ops.reshape(ops.concat(lines, 3), (2, 3, width * phases, 20))
        return ops.transpose(whole, (0, 3, 1, 2))

    check(woven, given, tiers=(*TARGETS[:3], "cpu"))
    caps = PRESETS["cpu-avx512"]
    text = printer.text(build_map(group_of(trace(woven, given), "map", None), caps, {}))
    assert "shuffle" in text


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("shape", [(16,), (3, 37), (200,), (2, 3, 65), (5,)], ids=repr)
def test_woven_tiles(n: int, shape: tuple[int, ...]) -> None:
    """Few channels made the last axis are woven into one run of memory."""
    *lead, depth = shape
    x = random(F32, (*lead, n - 1, depth))  # one less, and zeros in its place
    order = (*range(len(lead)), len(lead) + 1, len(lead))

    def several(x: Any) -> Any:
        none = (0,) * len(lead)
        wide = ops.pad(x, (*none, 0, 0), (*none, 1, 0))
        turned = ops.transpose(wide, order)
        return ops.mul(turned, 3.0), ops.less(turned, 0.0), ops.cast(turned, dt.int8)

    check(several, [x], tiers=(*TARGETS[:3], "cpu"))
    check(lambda x: ops.transpose(x, order), [random(dt.bfloat16, (*lead, n, depth))],
          tiers=("cpu",))  # fmt: skip


@pytest.mark.parametrize("sizes", [(64, 64, 128), (100, 70, 65), (64, 3, 64)], ids=repr)
@pytest.mark.parametrize("lead", [(), (5,), (3, 2)], ids=repr)
def test_wide_pieces_have_loops_of_their_own(lead: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    """On a CPU no element of a wide piece chooses; pieces of a few elements stay as they were."""
    given = [random(F32, (*lead, n)) for n in sizes]

    def joined(x: Any, y: Any, z: Any) -> Any:
        axis, none = len(lead), (0,) * len(lead)
        piece = ops.pad(ops.exp(z), (*none, 80), (*none, 64), 1.0)
        return ops.concat([ops.exp(x), ops.neg(y), piece], axis)

    check(joined, given, tiers=(*TARGETS[:3], "cpu"))
    group = group_of(trace(joined, given), "map", None)
    text = printer.text(build_map(group, PRESETS["cpu-avx512"], {}))
    assert ("inside" in text) == (sizes != (64, 64, 128))


def test_large_outputs_bypass_the_cache() -> None:
    check(lambda x: ops.mul(x, 0.5), [random(F32, (1500, 1501))], tiers=("cpu",))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("shape", [(12,), (12, 5), (12, 3, 8)], ids=repr)
def test_row_bound(tier: str, shape: tuple[int, ...]) -> None:
    """Only the wanted rows are written at run time (a few beyond may be)."""
    x = random(F32, shape)
    graph = trace(ops.neg, [x])
    group = group_of(graph, "map", None, rows="n", rows_scale=2, slots={"n": 0})
    for n in (0, 1, 5, 6, 9):
        got = play(tier, group, [x], n)[0]
        rows = min(2 * n, 12)
        assert (got[:rows] == -x[:rows]).all()


def test_in_place() -> None:
    x, y = random(F32, (5, 37)), random(F32, (5, 37), 1)
    group = group_of(trace(ops.add, [x, y]), "map", None, in_place={0: 0})
    for tier in TIERS:
        assert np.array_equal(play(tier, group, [x, y])[0], x + y), tier


NAMES = ("flip", "swap", "cut", "pad", "split", "join", "add")
MOVES = st.lists(st.sampled_from(NAMES), max_size=6)


def _move(name: str, x: Any) -> Any:
    shape = x.shape
    last, rank = shape[-1], len(shape)
    if name == "flip":
        return ops.slice_(x, [d - 1 for d in shape], [-1] * rank, [-1] * rank)
    if name == "swap":
        return ops.transpose(x, (*range(1, len(shape)), 0))
    if name == "cut" and last > 2:
        return ops.slice_(x, [0] * rank, [*shape[:-1], last - 1], [1] * (rank - 1) + [2])
    if name == "pad" and x.size < 200:
        return ops.pad(x, [1] * rank, [0] * (rank - 1) + [2], 3.0)
    if name == "split" and last % 2 == 0:
        return ops.reshape(x, (*shape[:-1], 2, last // 2))
    if name == "join" and rank > 1:
        return ops.reshape(x, (*shape[:-2], shape[-2] * last))
    return ops.add(x, ops.iota(shape, 0, F32))


@settings(max_examples=40, deadline=None)
@given(MOVES, st.sampled_from([(6, 8), (5,), (2, 3, 4), (1, 16)]))
def test_random_movement(moves: list[str], shape: tuple[int, ...]) -> None:
    def fn(x: Any) -> Any:
        for m in moves:
            x = _move(m, x)
        return ops.neg(x)

    x = random(F32, shape)
    graph = trace(fn, [x])
    group = group_of(graph, "map", None)
    want = evaluate(graph, [x])[0]
    for tier in ("cpu-avx512", "cpu-neon", "cuda"):
        assert np.array_equal(play(tier, group, [x])[0], want), tier
