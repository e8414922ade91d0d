"""The scan template on every kind of target: any axis and length, and one order of joining."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from harness import TARGETS, TIERS, check, group_of, play, random, some_tiers, targets, trace
from hypothesis import given, settings, strategies as st
from product_kit import device
from rows import by_turns, few

import weft
from weft import ops
from weft.backends.interp import InterpDevice
from weft.compile.passes import compile_graph
from weft.conform.harness import check_close
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.graph.ir import Graph
from weft.ops.evaluate import evaluate
from weft.program.session import Session
from weft.templates.scan.products import ProductScan
from weft.transform import scan as lengths

F32 = dt.float32
NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _check(op: str, x: np.ndarray, axis: int, **more: Any) -> None:
    for exclusive in (False, True):
        for reverse in (False, True):
            fn = lambda x: ops.scan(x, op, axis, exclusive, reverse)  # noqa: B023, E731
            check(fn, [x], "scan", "call", tolerance="reduce", **more)


@some_tiers
@pytest.mark.parametrize(
    "shape,axis,op",
    by_turns(
        [((3, 5), 1), ((3, 5), 0), ((2, 17, 3), 1), ((70,), 0), ((3, 1), 1), ((2, 7, 20), 1)],
        NUMPY,
        2,
    ),
)
def test_every_target(op: str, shape: tuple[int, ...], axis: int, tiers: tuple[str, ...]) -> None:
    _check(op, random(F32, shape, scale=1.0), axis, tiers=tiers)


@pytest.mark.parametrize("dtype", [d for d in dt.DEVICE if d.kind != "bool"], ids=repr)
def test_dtypes(dtype: dt.DType) -> None:
    for op, tier in zip(NUMPY, ("webgpu", "cpu") * 2, strict=True):
        _check(op, random(dtype, (2, 37), scale=1.0), 1, tiers=(tier,))


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences(reverse: bool) -> None:
    for shape, axis in (((3, 40), 1), ((9, 5), 0)):
        x, a = random(F32, shape), random(F32, shape, 1, scale=0.7)
        a[:, 2] = 0
        fn = lambda x, a: ops.scan(x, "linear", axis, False, reverse, a)  # noqa: B023, E731
        check(fn, [x, a], "scan", "call", tolerance="reduce")


def test_what_comes_before_and_after_is_fused() -> None:
    x = random(F32, (3, 50))
    fn = lambda x: ops.mul(ops.scan(ops.exp(ops.neg(ops.abs_(x))), "sum", 1), 2.0)  # noqa: E731
    check(fn, [x], "scan", "call", tolerance="reduce")
    graph = trace(lambda x: ops.cast(fn(x), dt.bfloat16), [x])
    assert len(compile_graph(graph, PRESETS["cuda"]).steps) == 1


def _run(graph: Graph, caps: Any, arrays: list[np.ndarray]) -> np.ndarray:
    """The graph's output, by the passes and the interpreter."""
    program = compile_graph(graph, caps)
    return np.asarray(Session(program, InterpDevice(caps)).run(arrays)[0])


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(lengths, "BLOCK", 64)
    monkeypatch.setattr(lengths, "SERIAL", 16)
    return monkeypatch


@pytest.mark.parametrize(
    "target,shape,axis",
    by_turns(targets(*TARGETS), [((150,), 0), ((2, 37, 5), 1), ((2, 128), 1)]),
)
def test_blocks(short_blocks: Any, target: str, shape: tuple[int, ...], axis: int) -> None:
    """Rows walked by one worker and rows shared out have the same bits, and the oracle's values."""
    for op in (*NUMPY, "linear"):
        xs = [np.abs(random(F32, shape, scale=0.2)) + 0.9]
        xs += [random(F32, shape, 1, scale=0.5)] if op == "linear" else []
        for way in ((False, False), (op != "linear", True)):
            graph = trace(lambda *xs: ops.scan(xs[0], op, axis, *way, *xs[1:]), xs)  # noqa: B023
            found = []
            cores = (1, 2) if target.startswith("cpu") else (1,)  # two: the last blocks are one's
            for busy, count in ((True, 1), *((False, n) for n in cores)):
                caps = dataclasses.replace(PRESETS[target], cores=count)
                short_blocks.setattr(lengths, "busy", lambda *_, busy=busy: busy)
                program = compile_graph(graph, caps)
                assert len(program.steps) == (1 if busy else 3)
                found.append(_run(graph, caps, xs))
                assert np.array_equal(found[-1], found[0]), f"{op} {way} {count}"
            check_close(found[0], evaluate(graph, xs)[0], "reduce", F32)


