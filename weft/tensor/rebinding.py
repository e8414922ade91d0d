"""Tensors that become another view in place: of their own content in another shape (`t_`,
`squeeze_`, ...), or of another tensor's content (`data = `, `set_`).

The content stays where it is, for all other views of it: a new tensor takes the changed one's place
among them, and the changed one becomes a view of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft import ops
from weft.core.errors import GradientError, TraceError, UsageError
from weft.ops.batching import detached
from weft.ops.tape import record, recording
from weft.tensor import views
from weft.tensor.base import CURRENT, TensorBase, place
from weft.tensor.guards import changed


def turn(what: str, t: Any, view: Callable[[Any], Any]) -> Any:
    """`t`, which becomes the view of itself that `view` makes. Raises GradientError for a leaf,
    TraceError for a tensor that a traced function was given."""
    _refuse_given(what, t)
    if t._leaf and recording():
        raise GradientError(
            f"{what}: {t._known()} requires gradients; change it under weft.no_grad()"
        )
    with record(True):  # so that later writes are, whoever makes them
        made = view(t)
    if made is t:
        return t
    _displace(t)  # `made` is a view of what takes the place of t
    t._value, t._tape = made._value, None if t._leaf else views.history(t._tape, made._tape)
    views.show(t, made._view)
    t._store = None
    return t


def share(what: str, t: Any, source: Any) -> Any:
    """`t`, which takes the content of `source`, with its shape and dtype; a write to one is from
    now on one to the other. Views of t keep what they show. No history is recorded."""
    if t._tape is not None:
        raise GradientError(
            f"{what}: {t._known()} was computed from tensors that require gradients; detach() it"
        )
    if t._leaf and not source.dtype.is_float:
        raise GradientError(f"{what}: {source._known()} for a tensor that requires gradients")
    if _shows(source, t):
        return t
    alike = source.shape == t.shape and source.dtype == t.dtype
    if alike and t._is_outside() and t._view is None and not _shown(t, traced=True):
        with record(False):  # the tensor becomes state of the Program
            return t.assign(source)
    _refuse_given(what, t)
    plain = source._view is source._home is source._tape is None and not source._leaf
    if t._view is None and alike and plain and place(source) is place(t) and not _shown(t):
        t._take_on(source)  # where compiled functions look for it
        _alias(source, t)
        return t
    _displace(t)
    t._value, t._weak, t._store = detached(source._plain()), source._weak, None
    return _alias(t, source)


def resize(t: Any, shape: tuple[int, ...]) -> Any:
    """`t` in another shape: its first elements, in row-major order, and zeros after its last ones.
    Raises UsageError where PyTorch's memory would show elements that weft does not know."""
    _refuse_given("resize_", t)
    if t.requires_grad:
        raise GradientError(f"resize_: {t._known()} requires gradients; make a new tensor")
    count, contiguous = math.prod(shape), views.is_contiguous(t.shape, views.strides(t))
    if shape == t.shape and contiguous:
        return t
    if not contiguous or (count > t.size and (t._view is not None or _shown(t))):
        raise UsageError(
            f"resize_: {t._known()} to {list(shape)}; the tensor shares its memory, whose other "
            "elements a view does not know: make a new tensor"
        )
    if count <= t.size:
        return turn("resize_", t, lambda x: x.reshape(-1)[:count].reshape(shape))
    flat = ops.pad(ops.reshape(t._plain(), (t.size,)), [0], [count - t.size], 0)
    t._value, t._home = ops.reshape(flat, shape), None
    changed()
    return t


def _refuse_given(what: str, t: TensorBase) -> None:
    trace: Any = CURRENT.trace
    if trace is not None and (not t._in_trace() or id(t) in trace.passed):
        raise TraceError(
            f"{what}: a traced function cannot change the shape of a tensor that it was given; "
            "use the result of a method without _"
        )


def _shown(t: TensorBase, traced: bool = False) -> bool:
    """True if the tensor has views (of this trace)."""
    found = [child for kept in (t._views or {}).values() if (child := kept()) is not None]
    return any(child._in_trace() or not traced for child in found)


def _shows(view: TensorBase, t: TensorBase) -> bool:
    """True for a tensor itself, and a view of all its elements in their order and dtype."""
    base: Any = view
    while base is not t and base._view is not None:
        base = base._view.base
    alike = view.shape == t.shape and view.dtype == t.dtype
    return base is t and alike and views.strides(view) == views.strides(t)


def _displace(t: Any) -> Any:
    """A tensor that takes the place of t: its content, its history, its base and its views."""
    made = t._wrap(t._value if t._tape is None else t._tape)
    made._home, made._weak, t._home = t._home, t._weak, None
    if t._view is not None:
        (t._view.base._views or {}).pop(id(t), None)
        views.show(made, t._view)
    for kept in list((t._views or {}).values()):
        if (child := kept()) is not None:
            views.show(child, child._view.over(made))
    t._view = t._views = None
    changed()
    return made


def _alias(t: Any, base: Any) -> Any:
    """`t`, which shows all of `base`, without its history."""
    return views.link(t, base, detached, lambda _, v: v, views.strides(base), detached=True)
