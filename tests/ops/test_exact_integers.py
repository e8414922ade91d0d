"""Integer primitives against exact Python arithmetic: every pair of 8-bit values, the edges and
random ones of 32 bits, in the oracle, compiled, and interpreted for GPUs of either wave."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from exact import INTEGER, ONE_INTEGER, binary, integers, wrap
from hypothesis import given, settings, strategies as st
from opkit import INTS
from present import opened

import weft
from weft import ops
from weft.backends import registry
from weft.backends.interp import InterpDevice
from weft.conform.primitives import accepted
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DeviceError
from weft.tensor import Tensor

BYTES, WORDS = (dt.int8, dt.uint8), (dt.int32, dt.uint32)
DEVICES = ("cpu", "vulkan", "interp", "interp:cuda", "interp:hip-wave64")
ARITY = {**dict.fromkeys(INTEGER, 2), **dict.fromkeys(ONE_INTEGER, 1)}
N = 128  # pairs to a run of 32-bit values


def edges(dtype: DType) -> list[int]:
    info = np.iinfo(dtype.numpy)
    near = [0, 1, 2, 3, 7, 31, 32, 33, 255, 256, 46341, 65535, 65536, 16777217]
    ends = [info.min, info.min + 1, info.min // 2, info.max // 2 + 1, info.max - 1, info.max]
    found = [*near, *(-v for v in near), *ends]
    return sorted({v for v in found if info.min <= v <= info.max})


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.param)
    if ":" in name:
        registry._open_devices[name] = InterpDevice(name.partition(":")[2])
    try:
        opened(name)
        yield name
    finally:
        if ":" in name:
            registry._open_devices.pop(name, None)


@functools.cache
def compiled(device: str) -> Callable[..., Any]:
    """Every integer primitive of x and y, in the order of ARITY."""

    def all_of_them(x: Any, y: Any) -> list[Any]:
        return [Tensor(ops.bind(n, *(x.value, y.value)[:k])) for n, k in ARITY.items()]

    return weft.compile(all_of_them, device=device)


def truths(x: np.ndarray, y: np.ndarray, dtype: DType) -> dict[str, np.ndarray]:
    one = {n: integers((fn(v) for v in x.tolist()), dtype) for n, fn in ONE_INTEGER.items()}
    return {n: binary(n, x, y, dtype) for n in INTEGER} | one


@functools.cache
def all_pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    values = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    x, y = np.repeat(values, 256), np.tile(values, 256)
    return x, y, truths(x, y, dtype)


def compare(got: dict[str, np.ndarray], want: dict[str, np.ndarray], x: Any, y: Any) -> None:
    for name, w in want.items():
        assert got[name].dtype == w.dtype, name
        at = np.flatnonzero(got[name] != w)
        assert not at.size, (
            f"{name}({x[at[0]]}, {y[at[0]]}) = {got[name][at[0]]}, not {w[at[0]]}; {at.size} wrong"
        )


def on_oracle(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return {n: ops.bind(n, *(x, y)[:k]) for n, k in ARITY.items()}


def on_device(device: str, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    found = compiled(device)(weft.tensor(x), weft.tensor(y))
    return {n: t.numpy() for n, t in zip(ARITY, found)}


def test_every_integer_primitive_is_here() -> None:
    taken = {p.name for p in ops.PRIMITIVES.values() if p.ranges and dt.int32 in accepted(p)}
    assert taken == set(ARITY)


@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_every_pair_of_bytes_in_the_oracle(dtype: DType) -> None:
    x, y, want = all_pairs(dtype)
    compare(on_oracle(x, y), want, x, y)


@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_every_pair_of_bytes_compiled(dtype: DType, device: str) -> None:
    x, y, want = all_pairs(dtype)
    if device.startswith("interp:"):  # one preset sees them all
        x, y, want = x[::31], y[::31], {n: w[::31] for n, w in want.items()}
    compare(on_device(device, x, y), want, x, y)


@pytest.mark.parametrize("dtype", (*WORDS, dt.int64), ids=str)
def test_edges_of_words_in_the_oracle(dtype: DType) -> None:
    x, y = np.array(list(itertools.product(edges(dtype), repeat=2)), dtype.numpy).T
    compare(on_oracle(x, y), truths(x, y, dtype), x, y)


@pytest.mark.parametrize("dtype", WORDS, ids=str)
def test_edges_of_words_compiled(dtype: DType, device: str) -> None:
    x, y = np.array(list(itertools.product(edges(dtype), repeat=2)), dtype.numpy).T.copy()
    compare(on_device(device, x, y), truths(x, y, dtype), x, y)


def words(dtype: DType) -> st.SearchStrategy[int]:
    info = np.iinfo(dtype.numpy)
    some = st.sampled_from(edges(dtype))
    return st.integers(info.min, info.max) | st.integers(max(info.min, -40), 40) | some


@pytest.mark.parametrize("dtype", WORDS, ids=str)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_words_everywhere(dtype: DType, data: st.DataObject) -> None:
    pairs = st.lists(st.tuples(words(dtype), words(dtype)), min_size=N, max_size=N)
    x, y = np.array(data.draw(pairs), dtype.numpy).T.copy()
    want = truths(x, y, dtype)
    compare(on_oracle(x, y), want, x, y)
    for name in ("cpu", "vulkan", "interp"):
        try:
            registry.get(name)
        except DeviceError:
            continue
        compare(on_device(name, x, y), want, x, y)


# -- casts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", INTS, ids=str)
@pytest.mark.parametrize("where", ("oracle", *DEVICES[:3]))
def test_casts_between_integers_wrap(source: DType, where: str) -> None:
    x = np.array(sorted({wrap(v, source) for d in INTS for v in edges(d)}), source.numpy)
    if source in BYTES:
        x = np.arange(256, dtype=np.uint8).view(source.numpy)
    goals = [d for d in INTS if d != source]
    cast = lambda t: [t.cast(d) for d in goals] + [t.cast(dt.bool_)]  # noqa: E731
    if where == "oracle":
        found = cast(weft.tensor(x))
    else:
        found = weft.compile(cast, device=opened(where))(weft.tensor(x))
    for goal, got in zip(goals, found):
        np.testing.assert_array_equal(got.numpy(), integers(x.tolist(), goal), str(goal))
    np.testing.assert_array_equal(found[-1].numpy(), x != 0)


# -- what Tensor makes of them --------------------------------------------------------------------

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "pow": lambda x, y: x**y,
    "shift_left": lambda x, y: x << y,
    "shift_right": lambda x, y: x >> y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", (*INTS, dt.int64), ids=str)
def test_operators_with_numbers_on_either_side(name: str, dtype: DType) -> None:
    values = [v for v in edges(dtype) if name != "pow" or v >= 0 or dtype.kind == "int"]
    x, fn = np.array(values, dtype.numpy), OPERATORS[name]
    for number in [v for v in edges(dtype) if abs(v) < 100]:
        like = np.full(x.shape, number, dtype.numpy)
        for got, want in (
            (fn(weft.tensor(x), number), binary(name, x, like, dtype)),
            (fn(number, weft.tensor(x)), binary(name, like, x, dtype)),
        ):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got.numpy(), want, f"{name} with {number}")


@pytest.mark.parametrize("dtype", (*INTS, dt.int64), ids=str)
def test_methods_of_integers(dtype: DType) -> None:
    x = np.array(edges(dtype), dtype.numpy)
    t, values = weft.tensor(x), x.tolist()
    exact: dict[str, tuple[Any, list[int]]] = {
        "neg": (-t, [-v for v in values]),
        "abs": (abs(t), [abs(v) for v in values]),
        "invert": (~t, [~v for v in values]),
        "sign": (t.sign(), [(v > 0) - (v < 0) for v in values]),
        "square": (t.square(), [v * v for v in values]),
        "clip": (t.clip(3, 100), [min(max(v, 3), 100) for v in values]),
        "ceil": (t.ceil(), values),
        "trunc": (weft.trunc(t), values),
    }
    for name, (got, want) in exact.items():
        np.testing.assert_array_equal(got.numpy(), integers(want, dtype), name)


def test_bools_divide_as_int32() -> None:
    x = weft.tensor([True, True, False, False])
    y = weft.tensor([True, False, True, False])
    for got, want in ((x // y, [1, 0, 0, 0]), (x % y, [0, 0, 0, 0]), (x // True, [1, 1, 0, 0])):
        assert got.dtype == dt.int32 and got.numpy().tolist() == want
