"""The tape: values that remember their origin, and the backward walk that differentiates them.

A Tracked value wraps an array, a device array or a graph Node. An op with a Tracked operand runs on
the wrapped values, and its result is Tracked too; so one tape serves eager execution, devices and
traced functions alike. Reverse accumulation: Griewank & Walther 2008, ch. 3.

A mapped function (weft.ops.batching) has a tape of its own, of a higher level: there a Tracked
wraps a batch, whose content may be Tracked by the level below. An op concerns its highest level
only; what other levels wrap stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import ref

from weft.core.dtypes import DType
from weft.core.errors import GradientError
from weft.graph.ir import Shape
from weft.ops import functions as f
from weft.ops.anomaly import pulled
from weft.ops.composite import COMPOSITES
from weft.ops.primitive import PRIMITIVES, aval, bind, is_wrapper, level_of, register_listener
from weft.ops.ufuncs import total

Value = Any  # np.ndarray, DeviceArray, Node or Tracked
# (gradient of the result, operands to use) -> per operand: None, a value, or a thunk making one
Pullback = Callable[[Value, tuple[Value, ...]], Sequence[Any]]
Wanted = Callable[["Tracked"], bool]


class Hook(Protocol):
    """A function that a walk passes the gradient of a value through."""

    def __call__(self, gradient: Value) -> Value: ...

    def follow(self, before: Tracked, after: Tracked) -> None:
        """Notes that a write replaces the value `before` by `after`."""


class Tracked:
    """A value and how it came about. `inputs` are its operands (Tracked where a gradient flows);
    a leaf has none. `owner` is what a leaf's gradient belongs to (a Tensor). Without a level it is
    of that of the value. A walk passes the whole gradient through `hook`; `name` is the op's."""

    __slots__ = ("__weakref__", "hook", "inputs", "level", "name", "owner", "pull", "rank", "value")

    def __init__(
        self,
        value: Value,
        inputs: tuple[Value, ...] = (),
        pull: Pullback | None = None,
        owner: Any = None,
        level: int | None = None,
    ):
        self.value, self.inputs, self.pull, self.owner = value, inputs, pull, owner
        self.level = level_of(value) if level is None else level
        self.rank = 10 + 2 * self.level
        self.hook: Hook | None = None
        self.name = ""

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
    paused: frozenset[int] = frozenset()  # levels of which a walk is under way


_RECORDING = _Recording()


def recording(level: int = 0) -> bool:
    """True if this thread records ops for differentiation, on the tape of this level."""
    return _RECORDING.on and level not in _RECORDING.paused


@contextmanager
def record(on: bool, pause: int | None = None) -> Iterator[None]:
    """Turns recording on or off inside the block. With `pause`, tapes of other levels go on."""
    before = _RECORDING.on, _RECORDING.paused
    if pause is None:
        _RECORDING.on, _RECORDING.paused = on, frozenset()
    else:
        _RECORDING.paused |= {pause}
    try:
        yield
    finally:
        _RECORDING.on, _RECORDING.paused = before


def plain(value: Value) -> Value:
    """Returns the value inside a Tracked; returns any other value unchanged."""
    return value.value if isinstance(value, Tracked) else value


def peel(value: Value, level: int) -> Value:
    """Returns the value inside a Tracked of this level; returns any other value unchanged."""
    return value.value if isinstance(value, Tracked) and value.level == level else value


def is_tracked(values: Sequence[Value], level: int) -> bool:
    """True if any of the values has a history of this level."""
    return any(_of_level(x, level) for x in values)


def _of_level(x: Value, level: int) -> bool:
    return isinstance(x, Tracked) and x.level == level


def tape_level(inputs: Sequence[Value]) -> int | None:
    """The level of the tape that records an op on these operands, or None."""
    top = max((x for x in inputs if is_wrapper(x)), key=lambda x: x.rank, default=None)
    return top.level if isinstance(top, Tracked) else None


class TapeListener:
    """The listener that runs an op on the wrapped values of its operands and records it."""

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        level = max(x.level for x in inputs if isinstance(x, Tracked))
        out = bind(op, *(peel(x, level) for x in inputs), **attrs)
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
    level = tape_level(inputs)
    if level is None or not recording(level) or not aval(out).dtype.is_float:
        return out
    held = [(x, x.version) for x in map(plain, inputs) if hasattr(x, "version")]
    made = Tracked(out, inputs, level=level)
    me = ref(made)  # a weak reference: a cycle would keep the tape's memory until collected

    def pull(grad: Value, operands: tuple[Value, ...]) -> Sequence[Any]:
        for x, version in held:
            if x.version != version:
                raise GradientError(changed(what, x))
        return rule(grad, me() if is_tracked(operands, level) else out, operands)

    made.pull, made.name = pull, what
    return made


