"""Views: tensors whose content is a part, or another order, of another tensor's.

No memory is shared for this. A view knows how its content follows from its base, and how the base's
follows from what is written to the view. A write goes up to the tensor at the root, which takes a
new value, and from there down to every view of it. So views write through alike on the host, on a
device and in a trace, and what a tape holds never changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import ref

from weft.core.errors import GradientError
from weft.ops.tape import Tracked, plain, record, recording
from weft.tensor.current import CURRENT

if TYPE_CHECKING:
    from weft.tensor.base import TensorBase

Take = Callable[[Any], Any]  # the base's value -> the view's
Put = Callable[[Any, Any], Any]  # (the base, the view's new content) -> the base's new content
Strides = tuple[int, ...]
_MANY = 64  # views among which one looks for those that are gone


class ViewRule:
    """The rule by which one tensor follows from another. `strides` are those of PyTorch's storage:
    they decide where reshape copies. Writes to a `detached` one are not recorded."""

    __slots__ = ("base", "detached", "put", "recorded", "strides", "take")

    def __init__(self, base: TensorBase, take: Take, put: Put, strides: Strides, detached: bool):
        self.base, self.take, self.put, self.strides = base, take, put, strides
        self.detached, self.recorded = detached, recording() and not detached

    def over(self, base: TensorBase) -> ViewRule:
        """The rule by which the tensor follows from another base of the same content."""
        made = ViewRule(base, self.take, self.put, self.strides, self.detached)
        made.recorded = self.recorded
        return made


def link(
    out: Any, base: TensorBase, take: Take, put: Put, strides: Strides, detached: bool = False
) -> Any:
    """`out`, as a view of `base`."""
    return show(out, ViewRule(base, take, put, strides, detached))


def show(out: Any, rule: ViewRule) -> Any:
    """`out`, as a view by a rule."""
    out._view = rule
    views = rule.base._views
    if views is None:
        views = rule.base._views = {}
    elif len(views) % _MANY == 0:
        for key in [k for k, kept in views.items() if kept() is None]:
            del views[key]
    views[id(out)] = ref(out)  # without a callback, which takes as long as all else here
    return out


def part_from(t: TensorBase) -> None:
    """Ends what a tensor shares with its base and with its own views."""
    if t._view is not None:
        (t._view.base._views or {}).pop(id(t), None)
        t._view = None
    for kept in list((t._views or {}).values()):
        if (view := kept()) is not None:
            view._view = None
    t._views = None


def own_alone(found: Any, given: Iterable[Any]) -> None:
    """Ends the link of a result (a tensor, or a tuple or list of them) to its base, unless the
    base is a view of a tensor in `given`. Only the function that made the result has it."""
    parts = found if isinstance(found, tuple | list) else (found,)
    linked = [x for x in parts if getattr(x, "_view", None) is not None]
    if not linked:
        return
    known = set()
    for x in given:
        for part in x if isinstance(x, tuple | list) else (x,):
            if hasattr(part, "_view"):
                known.add(id(root(part)))
    for x in linked:
        if id(root(x)) not in known:
            part_from(x)


def root(t: TensorBase) -> TensorBase:
    """The tensor that a view shows, through all views between."""
    while t._view is not None:
        t = t._view.base
    return t


def write(t: TensorBase, new: Any) -> None:
    """Gives a view new content: its root takes a value with that in its place."""
    chain, detached = [t], False
    while (view := chain[-1]._view) is not None:
        detached = detached or view.detached
        chain.append(view.base)
    origin: Any = chain.pop()
    if detached and origin._tape is not None:
        raise GradientError(
            f"assign: a detached view of {origin._known()}, which was computed from tensors that "
            "require gradients and would be written behind their back; write to "
            "weft.tensor(x.numpy()), a copy"
        )
    with record(False) if detached else nullcontext():
        for view_tensor in chain:
            assert view_tensor._view is not None
            new = view_tensor._view.put(view_tensor._view.base, new)
        origin.assign(new)


def push(t: TensorBase) -> None:
    """Brings all views of a tensor that was written to its new content."""
    tracing = CURRENT.trace is not None
    stack = [t]
    while stack:
        base = stack.pop()
        for kept in list((base._views or {}).values()):
            made = kept()
            if made is None:
                continue
            if made._in_trace() is tracing:
                _renew(made, base)
            if made._views:
                stack.append(made)


def _renew(t: TensorBase, base: TensorBase) -> None:
    assert t._view is not None
    with record(t._view.recorded):
        value = t._view.take(base.value)
    t._value, t._tape = plain(value), None if t._leaf else history(t._tape, value)


def history(before: Tracked | None, value: Any) -> Tracked | None:
    """The history of a tensor that takes a new value."""
    after = value if isinstance(value, Tracked) else None
    if before is not None and before.hook is not None and after is not None:
        before.hook.follow(before, after)
    return after


def derived(t: TensorBase) -> Any:
    """The operand for a view from outside of the trace: computed in it from the root, which the
    trace may write."""
    chain = [t]
    while (view := chain[-1]._view) is not None:
        chain.append(view.base)
    value = chain.pop().value
    for child in reversed(chain):
        view = child._view
        assert view is not None and CURRENT.trace is not None
        CURRENT.trace.facts.tensor(child)
        with record(view.recorded and recording()):
            value = view.take(value)
        if child._leaf and recording():
            value = Tracked(plain(value), owner=child)
    return value


# -- strides ---------------------------------------------------------------------------------------


def strides(t: TensorBase) -> Strides:
    """The distances between neighbours along each axis in the root's memory, in elements."""
    return t._view.strides if t._view is not None else contiguous(t.shape)


def contiguous(shape: Sequence[int]) -> Strides:
    """The strides of row-major order."""
    out, step = [], 1
    for d in reversed(shape):
        out.append(step)
        step *= max(d, 1)
    return tuple(reversed(out))


def is_contiguous(shape: Sequence[int], given: Strides) -> bool:
    """True if elements with these strides are in row-major order, without gaps."""
    if not math.prod(shape):
        return True
    wanted = contiguous(shape)
    return all(d == 1 or a == b for d, a, b in zip(shape, given, wanted))


def restrided(shape: Sequence[int], old: Strides, new: Sequence[int]) -> Strides | None:
    """The strides of a reshaped tensor; None if strides cannot express it without a copy."""
    if not math.prod(shape):
        return contiguous(new)
    given = [(d, s) for d, s in zip(shape, old) if d != 1]
    out: list[int] = []
    at, left, step = len(given), 1, 1  # the block of axes of one stride that is being cut
    for d in reversed(new):
        if d == 1:
            out.append(step * left)
            continue
        if left == 1:
            at -= 1
            left, step = given[at]
            while at and given[at - 1][1] == given[at][1] * given[at][0]:
                at -= 1
                left *= given[at][0]
        if left % d:
            return None
        out.append(step)
        step *= d
        left //= d
    return tuple(reversed(out))
