"""Calls of host tensors that were made before with the same shapes, dtypes and plain arguments.

Such a call binds the primitives that it bound before (weft.ops.replay). The second one is recorded;
later ones run the recorded NumPy rules, without the checks, promotion and dispatch in between. They
give the same bits, classes, histories and views. A call that reads values, writes, draws random
numbers or returns anything but new tensors always takes the long way, and so does one in a trace.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.ops.primitive import RECORDED
from weft.ops.pulls import Pulls
from weft.ops.replay import Plan, Recording
from weft.ops.tape import Tracked, recording
from weft.tensor import views
from weft.tensor.base import CURRENT, TensorBase, tensor_of
from weft.tensor.quick import QUIET, at_once, row, unequal

F = TypeVar("F", bound=Callable[..., Any])
_KEPT = 4096  # calls that are remembered at a time
_LONGEST = 256  # parts of a key: long lists of numbers are values rather than settings
_LARGE = 1 << 20  # elements of an argument: a recording would keep all that is made until it ends
_WORDS = frozenset((int, bool, str, type(None), DType, type(...)))


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor of the result: its class, slot and history; the tensor that it is a view of (an
    argument, or a tensor made before, counted after the arguments), and the rule."""

    kind: type[TensorBase]
    slot: int
    weak: bool
    view: tuple[int, Any, Any, views.Strides, bool] | None


@dataclass(frozen=True, slots=True)
class _Known:
    """A recorded call: its plan, its tensors (bases before views), and how they are returned: the
    number of one, or a function of all with their numbers."""

    plan: Plan
    made: tuple[_Made, ...]
    single: int | None
    pack: Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class _Ready:
    """A recorded call as one function of its tensors. NumPy says nothing in a `silent` one."""

    plan: Plan
    play: Callable[[Sequence[Any]], Any]
    silent: bool


_PLAIN: set[type] = set()  # classes of tensors

# What is known of a call: None after the first one, False if it must take the long way.
_CALLS: dict[tuple[Any, ...], _Ready | bool | None] = {}


def forget() -> None:
    """Forgets all calls: a default that they depend on has changed."""
    _CALLS.clear()


