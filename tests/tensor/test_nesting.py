"""Arguments and results that nest: to any depth, of any kind, and with names of their own."""

from __future__ import annotations

import copy
import dataclasses
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.core import trees
from weft.core.errors import DTypeError, GradientError, ShapeError, UsageError
from weft.tensor import Spec, Tensor, trace

DEPTH = 1000
Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Box:
    inner: Any
    label: str = "box"


@dataclasses.dataclass(frozen=True)
class Link:
    value: Any
    rest: Any


@dataclasses.dataclass(eq=False)
class Counter:
    """An object, not a value: it is passed on as it is."""

    count: Tensor


WRAP: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda x: [x], lambda x: x[0]),
    "tuple": (lambda x: (1, x), lambda x: x[1]),
    "dict": (lambda x: {"key": x}, lambda x: x["key"]),
    "namedtuple": (lambda x: Pair(x, 2), lambda x: x.left),
    "dataclass": (Box, lambda x: x.inner),
    "frozen dataclass": (lambda x: Link(None, x), lambda x: x.rest),
}


def nested(wrap: Callable[[Any], Any], x: Any) -> Any:
    for _ in range(DEPTH):
        x = wrap(x)
    return x


@pytest.mark.parametrize("kind", WRAP)
def test_arguments_a_thousand_deep(kind: str) -> None:
    wrap, unwrap = WRAP[kind]

    def fn(x: Any) -> Any:
        for _ in range(DEPTH):
            assert type(x) is type(wrap(None))
            x = unwrap(x)
        return x * 2

    compiled = weft.compile(fn)
    for value in (1.0, 3.0):
        assert compiled(nested(wrap, weft.tensor([value]))).tolist() == [2 * value]
    assert len(compiled.programs()) == 1
    (name,) = [compiled.programs()[0].buffers[i].name for i in compiled.programs()[0].inputs]
    assert len(name) < 200


@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_results_a_thousand_deep(kind: str) -> None:
    wrap, unwrap = WRAP[kind]
    found = weft.compile(lambda x: nested(wrap if kind != "tuple" else lambda y: (y,), x + 1))(
        weft.tensor([1.0])
    )
    for _ in range(DEPTH):
        found = found[0] if kind == "tuple" else unwrap(found)
    assert found.tolist() == [2.0]


def test_a_gradient_with_deep_arguments() -> None:
    def fn(x: Tensor, deep: Any) -> Tensor:
        while isinstance(deep, list):
            (deep,) = deep
        return (x * deep).sum()

    deep = nested(lambda x: [x], weft.tensor([3.0]))
    for run in (weft.value_and_grad(fn), weft.compile(weft.value_and_grad(fn))):
        value, slope = run(weft.tensor([2.0]), deep)
        assert (value.item(), slope.tolist()) == (6.0, [3.0])


def test_what_a_dataclass_holds_comes_back_as_one() -> None:
    fn = weft.compile(lambda b: (Link(b.inner + 1, None), Pair(b.inner, b.inner * 2)))
    link, pair = fn(Box(weft.tensor([1.0]), "a"))
    assert type(link) is Link and link.value.tolist() == [2.0] and link.rest is None
    assert type(pair) is Pair and pair.right.tolist() == [2.0]
    fn(Box(weft.tensor([2.0]), "a"))
    assert len(fn.programs()) == 1
    fn(Box(weft.tensor([2.0]), "b"))
    assert len(fn.programs()) == 2
    with pytest.raises(DTypeError, match="returned str"):
        weft.compile(lambda x: Box(x))(weft.tensor([1.0]))


def test_an_object_is_passed_as_it_is() -> None:
    held = Counter(weft.tensor([0.0]))

    def fn(x: Tensor, counter: Counter) -> Tensor:
        counter.count.assign(counter.count + x)
        return counter.count

    compiled = weft.compile(fn)
    for _ in range(3):
        compiled(weft.tensor([1.0]), held)
    assert held.count.tolist() == [3.0]