@pytest.mark.parametrize("target", ["cpu-avx512", "webgpu", "cuda", "lavapipe"])
def test_long_products(short_blocks: Any, target: str) -> None:
    """Totals of blocks, then their product; the parts would overflow."""
    x = np.full((2, 300), 1e30, np.float32)
    x[0, 150:] = 1e-30
    x[1, 299] = 0
    graph = trace(lambda x: ops.prod(x, 1), [x])
    short_blocks.setattr(lengths, "busy", lambda *_: False)
    assert len(compile_graph(graph, PRESETS[target]).steps) == 2
    got = _run(graph, PRESETS[target], [x])
    assert abs(got[0] - 1) < 1e-4 and got[1] == 0
    whole = trace(lambda x: ops.prod(x, (0, 1)), [x[:, :299]])
    assert _run(whole, PRESETS[target], [np.ascontiguousarray(x[:, :299])]) == np.inf


@pytest.mark.parametrize("target", targets(*TARGETS))
def test_a_row_does_not_see_the_others(target: str) -> None:
    caps = PRESETS[target]
    x = random(F32, (5, 300, 3))
    for axis, at in ((1, np.s_[2:3]), (1, np.s_[:, :, 1:2]), (2, np.s_[3:4, 5:6])):
        some = np.ascontiguousarray(x[at])
        whole, alone = (
            _run(trace(lambda x: ops.scan(x, "sum", axis), [v]), caps, [v])  # noqa: B023
            for v in (x, some)
        )
        assert np.array_equal(whole[at], alone)


def test_row_bound() -> None:
    x = random(F32, (9, 40, 3))
    for axis in (1, 2):
        graph = trace(lambda x: ops.scan(x, "sum", axis), [x])  # noqa: B023
        group = group_of(graph, "scan", "call", rows="n", slots={"n": 0})
        for tier in TIERS:
            for n in (0, 1, 8):
                got = play(tier, group, [x], n)[0]
                assert np.allclose(got[:n], np.cumsum(x, axis)[:n], atol=1e-4)


def test_zeros_keep_their_sign() -> None:
    x = np.array([-0.0, -0.0, 0.0, -0.0], np.float32)
    group = group_of(trace(lambda x: ops.scan(x, "sum", 0), [x]), "scan", "call")
    for tier in TIERS:
        assert np.signbit(play(tier, group, [x])[0]).tolist() == [True, True, False, False], tier


FLOATS = st.floats(width=32, allow_nan=False, allow_subnormal=False)


@given(st.lists(FLOATS, min_size=1, max_size=40), st.sampled_from(["max", "min", "prod"]))
@settings(max_examples=60, deadline=None)
def test_any_floats(numbers: list[float], op: str) -> None:
    """Extremes exactly; products as exactly computed ones, however large their parts."""
    x = np.array(numbers, np.float32)
    group = group_of(trace(lambda x: ops.scan(x, op, 0), [x]), "scan", "call")
    with np.errstate(all="ignore"):
        want = NUMPY[op].accumulate(x)
    for tier in ("cpu-avx2", "webgpu", "lavapipe"):
        got = play(tier, group, [x])[0]
        if op != "prod":
            assert np.array_equal(got, want)
            continue
        for k in range(len(x)):
            _check_product(float(got[k]), x[: k + 1])