def played(fn: F, short: Callable[..., Any] | None = None, count: int = 1) -> F:
    """`fn`, a function of tensors, whose repeated calls run as recorded. `short`, a function of
    `count` operands, is tried first: it gives None for what it does not do."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if CURRENT.trace is not None or RECORDED.now is not None or CURRENT.casts:
            return fn(*args, **kwargs)
        whole: tuple[Any, ...] | None = None
        tensors: Sequence[Any] = args
        if not kwargs and args and type(x := args[0]) in _PLAIN:
            if short is not None and len(args) == count and (made := short(*args)) is not None:
                return made
            if len(args) <= 2 and _alone(x) and type(array := x._value) is np.ndarray:
                if len(args) == 1:
                    whole = fn, type(x), array.shape, array.dtype
                elif (kind := type(y := args[1])) in _WORDS:
                    whole, tensors = (fn, type(x), array.shape, array.dtype, kind, y), args[:1]
                elif kind in _PLAIN and _alone(y) and type(b := y._value) is np.ndarray:
                    same = x is y, array is b
                    whole = fn, type(x), array.shape, array.dtype, kind, b.shape, b.dtype, same
        if whole is None:
            found = _described_all(fn, args, kwargs)
            if found is None:
                return fn(*args, **kwargs)
            whole, tensors = found
        known = _CALLS.get(whole, _CALLS)
        if type(known) is _Ready:
            try:
                return known.play(tensors) if known.silent else QUIET.run(known.play, tensors)
            except (ArithmeticError, RuntimeError, ValueError, MemoryError):
                return fn(*args, **kwargs)  # the long way names it
        if known is None:
            return _recorded(whole, list(tensors), fn, args, kwargs)
        if known is _CALLS:
            if len(_CALLS) >= _KEPT:
                _CALLS.clear()
            _CALLS[whole] = None
        return fn(*args, **kwargs)

    return cast(F, call)


def _described_all(fn: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]] | None:
    """The key of a call and its tensors; None for a call that must take the long way."""
    tensors: list[Any] = []
    key: list[Any] = [fn]
    for x in args:
        kind = type(x)
        if kind in _WORDS:
            key += (kind, x)
        elif kind in _PLAIN and _alone(x) and type(array := x._value) is np.ndarray:
            key += (kind, array.shape, array.dtype, 0)
            tensors.append(x)
        elif not _described(x, kind, key, tensors):
            return None
    for name, x in kwargs.items():
        key.append(name)
        if not _described(x, type(x), key, tensors):
            return None
    if len(tensors) != 1:
        if not tensors:
            return None
        key.append(_alike(tensors))
    return tuple(key), tensors


# Operators that do not go the quick way first.
_PLAYED = frozenset(("__getitem__", "__matmul__", "__rmatmul__", "__invert__", "__ne__",
                     "__pow__"))  # fmt: skip


# The quick ways of methods of weft.tensor.arith, with the number of their operands.
_SHORT: dict[str, tuple[Callable[..., Any], int]] = {
    op: (functools.partial(at_once, op), 1)
    for op in ["abs", "cos", "erf", "exp", "floor", "isnan", "log", "round", "sin", "sqrt", "tanh"]
} | {"__ne__": (unequal, 2), "__getitem__": (row, 2)}
_SHORT_IN = ("weft.tensor.arith", "weft.tensor.indexing")


def play_methods(owner: type) -> None:
    """Plays the public methods of a class of tensors, and operators of one operand."""
    for name in dir(owner):
        value = inspect.getattr_static(owner, name)
        if isinstance(value, property) and name in ("T", "mT"):
            setattr(owner, name, property(played(value.fget), doc=value.__doc__))  # type: ignore
        elif isinstance(value, FunctionType) and (name[0] != "_" or name in _PLAYED):
            plain = value.__module__ in _SHORT_IN
            setattr(owner, name, played(value, *(_SHORT.get(name, ()) if plain else ())))


def play_functions(namespace: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Plays the functions in a module's namespace that `names` lists."""
    for name in names:
        if isinstance(namespace[name], FunctionType):
            namespace[name] = played(namespace[name])


def _described(x: Any, kind: type, key: list[Any], tensors: list[Any]) -> bool:
    """Adds to the key all that a call may know of an argument without reading values. Returns False
    for an argument that has more to it."""
    if len(key) > _LONGEST:
        return False
    if issubclass(kind, TensorBase):
        _PLAIN.add(kind)
        array = x._value
        if type(array) is not np.ndarray or x._home is not None:
            return False
        state = 0
        if x._tape is not None or x._leaf:
            if not recording():
                state = 2 if x._leaf else 4
            elif x._tape is None:
                state = 6
            elif not x._leaf and not x._tape.level:
                state = 8
            else:
                return False
        key += (kind, array.shape, array.dtype, state + x._weak)
        if x._view is not None:
            key.append(x._view.strides)
        tensors.append(x)
    elif kind in _WORDS:
        key += (kind, x)
    elif kind is float:
        key += (kind, x.hex())
    elif kind is slice:
        if {type(x.start), type(x.stop), type(x.step)} - {int, type(None)}:
            return False
        key += (kind, x.start, x.stop, x.step)
    elif kind is tuple or kind is list:
        key += (kind, len(x))
        return all(_described(y, type(y), key, tensors) for y in x)
    else:
        return False
    return True


def _alone(x: Any) -> bool:
    return x._tape is None and not x._leaf and x._view is None and x._home is None and not x._weak


def _alike(tensors: list[Any]) -> Any:
    """Tells which of the tensors are one, or share an array."""
    if len(tensors) == 2:
        x, y = tensors
        return (x is y, x._value is y._value)
    found = [id(t) for t in tensors], [id(t._value) for t in tensors]
    return tuple([tuple(map(ids.index, ids)) for ids in found])


def _history(t: Any) -> Tracked:
    return t._tape if t._tape is not None else Tracked(t._value, owner=t, level=0)