def changed(what: str, operand: object) -> str:
    """Returns the message for an operand whose content changed since the forward pass."""
    return (
        f"backward through {what}: its operand {operand} was written after the forward pass (by a "
        "compiled function, or assigned to); call backward before, or compute forward again"
    )


register_listener(Tracked, TapeListener(), rank=0)


class PartGradients(dict[int, Any]):
    """The gradients of parts of one value, or what they are made of, by their numbers."""


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
    level = max(map(level_of, (grad, *inputs)))
    tracked = is_tracked(inputs, level)
    leaves = [
        x if _of_level(x, level) or not _is_float(x) else Tracked(x, level=level) for x in inputs
    ]
    with record(True):
        out = fn(*leaves)
    if not is_tracked((out,), level):
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
    only: Wanted | None = None,
) -> dict[int, tuple[Tracked, Value]]:
    """The gradient of each leaf that `out` depends on, as id -> (leaf, gradient).

    `stops` are ids of values to treat as leaves; `marks` of values whose gradient is wanted as
    well, though the walk goes on behind them. With `create_graph` the gradients are Tracked
    themselves, so that they can be differentiated again.
    """
    return walk_all([(out, grad)], stops, create_graph, marks, only)


def walk_all(
    ends: Sequence[tuple[Tracked, Value]],
    stops: set[int] | None = None,
    create_graph: bool = False,
    marks: set[int] | None = None,
    only: Wanted | None = None,
) -> dict[int, tuple[Tracked, Value]]:
    """`walk` from several results of one level, each with its gradient. With `only`, nothing is
    computed for values that do not depend on one for which it holds."""
    stops, level = stops or set(), ends[0][0].level
    grads: dict[int, Value] = {}
    found: dict[int, tuple[Tracked, Value]] = {}
    for out, grad in ends:
        grads[id(out)] = f.add(grads[id(out)], grad) if id(out) in grads else grad
    order = _order([out for out, _ in ends], stops)
    useful = None if only is None else _behind(order, only)
    with record(True, None if create_graph else level):
        for node in reversed(order):
            g = grads.pop(id(node), None)
            if g is None:
                continue
            if node.hook is not None:
                g = node.hook(g)
            if node.pull is None or id(node) in stops or id(node) in (marks or ()):
                found[id(node)] = (node, g)
            if node.pull is None or id(node) in stops:
                continue
            operands = node.inputs if create_graph else tuple(peel(x, level) for x in node.inputs)
            for x, made in zip(node.inputs, pulled(node, g, operands)):
                if made is None or not _of_level(x, level):
                    continue
                if useful is not None and id(x) not in useful:
                    continue
                part = made() if callable(made) else made
                have = grads.get(id(x))
                if have is None:
                    grads[id(x)] = part
                elif isinstance(part, PartGradients):
                    have.update(part)
                else:
                    grads[id(x)] = total(have, part)
    return found


START = object()  # the owner of a start: what a function's derivative is taken by


def sources(out: Tracked) -> list[Tracked]:
    """The leaves and starts that `out` was computed from, but nothing behind a start."""
    found, seen, stack = [], {id(out)}, [out]
    while stack:
        node = stack.pop()
        if node.pull is None or node.owner is not None:
            found.append(node)
            continue
        new = [x for x in node.inputs if _of_level(x, out.level) and id(x) not in seen]
        seen.update(map(id, new))
        stack.extend(new)
    return found


def leaves(out: Tracked) -> list[Tracked]:
    """The values that `out` was computed from."""
    return [node for node in history(out) if node.pull is None]


def history(out: Tracked) -> list[Tracked]:
    """All values that `out` was computed from, and itself."""
    return _order([out], set())


def _behind(order: Sequence[Tracked], wanted: Wanted) -> set[int]:
    """The ids of the values that are wanted, or depend on one that is."""
    out = {id(node) for node in order if wanted(node)}
    for node in order:
        if any(id(x) in out for x in node.inputs):
            out.add(id(node))
    return out


def _order(outs: Sequence[Tracked], stops: set[int]) -> list[Tracked]:
    """Operands before users, from the leaves to `outs` (iterative: tapes are long)."""
    order: list[Tracked] = []
    seen, level = set[int](), outs[0].level
    stack: list[tuple[Tracked, bool]] = [(out, False) for out in outs]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if id(node) not in stops:
                stack.extend((x, False) for x in node.inputs if _of_level(x, level))
    return order