def _check_product(got: float, factors: np.ndarray) -> None:
    mantissas, exponents = np.frexp(factors.astype(np.float64))
    with np.errstate(all="ignore"):
        exact = float(np.prod(mantissas))
        want = float(np.float32(np.ldexp(exact, int(np.clip(exponents.sum(), -2000, 2000)))))
    if np.isnan(want) or np.isinf(factors).any():
        assert np.isnan(got) == np.isnan(want) and (np.isnan(want) or got == want)
    elif abs(want) > 3e38 or abs(want) < 2e-38:
        assert abs(got) > 3e38 if abs(want) > 1 else abs(got) < 2e-38
    else:
        assert abs(got - want) <= 1e-5 * abs(want)


def _factors() -> dict[str, np.ndarray]:
    """Rows of factors: mild ones, and some that leave the range a short cut is good for."""
    rng = np.random.default_rng(3)
    mild = np.exp(rng.normal(0, 0.1, 400)) * rng.choice([-1, 1], 400)
    found = {"mild": mild, "wide": np.exp2(rng.uniform(-30, 30, 400)), "shrinking": mild / 2}
    found |= {"growing": mild * 2, "normal": rng.normal(size=400)}
    # Products within a tile vanish in part, though none from its beginning on does.
    found["dips"] = mild * np.exp2(np.resize([35, 35, *[-35] * 4, 35, 0, 35, *[0] * 7], 400))
    for name, value in (("zero", 0.0), ("inf", np.inf), ("nan", np.nan), ("subnormal", 1e-41)):
        found[name] = mild.copy()
        found[name][200] = value
    return {name: x.astype(np.float32) for name, x in found.items()}


@pytest.mark.parametrize("target", few(["cpu-avx512", "cpu-avx2", "cpu"], "cpu-avx512", "cpu"))
def test_products_have_the_same_bits_the_short_way(short_blocks: Any, target: str) -> None:
    """Several tiles at once, where it is allowed, give what one by one gives."""
    x = np.stack(list(_factors().values()))
    ways = [(False, False), (True, True)]
    for busy, way in itertools.product((False, True), ways if target != "cpu-avx2" else ways[:1]):
        short_blocks.setattr(lengths, "BLOCK", 128 if busy else 192)
        short_blocks.setattr(lengths, "busy", lambda *_, busy=busy: busy)
        graph = trace(lambda x: ops.scan(x, "prod", 1, *way), [x])  # noqa: B023
        at = device(target)
        found = []
        for more in ({}, {"abreast": False}):
            with pytest.MonkeyPatch.context() as patch:
                for name, value in more.items():
                    patch.setattr(ProductScan, name, value)
                program = compile_graph(graph, at.caps)
            found.append(np.asarray(Session(program, at).run([x])[0]))
        np.testing.assert_array_equal(*(y.view(np.uint32) for y in found))
        with np.errstate(all="ignore"):
            want = evaluate(graph, [x])[0]
        large = np.isfinite(want) & (np.abs(want) > 1e-36)
        np.testing.assert_allclose(found[0][large], want[large], rtol=2e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_an_infinity_after_what_vanished(target: str) -> None:
    x = np.float32([1e-38, 1e-38, 1e-38, np.inf, 2.0, -np.inf])
    got = _run(trace(lambda x: ops.scan(x, "prod", 0), [x]), PRESETS[target], [x])
    assert got[3:].tolist() == [np.inf, np.inf, -np.inf]


def test_vulkan() -> None:
    device("vulkan")  # or there is none
    for shape, axis in (((1,), 0), ((2, 3), 1), ((3, 70), 1), ((40, 3), 0)):
        _check("sum", random(F32, shape), axis, tiers=("vulkan",))
        x = weft.tensor(random(F32, shape, scale=0.5))
        got = weft.compile(lambda x: x.cumprod(axis), device="vulkan")(x)  # noqa: B023
        check_close(got.numpy(), x.cumprod(axis).numpy(), "reduce", F32)
