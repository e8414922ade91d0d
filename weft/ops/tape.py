"""The tape: values that remember their origin, and the backward walk that differentiates them.

A Tracked value wraps an array, a device array or a graph Node. An op with a Tracked operand runs on
the wrapped values, and its result is Tracked too; so one tape serves eager execution, devices and
traced functions alike. Reverse accumulation: Griewank & Walther 2008, ch. 3.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import GradientError
from weft.graph.ir import Shape
from weft.ops import functions as f
from weft.ops.composite import COMPOSITES
from weft.ops.primitive import PRIMITIVES, aval, bind, register_listener

Value = Any  # np.ndarray, DeviceArray, Node or Tracked
# (gradient of the result, operands to use) -> per operand: None, a value, or a thunk making one
Pullback = Callable[[Value, tuple[Value, ...]], Sequence[Any]]


class Tracked:
    """A value and how it came about. `inputs` are its operands (Tracked where a gradient flows);
    a leaf has none. `owner` is what a leaf's gradient belongs to (a Tensor)."""

    __slots__ = ("__weakref__", "inputs", "owner", "pull", "value")

    def __init__(
        self,
        value: Value,
        inputs: tuple[Value, ...] = (),
        pull: Pullback | None = None,
        owner: Any = None,
    ):
        self.value, self.inputs, self.pull, self.owner = value, inputs, pull, owner

    @property
    def shape(self) -> Shape:
        return aval(self.value).shape

    @property
    def dtype(self) -> DType:
        return aval(self.value).dtype

    def __repr__(self) -> str:
        return f"Tracked({self.dtype.name}{list(self.shape)})"


class _Recording(threading.local):
    on = True


_RECORDING = _Recording()


def recording() -> bool:
    """True if this thread records ops for differentiation."""
    return _RECORDING.on


@contextmanager
def record(on: bool) -> Iterator[None]:
    """Turns recording on or off inside the block."""
    before = _RECORDING.on
    _RECORDING.on = on
    try:
        yield
    finally:
        _RECORDING.on = before


def plain(value: Value) -> Value:
    """Returns the value inside a Tracked; returns any other value unchanged."""
    return value.value if isinstance(value, Tracked) else value


class TapeListener:
    """The listener that runs an op on the wrapped values of its operands and records it."""

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        out = bind(op, *map(plain, inputs), **attrs)
        what = str(attrs["name"]) if op == "call" else op
        if isinstance(out, tuple):  # each output is differentiated by itself
            rules = [_rule_of(attrs, i) for i in range(len(out))]
            return tuple(remember(what, y, inputs, rule) for y, rule in zip(out, rules))
        return remember(what, out, inputs, lambda g, y, xs: vjp(op, g, y, xs, attrs))


# (gradient of the result, the result, operands to use) -> as a Pullback
Rule = Callable[[Value, Value, tuple[Value, ...]], Sequence[Any]]


def remember(what: str, out: Value, inputs: tuple[Value, ...], rule: Rule) -> Value:
    """Returns `out`, the result of op `what` on `inputs`, with its derivative by `rule`. Returns it
    plain if recording is off or no gradient could flow."""
    if not _RECORDING.on or not aval(out).dtype.is_float:
        return out
    if not any(isinstance(x, Tracked) for x in inputs):
        return out
    held = [(x, x.version) for x in map(plain, inputs) if hasattr(x, "version")]
    made = Tracked(out, inputs)
    me = ref(made)  # a weak reference: a cycle would keep the tape's memory until collected

    def pull(grad: Value, operands: tuple[Value, ...]) -> Sequence[Any]:
        for x, version in held:
            if x.version != version:
                raise GradientError(changed(what, x))
        again = any(isinstance(x, Tracked) for x in operands)
        return rule(grad, me() if again else out, operands)

    made.pull = pull
    return made


def changed(what: str, operand: object) -> str:
    """Returns the message for an operand whose content changed since the forward pass."""
    return (
        f"backward through {what}: its operand {operand} was written after the forward pass (by a "
        "compiled function, or assigned to); call backward before, or compute forward again"
    )


register_listener(Tracked, TapeListener(), rank=10)


class PartGradients(dict[int, Any]):
    """The gradients of parts of one value, or what they are made of, by their numbers."""


