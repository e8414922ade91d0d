"""The record of a primitive, the table of all primitives, and `bind`, which hands an op to its
listener.

One record holds a primitive's shape rule, NumPy meaning, scalar lowering and derivative. Nothing
else in weft knows an op by name except templates that claim a composite.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.graph.ir import Shape

if TYPE_CHECKING:
    from weft.kernel.ir import Expr


@dataclass(frozen=True, slots=True)
class Aval:
    """The abstract value of an operand or result: shape and dtype."""

    shape: Shape
    dtype: DType

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


# A call with several outputs has a tuple where one value stands.
AbstractRule = Callable[..., Any]  # (*avals, **attrs) -> Aval; raises ShapeError, DTypeError
NumpyRule = Callable[..., Any]  # (*arrays, **attrs) -> array of the abstract shape/dtype
LowerRule = Callable[..., "Expr"]  # elementwise only: (builder, *exprs, **attrs) -> Expr
# (grad, out, *inputs, **attrs) -> per input: None, a gradient, or a function that makes one when
# it is wanted. Made of ordinary ops, so it runs wherever its primitive does and can itself be
# differentiated (Griewank & Walther 2008). Ties of maximum, minimum and max share the gradient.
VjpRule = Callable[..., Any]


@dataclass(frozen=True)
class Primitive:
    """The complete definition of one primitive.

    `kind` names the template family that computes it: "elementwise", "movement", "reduce", "dot",
    "gather", "scatter", "sort", "source", "call" or "result".
    `cost` is its work per element, in additions; grouping weighs it against memory traffic.
    `ranges` has an entry per operand of an elementwise primitive: the floats on which tests and
    `weft check` try it, forward and backward.
    """

    name: str
    kind: str
    abstract: AbstractRule
    numpy: NumpyRule | None
    lower: LowerRule | None = None
    vjp: VjpRule | None = None
    cost: int = 0
    ranges: tuple[tuple[float, float], ...] = ()


PRIMITIVES: dict[str, Primitive] = {}


def register(primitive: Primitive) -> Primitive:
    """Adds a primitive to the table; a second one of the same name is a bug."""
    if primitive.name in PRIMITIVES:
        raise ValueError(f"primitive {primitive.name!r} is registered twice")
    PRIMITIVES[primitive.name] = primitive
    return primitive


class Listener(Protocol):
    """A party that turns a bound op into a value: eager NumPy, a device, or the tracer."""

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any: ...


class NumpyListener:
    """Runs an op at once through its NumPy rule: the oracle."""

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        primitive = PRIMITIVES[op]
        arrays = tuple(map(np.asarray, inputs))
        primitive.abstract(*map(aval, arrays), **attrs)
        assert primitive.numpy is not None, f"{op} has no value before a run"
        with np.errstate(all="ignore"):
            out = primitive.numpy(*arrays, **attrs)
        return tuple(map(np.asarray, out)) if isinstance(out, tuple) else np.asarray(out)


NUMPY = NumpyListener()
_LISTENERS: dict[type, tuple[int, Listener]] = {}


def register_listener(cls: type, listener: Listener, rank: int = 1) -> None:
    """Ops with an argument of type `cls` go to `listener`; the highest rank among the arguments
    wins (graph Nodes have rank 9, so a device array met while tracing is the tracer's to place).
    Rank 0 is for wrappers, values around others: each has a `rank` and a `level` of its own."""
    _LISTENERS[cls] = (rank, listener)


def is_wrapper(value: Any) -> bool:
    """True for a value around another: one with a history, or a batch of a mapped function."""
    entry = _LISTENERS.get(type(value))
    return entry is not None and not entry[0]


def level_of(value: Any) -> int:
    """The number of mapped functions (vmap) around the one that made this wrapper; else 0."""
    return int(value.level) if is_wrapper(value) else 0


def innermost(value: Any) -> Any:
    """The array, Node or device array inside all wrappers."""
    while is_wrapper(value):
        value = value.value
    return value


def bind(op: str, *values: Any, **attrs: Any) -> Any:
    """Hands primitive `op` to the listener of its arguments; plain arrays run on NumPy.

    Values are at primitive level: equal shapes and dtypes where the primitive wants them. A call of
    a composite with several outputs gives a tuple.
    """
    best, listener = 0, None
    for value in values:
        entry = _LISTENERS.get(type(value))
        if entry is not None and (rank := entry[0] or value.rank) > best:
            best, listener = rank, entry[1]
    if RECORDED.now is not None:
        return RECORDED.now.bind(listener or NUMPY, op, values, attrs)
    return (listener or NUMPY).bind(op, values, attrs)


def aval(value: Any) -> Aval:
    """Shape and dtype of an array, a Node or a device array."""
    if isinstance(value, np.ndarray | np.generic):
        return Aval(value.shape, as_dtype(value.dtype))
    try:
        return Aval(value.shape, value.dtype)
    except AttributeError:
        raise UsageError(
            f"an op takes arrays, graph nodes or device arrays, not {type(value).__name__}"
        ) from None


class Recorder(Protocol):
    """A recording of what a call binds (weft.ops.replay)."""

    def bind(
        self, listener: Listener, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]
    ) -> Any: ...

    def spoil(self) -> None: ...

    def constant(self, value: Any) -> None: ...

    def check(self, value: Any, look: Callable[[Any], None]) -> None: ...


class _Recorded(threading.local):
    now: Recorder | None = None


RECORDED = _Recorded()  # the recording of this thread's call, if it is recorded


def reads_values() -> None:
    """Notes that the call that runs depends on more than shapes, dtypes and plain arguments."""
    if RECORDED.now is not None:
        RECORDED.now.spoil()


def looks_at(value: Any, look: Callable[[Any], None], error: Any) -> bool:
    """True if `look` raises the error for a value. If it does not, a recorded call depends on that,
    and looks again each time."""
    try:
        look(value)
    except error:
        return True
    if RECORDED.now is not None:
        RECORDED.now.check(value, look)
    return False


class _State(threading.local):
    depth = 0


_TRACING = _State()


def tracing() -> bool:
    """True if this thread is building a Graph (sources such as iota then become nodes)."""
    return _TRACING.depth > 0


@contextmanager
def building() -> Iterator[None]:
    """Makes sources become graph nodes inside the block."""
    _TRACING.depth += 1
    try:
        yield
    finally:
        _TRACING.depth -= 1


@contextmanager
def at_once() -> Iterator[None]:
    """Makes sources become arrays inside the block, even while a Graph is being built."""
    depth, _TRACING.depth = _TRACING.depth, 0
    try:
        yield
    finally:
        _TRACING.depth = depth