def _play(known: _Known, given: Sequence[Any]) -> Any:
    """The result of a recorded call for these tensors."""
    tensors = list(given)
    arrays = [t._value for t in tensors]
    held = known.plan.run(arrays, lambda i: _history(tensors[i]))
    for made in known.made:
        value = held[made.slot]
        tracked = None
        if type(value) is Tracked:
            tracked, value = value, value.value
        out = tensor_of(made.kind, value)
        out._tape, out._weak = tracked, made.weak
        if made.view is not None:
            base, take, put, strides, detached = made.view
            views.link(out, tensors[base], take, put, strides, detached)
        tensors.append(out)
    return tensors[known.single] if known.single is not None else known.pack(tensors)


def _recorded(whole: Any, tensors: list[Any], fn: Any, args: Any, kwargs: Any) -> Any:
    """The result of a call, which is recorded where that is possible."""
    arrays = [t._value for t in tensors]
    if max(a.size for a in arrays) > _LARGE:
        _CALLS[whole] = False
        return fn(*args, **kwargs)
    tapes = [t._tape if recording() else None for t in tensors]
    now = Recording(arrays, tensors, tapes, Pulls)
    RECORDED.now = now
    try:
        out = fn(*args, **kwargs)
    finally:
        RECORDED.now = None
    known = _known(now, tensors, out)
    _CALLS[whole] = False if known is None else _ready(known)
    return out


def _ready(known: _Known) -> _Ready:
    plan, one = known.plan, known.single is not None and len(known.made) == 1
    direct = plan.function(known.made[0].slot) if one else None
    play = functools.partial(_play, known) if direct is None else _straight(direct, known.made[0])
    return _Ready(plan, play, plan.silent)


def _straight(direct: Callable[..., Any], made: _Made) -> Callable[[Sequence[Any]], Any]:
    """A call of one tensor without a history, as its function of arrays."""
    kind, weak, view = made.kind, made.weak, made.view

    def play(given: Sequence[Any]) -> Any:
        value = direct(given[0]._value) if len(given) == 1 else direct(*[t._value for t in given])
        out = tensor_of(kind, value if type(value) is np.ndarray else np.asarray(value))
        if weak:
            out._weak = True
        if view is not None:
            base, take, put, strides, detached = view
            views.link(out, given[base], take, put, strides, detached)
        return out

    return play


def _known(now: Recording, tensors: list[Any], out: Any) -> _Known | None:
    parts = out if isinstance(out, tuple | list) else [out]
    made: list[_Made] = []
    numbers = {id(t): i for i, t in enumerate(tensors)}
    for x in parts:
        if now.spoilt or id(x) in numbers or not _noted(x, now, numbers, made, len(tensors)):
            return None
    if now.spoilt or not made:
        return None
    places = [numbers[id(x)] for x in parts]
    if parts is not out:
        return _Known(now.plan(), tuple(made), places[0], list)
    kind: Any = type(out)
    build = kind._make if hasattr(kind, "_make") else kind
    return _Known(now.plan(), tuple(made), None, lambda ts: build([ts[i] for i in places]))


def _noted(x: Any, now: Recording, numbers: dict[int, int], made: list[_Made], given: int) -> bool:
    """Adds a tensor of the result, after the tensors that it is a view of. Returns False for one
    that playing cannot make."""
    if id(x) in numbers:
        return True
    kind = type(x)
    if not isinstance(x, TensorBase) or kind._wrap is not TensorBase._wrap:
        return False
    if not kind.__module__.startswith("weft.") or x._leaf or x._home is not None or x.name:
        return False
    slot = now.made(x._value if x._tape is None else x._tape)
    if slot is None:
        return False
    view = None
    if (rule := x._view) is not None:
        if not _noted(rule.base, now, numbers, made, given):
            return False
        base = numbers[id(rule.base)]
        view = base, rule.take, rule.put, rule.strides, rule.detached
    numbers[id(x)] = given + len(made)
    made.append(_Made(kind, slot, x._weak, view))
    return True