def apart(x: Value) -> list[Value]:
    """Returns the slices of x along axis 0. Their gradients are joined once; those of `slice` would
    each be padded to x's size and added, which takes time quadratic in their number."""
    n = aval(x).shape[0]
    hub = remember("apart", plain(x), (x,), lambda g, out, xs: (_joined(g, n),))

    def one(i: int) -> Value:
        def rule(g: Value, out: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
            return (PartGradients({i: g}),)

        return remember("apart", _row(plain(x), i), (hub,), rule)

    return [one(i) for i in range(n)]


def together(rows: Sequence[Value]) -> Value:
    """Returns values below one another on a new axis 0; the reverse of apart."""

    def rule(g: Value, out: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
        return [lambda i=i: _row(g, i) for i in range(len(xs))]

    out = f.concat([f.reshape(r, (1, *aval(r).shape)) for r in map(plain, rows)], 0)
    return remember("together", out, tuple(rows), rule)


def products(weight: Value) -> Callable[[Value], Value]:
    """Returns the function h[N, K] -> h weight^T [N, M] for a weight [M, K] of many steps. The
    weight's gradient is one product over the rows of all steps; that of `dot` would be a product
    and a sum of the weight's size for each step."""

    def whole(pieces: Any, out: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
        slopes, rows = (
            f.reshape(_below(each), (-1, aval(each[0]).shape[-1]))
            for each in zip(*(pieces[i] for i in sorted(pieces)))
        )
        return (f.dot(f.swap_last(slopes), rows, aval(rows).dtype),)

    hub = remember("products", plain(weight), (weight,), whole)
    count = itertools.count()

    def times(h: Value) -> Value:
        number, dtype = next(count), aval(h).dtype

        def rule(g: Value, out: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
            again = any(isinstance(x, Tracked) for x in xs)
            w = weight if again else plain(weight)
            return (lambda: f.dot(g, w, dtype)), PartGradients({number: (g, xs[0])})

        out = f.dot(plain(h), f.swap_last(plain(weight)), dtype)
        return remember("products", out, (h, hub), rule)

    return times


def _row(x: Value, i: int) -> Value:
    """Returns slice i of axis 0 by a gather: its place is data, so one kernel serves all slices."""
    return f.reshape(f.gather(x, np.array([i], np.int32)), tuple(aval(x).shape[1:]))


def _joined(pieces: PartGradients, n: int) -> Value:
    """Returns n pieces below one another, zeros where there is none."""
    like = next(iter(pieces.values()))
    none = f.cast(f.less(like, like), aval(like).dtype)
    return _below([pieces.get(i, none) for i in range(n)])


def _below(rows: Sequence[Value]) -> Value:
    """Returns values below one another on a new axis 0, each copied to its place: a map would
    choose among all of them at each element."""
    return f.concat([f.call("barrier", f.reshape(r, (1, *aval(r).shape))) for r in rows], 0)


def vjp(
    op: str, grad: Value, out: Value, inputs: tuple[Value, ...], attrs: Mapping[str, Any]
) -> Sequence[Any]:
    """Returns the gradients of a primitive's operands, given that of its result.

    Each is None, a value or a thunk. A composite without its own rule is differentiated through its
    body. Raises GradientError for an op without a derivative.
    """
    if op == "call":
        composite = COMPOSITES[attrs["name"]]
        if composite.vjp is not None:
            return tuple(composite.vjp(grad, out, *inputs, **attrs["params"]))
        return _through_body(grad, inputs, attrs)
    rule = PRIMITIVES[op].vjp
    if rule is None:
        raise GradientError(f"{op} is not differentiable; detach() its operands")
    return tuple(rule(grad, out, *inputs, **attrs))


def _through_body(
    grad: Value, inputs: tuple[Value, ...], attrs: Mapping[str, Any]
) -> Sequence[Any]:
    body = COMPOSITES[attrs["name"]].body
    return pull_through(lambda *xs: body(*xs, **attrs["params"]), grad, inputs)


def _rule_of(attrs: Mapping[str, Any], index: int) -> Rule:
    """The derivative of one output of a composite that has several: through the body."""
    body = COMPOSITES[attrs["name"]].body
    return lambda grad, _, inputs: pull_through(
        lambda *xs: body(*xs, **attrs["params"])[index], grad, inputs
    )


def pull_through(fn: Callable[..., Value], grad: Value, inputs: tuple[Value, ...]) -> list[Any]:
    """The gradients of fn's float operands, by running fn(*inputs) again on the tape. `grad` and
    the results are Tracked when the inputs are."""
    tracked = any(isinstance(x, Tracked) for x in inputs)
    leaves = [x if isinstance(x, Tracked) or not _is_float(x) else Tracked(x) for x in inputs]
    with record(True):
        out = fn(*leaves)
    if not isinstance(out, Tracked):
        return [None] * len(inputs)
    found = walk(out, grad, {id(x) for x in leaves}, tracked)
    return [found.get(id(x), (None, None))[1] for x in leaves]


def _is_float(x: Value) -> bool:
    return aval(x).dtype.is_float


def walk(
    out: Tracked,
    grad: Value,
    stops: set[int] | None = None,
    create_graph: bool = False,
    marks: set[int] | None = None,
) -> dict[int, tuple[Tracked, Value]]:
    """The gradient of each leaf that `out` depends on, as id -> (leaf, gradient).

    `stops` are ids of values to treat as leaves; `marks` of values whose gradient is wanted as
    well, though the walk goes on behind them. With `create_graph` the gradients are Tracked
    themselves, so that they can be differentiated again.
    """
    stops = stops or set()
    grads: dict[int, Value] = {id(out): grad}
    found: dict[int, tuple[Tracked, Value]] = {}
    with record(create_graph):
        for node in reversed(_order(out, stops)):
            g = grads.pop(id(node), None)
            if g is None:
                continue
            if node.pull is None or id(node) in stops or id(node) in (marks or ()):
                found[id(node)] = (node, g)
            if node.pull is None or id(node) in stops:
                continue
            operands = node.inputs if create_graph else tuple(map(plain, node.inputs))
            for x, made in zip(node.inputs, node.pull(g, operands)):
                if not isinstance(x, Tracked) or made is None:
                    continue
                part = made() if callable(made) else made
                have = grads.get(id(x))
                if have is None:
                    grads[id(x)] = part
                elif isinstance(part, PartGradients):
                    have.update(part)
                else:
                    grads[id(x)] = f.add(have, part)
    return found


def leaves(out: Tracked) -> list[Tracked]:
    """The values that `out` was computed from."""
    return [node for node in _order(out, set()) if node.pull is None]


def _order(out: Tracked, stops: set[int]) -> list[Tracked]:
    """Operands before users, from the leaves to `out` (iterative: tapes are long)."""
    order: list[Tracked] = []
    seen: set[int] = set()
    stack: list[tuple[Tracked, bool]] = [(out, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if id(node) not in stops:
                stack.extend((x, False) for x in node.inputs if isinstance(x, Tracked))
    return order