@pytest.mark.parametrize("make", [list, dict, Box])
def test_a_cycle_is_refused(make: Any) -> None:
    x = weft.tensor([1.0])
    holder: Any = make(None) if make is Box else make()
    if make is list:
        holder.append([holder])
    elif make is dict:
        holder["me"] = [holder]
    else:
        holder.inner = [holder]
    with pytest.raises(UsageError, match="holds itself"):
        weft.compile(lambda x, y: x)(x, holder)
    with pytest.raises(UsageError, match="returned a cycle"):
        weft.compile(lambda x: holder)(x)


def test_the_same_twice_is_no_cycle() -> None:
    shared = [weft.tensor([1.0])]
    assert weft.compile(lambda a: a[0][0] + a[1][0])([shared, shared]).tolist() == [2.0]


def test_numbers_that_are_equal_but_differ_are_told_apart() -> None:
    fn = weft.compile(lambda x, by: x / by)
    one = weft.tensor([1.0])
    assert [fn(one, z).item() for z in (0.0, -0.0, np.float32(0.0), np.float32(-0.0))] == [
        np.inf, -np.inf, np.inf, -np.inf,
    ]  # fmt: skip
    several = weft.compile(lambda x, keys: x * len(keys))
    assert [several(one, {k: 2.0}).item() for k in (1, True, 1.0)] == [1.0] * 3
    assert len(several.programs()) == 3 or several.sessions()
    for _ in range(3):
        fn(one, float("nan"))
    assert len(fn.programs()) <= 5  # a NaN is the same argument each time


def test_names_that_coincide() -> None:
    x, y = weft.tensor([1.0]), weft.tensor([2.0])
    fn = weft.compile(lambda d: d["a_b"] - d["a"]["b"])
    assert fn({"a_b": x, "a": {"b": y}}).tolist() == [-1.0]


def test_paths_name_every_leaf() -> None:
    x = {"a": [1, "leaf", Box("leaf", "leaf")], 2: (), -0.0: "leaf"}
    leaves, tree = trees.flatten(x, lambda v: v == "leaf", "x")
    assert trees.paths(tree) == ["_a_1", "_a_2_inner", "_a_2_label", "_-0.0"]
    assert trees.unflatten(tree, leaves) == x and trees.values(tree) == [1]
    assert hash(tree.marks) != hash(trees.flatten([], lambda v: False, "x")[1].marks)


def test_deep_arguments_of_numpy() -> None:
    deep = nested(lambda x: [x], weft.tensor([1.0]))
    with pytest.raises(ValueError, match="maximum number of dimension"):
        np.stack(deep)
    assert np.stack([[weft.tensor([1.0])]]).shape == (1, 1, 1)
    with pytest.raises(ShapeError, match="too deep"):
        weft.tensor(nested(lambda x: [x], 1.0))


def test_a_trace_returns_any_depth() -> None:
    graph = trace(lambda x: nested(lambda y: [y, y], x) if x.ndim else None, [Spec(())])
    assert graph.outputs == ()
    graph = trace(lambda x: nested(lambda y: [x, y], x), [Spec((2,))])
    assert len(graph.outputs) == DEPTH + 1


# -- copies ---------------------------------------------------------------------------------------


def test_a_copy_is_a_leaf_of_its_own() -> None:
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    made = copy.deepcopy({"x": x, "again": x})
    assert made["x"] is made["again"] and made["x"].requires_grad
    assert made["x"].grad.tolist() == [2.0, 4.0]
    made["x"].grad = None
    with weft.no_grad():
        made["x"].assign(weft.tensor([0.0, 0.0]))
    assert x.tolist() == [1.0, 2.0] and x.grad is not None


def test_a_state_is_copied_from_its_home() -> None:
    state = weft.tensor([1.0])

    @weft.compile
    def add(x: Tensor) -> Tensor:
        state.assign(state + x)
        return state

    add(weft.tensor([1.0]))
    made = copy.deepcopy(state)
    add(weft.tensor([1.0]))
    assert (made.tolist(), state.tolist()) == ([2.0], [3.0])


def test_a_computed_tensor_is_not_copied_with_its_history() -> None:
    x = weft.tensor([1.0], requires_grad=True)
    y = x
    for _ in range(5000):
        y = y * 1.0
    with pytest.raises(GradientError, match="detach"):
        copy.deepcopy(y)
    assert copy.deepcopy(y.detach()).tolist() == [1.0]
