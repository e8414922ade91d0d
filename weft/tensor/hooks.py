"""Hooks: users' functions that are called with gradients, as in PyTorch.

A backward pass calls a tensor's hooks once, with the whole gradient. A leaf keeps its own. Those of
a computed tensor belong to its place on the tape, and stay there when it is written to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Self
from weakref import ref

from weft.core.errors import GradientError, ShapeError, TraceError, UsageError
from weft.host.boundary import users
from weft.ops import tape
from weft.ops.primitive import is_wrapper
from weft.ops.tape import PartGradients, Tracked
from weft.tensor.base import CURRENT, TensorBase
from weft.tensor.guards import changed

Kept = dict[int, Callable[..., Any]]
_NUMBERS = count()


class Handle:
    """A hook that was registered: `remove`, or the end of a `with` block, ends its calls."""

    def __init__(self, kept: Kept, hook: Callable[..., Any]) -> None:
        self._kept, self.id = kept, next(_NUMBERS)
        kept[self.id] = hook

    def remove(self) -> None:
        """Ends the calls; does nothing the second time."""
        self._kept.pop(self.id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


class GradientHooks:
    """The hooks of one tensor. Called with its gradient, gives the one that goes on."""

    __slots__ = ("after", "before", "keeper", "like")

    def __init__(self, like: TensorBase) -> None:
        self.like = like._wrap(like._plain())  # of the class that gradients have
        self.before: Kept = {}
        self.after: Kept = {}  # called with a leaf, once it has its .grad
        self.keeper: Any = None  # a weak reference to the tensor that retains the gradient

    def __call__(self, gradient: Any) -> Any:
        for hook in list(self.before.values()):
            given = self.like._wrap(gradient)
            new = users(hook)(given)
            gradient = _fitting(hook, given if new is None else new, self.like).value
        if self.keeper is not None and (t := self.keeper()) is not None:
            accumulate(t, t._wrap(gradient))
        return gradient

    def follow(self, before: Tracked, after: Tracked) -> None:
        """The tensor was written to: it retains the gradient of its new value."""
        t = None if self.keeper is None else self.keeper()
        if t is not None and t._tape is before:
            self.keeper, _hooks_on(after, t).keeper = None, self.keeper


def _fitting(hook: Any, new: Any, like: TensorBase) -> TensorBase:
    """Returns a hook's result, if it can be the gradient of a tensor like this one."""
    if not isinstance(new, TensorBase):
        raise UsageError(
            f"{_called(hook)} returned {type(new).__name__}; a hook returns a tensor or None"
        )
    if new.shape != like.shape or new.dtype != like.dtype:
        raise ShapeError(f"{_called(hook)} returned {new._known()} as a gradient {like._known()}")
    return new


def _called(hook: Any) -> str:
    return f"hook {getattr(hook, '__name__', type(hook).__name__)!r}"


def accumulate(owner: TensorBase, new: TensorBase) -> None:
    """Adds to .grad."""
    before: Any = owner.grad
    owner.grad = new if before is None else before + new


def at_leaves(found: dict[int, tuple[Tracked, Any]], like: TensorBase) -> list[tuple[Any, Any]]:
    """The tensors at the leaves of a walk, each once, with what their hooks make of their whole
    gradients."""
    parts: dict[int, list[Any]] = {}  # by the id of their owner
    owners = {id(leaf.owner): leaf.owner for leaf, _ in found.values()}
    for leaf, g in found.values():
        parts.setdefault(id(leaf.owner), []).append(g)
    out = []
    for key, owner in owners.items():
        if isinstance(owner, TensorBase):
            whole: list[Any] = [like._wrap(g) for g in parts[key]]
            out.append((owner, hooked(owner, sum(whole[1:], whole[0]))))
    return out


def hooked(owner: TensorBase, gradient: Any) -> Any:
    """The gradient that a leaf's hooks give for its own."""
    if owner._hooks is None or not owner._hooks.before:
        return gradient
    _refuse_traced("backward", owner)
    return gradient._wrap(owner._hooks(gradient.value))


def arrived(owner: TensorBase) -> None:
    """Calls what waits for a leaf's .grad."""
    if owner._hooks is not None and owner._hooks.after:
        _refuse_traced("backward", owner)
        for hook in list(owner._hooks.after.values()):
            users(hook)(owner)


def _hooks_on(node: Tracked, t: TensorBase) -> GradientHooks:
    """Those at a computed tensor's place on the tape."""
    if not isinstance(node.hook, GradientHooks):
        node.hook = GradientHooks(t)
    return node.hook


def _refuse_traced(what: str, t: TensorBase) -> None:
    if CURRENT.trace is not None or CURRENT.transforms or t._in_trace() or is_wrapper(t._value):
        raise TraceError(
            f"{what}: hooks of {t.name or t._known()} in a compiled or transformed function; run "
            "it eagerly, or remove() the hook"
        )


def _own(what: str, t: TensorBase) -> GradientHooks:
    """A tensor's hooks, to add one."""
    _refuse_traced(what, t)
    if t._tape is not None:
        return _hooks_on(t._tape, t)
    if not t.requires_grad:
        raise GradientError(
            f"{what}: {t._known()} does not require gradients, so none reaches it; call "
            "requires_grad_() first"
        )
    if t._hooks is None:
        t._hooks = GradientHooks(t)
        changed()
    return t._hooks


def before_gradient(t: TensorBase, hook: Callable[..., Any]) -> Handle:
    """Registers a hook that is called with the gradient of t."""
    return Handle(_own("register_hook", t).before, hook)


def after_gradient(t: TensorBase, hook: Callable[..., Any]) -> Handle:
    """Registers a hook that is called with the leaf t once its .grad has been added to."""
    what = "register_post_accumulate_grad_hook"
    if t._tape is not None:
        raise GradientError(f"{what}: {t._known()} was computed; only leaves have a .grad")
    return Handle(_own(what, t).after, hook)


def retain(t: TensorBase) -> None:
    """Has backward passes add to the .grad of a computed tensor too."""
    hooks = _own("retain_grad", t)
    if t._tape is not None:
        hooks.keeper = ref(t)


def retains(t: TensorBase) -> bool:
    """True for a computed tensor that has been told to retain its gradient."""
    hook = None if t._tape is None else t._tape.hook
    return isinstance(hook, GradientHooks) and hook.keeper is not None and hook.keeper() is t


def watched(
    what: str, tensors: Sequence[Any], meet: Callable[[list[Any]], Sequence[Any]]
) -> list[Any]:
    """The tensors of a sequence with one point that all their gradients pass. It calls `meet` with
    them, None for an element without one, and passes on what that gives."""
    values = [t.value if isinstance(t, TensorBase) else None for t in tensors]
    tracked = [i for i, v in enumerate(values) if isinstance(v, Tracked)]
    if not tracked:
        return list(tensors)
    for i in tracked:
        _refuse_traced(what, tensors[i])

    def pull(parts: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
        given = [tensors[i]._wrap(parts[i]) if i in parts else None for i in range(len(tensors))]
        made = meet(given)
        return [None if made[i] is None else made[i].value for i in tracked]

    inputs = tuple(values[i] for i in tracked)
    point = Tracked(tape.plain(inputs[0]), inputs, pull)
    out = list(tensors)
    for i in tracked:
        through = Tracked(tape.plain(values[i]), (point,), _part(i))
        through.name = what
        out[i] = tensors[i]._wrap(through)
    return out


def _part(i: int) -> Any:
    return lambda g, operands: (PartGradients({i: g}),)
