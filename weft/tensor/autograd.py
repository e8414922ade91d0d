"""Differentiation of tensors: `backward`, `grad`, `value_and_grad`, `no_grad`, `checkpoint`.

A tensor with requires_grad starts a tape (weft.ops.tape); whatever is computed from it carries the
tape on, eagerly, on a device and in a traced function alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import numpy as np

from weft import ops
from weft.core.errors import DTypeError, GradientError, ShapeError
from weft.ops import tape
from weft.ops.tape import Tracked
from weft.tensor import views
from weft.tensor.base import TensorBase, check_devices
from weft.tensor.guards import changed

T = TypeVar("T")


class Autograd(TensorBase):
    """The methods of Tensor that concern derivatives."""

    __slots__ = ()

    def requires_grad_(self, on: bool = True) -> Self:
        """Starts (or stops) recording what is computed from this tensor; returns it. Raises
        DTypeError for a tensor that is not of floats, GradientError for one that was computed."""
        if on and not self.dtype.is_float:
            raise DTypeError(f"requires_grad: {self._known()} is not of floats; cast it first")
        if self._tape is not None:
            raise GradientError(
                f"requires_grad_: {self._known()} was computed from tensors that require gradients;"
                " detach() it first"
            )
        if self._leaf != bool(on):
            self._leaf = bool(on)
            changed()
        return self

    def detach(self) -> Self:
        """The same content, without its history: gradients stop here. A view, as PyTorch's: what is
        written to it, unrecorded, this tensor holds too."""
        out = self._wrap(tape.plain(self.value))
        made: Self = views.link(
            out, self, tape.plain, lambda _, v: v, views.strides(self), detached=True
        )
        return made

    def backward(self, gradient: Any = None, create_graph: bool = False) -> None:
        """Adds the derivative of this tensor to the .grad of every leaf it was computed from.

        `gradient` (of this tensor's shape) weighs its elements; without it the tensor must have
        one element. Raises GradientError when nothing requires a gradient."""
        found = _walk(self, gradient, create_graph)
        for leaf, grad in found.values():
            if leaf.owner is not None:
                _accumulate(leaf.owner, self._wrap(grad))


def _walk(
    out: TensorBase, gradient: Any, create_graph: bool, marks: set[int] | None = None
) -> dict[int, tuple[Tracked, Any]]:
    with tape.record(True):  # also under no_grad; refuses what another trace, or none, computed
        value = out.value
    if not isinstance(value, Tracked):
        raise GradientError(
            f"backward: {out._known()} was not computed from a tensor with requires_grad (or was "
            "computed under no_grad, or by a compiled function: call backward inside that one)"
        )
    if gradient is None:
        if out.size != 1:
            raise ShapeError(
                f"backward: {out._known()} has {out.size} elements; reduce it to one, or pass "
                "gradient="
            )
        seed = ops.full_like(tape.plain(value), 1.0)
    else:
        if isinstance(gradient, TensorBase):
            check_devices("backward", (out, gradient))
        given = gradient if isinstance(gradient, TensorBase) else type(out)(np.array(gradient))
        if given.shape != out.shape or given.dtype != out.dtype:
            raise ShapeError(f"backward: gradient {given._known()} for {out._known()}")
        seed = given.value if create_graph else tape.plain(given.value)
    return tape.walk(value, seed, None, create_graph, marks)


def _accumulate(owner: TensorBase, new: TensorBase) -> None:
    before: Any = owner.grad
    owner.grad = new if before is None else before + new


@contextmanager
def no_grad() -> Iterator[None]:
    """Stops recording for differentiation inside the context. Also a decorator.

    >>> x = weft.tensor([1.0], requires_grad=True)
    >>> with weft.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    with tape.record(False):
        yield


@contextmanager
def enable_grad() -> Iterator[None]:
    """Undoes `no_grad` inside the context."""
    with tape.record(True):
        yield


def is_grad_enabled() -> bool:
    """True if ops are recorded for differentiation."""
    return tape.recording()


def grad(
    output: TensorBase, inputs: Sequence[TensorBase], gradient: Any = None,
    create_graph: bool = False,
) -> list[Any]:  # fmt: skip
    """Returns the derivatives of `output` with respect to `inputs`, each in its input's shape and
    dtype (zeros if `output` does not depend on it). No .grad changes.

    `inputs` are leaves or computed tensors. `gradient` is the derivative of the final result with
    respect to `output`; without it `output` has one element. With `create_graph` the results can be
    differentiated again. Raises GradientError.

    >>> x = weft.tensor([1.0, 2.0], requires_grad=True)
    >>> weft.grad((x * x).sum(), [x])[0].tolist()
    [2.0, 4.0]
    """
    marks = {id(t._tape) for t in inputs if t._tape is not None}
    found = _walk(output, gradient, create_graph, marks)
    out = []
    for t in inputs:
        parts: list[Any] = [
            output._wrap(g)
            for leaf, g in found.values()
            if (leaf is t._tape if t._tape is not None else leaf.owner is t)
        ]
        total: Any = sum(parts[1:], parts[0]) if parts else t._wrap(ops.full_like(t.value, 0))
        out.append(total if create_graph else total.detach())
    return out


def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0
) -> Callable[..., tuple[Any, Any]]:
    """Returns a function that gives fn's value (one element) and its derivative with respect to the
    tensors in the argument positions `argnums` (a tuple of them if `argnums` is a sequence). The
    function raises GradientError for an argument that is not a tensor.

    >>> f = weft.value_and_grad(lambda x: (x * x).sum())
    >>> value, gradient = f(weft.tensor([3.0, 4.0]))
    >>> value.item(), gradient.tolist()
    (25.0, [6.0, 8.0])
    """
    which = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given = list(args)
        for i in which:
            if not isinstance(given[i], Autograd):
                raise GradientError(f"value_and_grad: argument {i} is not a Tensor")
            given[i] = given[i].detach().requires_grad_()
        with tape.record(True):
            value = fn(*given, **kwargs)
        grads = grad(value, [given[i] for i in which])
        return value.detach(), grads[0] if isinstance(argnums, int) else tuple(grads)

    return wrapped


class _Log:
    """The results of `once` while a checkpointed function runs, in order."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.at = 0


class _Replay(threading.local):
    log: _Log | None = None


_REPLAY = _Replay()


@contextmanager
def _replaying(log: _Log) -> Iterator[None]:
    before, _REPLAY.log, log.at = _REPLAY.log, log, 0
    try:
        yield
    finally:
        _REPLAY.log = before


def once(make: Callable[[], T]) -> T:
    """make(), which may assign to state. When a checkpointed function runs again: what it gave the
    first time, so that a dropout mask is the same and running statistics move once."""
    log = _REPLAY.log
    if log is None:
        return make()
    if log.at == len(log.items):
        log.items.append(make())
    log.at += 1
    given: T = log.items[log.at - 1]
    return given


def checkpoint(fn: Callable[..., Any], *args: Any) -> Any:
    """Returns fn(*args) without keeping its intermediate values: the backward pass computes them
    again (Chen et al. 2016). fn returns one tensor. It must not assign to state, and must draw the
    same random numbers when run again: give them a key. `once` allows both, as in the modules of
    weft.nn.

    >>> x = weft.tensor([2.0], requires_grad=True)
    >>> weft.checkpoint(lambda t: t * t * t, x).sum().backward()
    >>> x.grad.tolist()
    [12.0]
    """
    like = next((a for a in args if isinstance(a, TensorBase)), None)
    if like is None or not tape.recording():
        return fn(*args)
    inputs = tuple(a.value for a in args if isinstance(a, TensorBase))

    def run(*values: Any) -> Any:
        given = iter(values)
        made = [like._wrap(next(given)) if isinstance(a, TensorBase) else a for a in args]
        return fn(*made).value

    log = once(_Log)
    with _replaying(log):
        out = run(*(Tracked(tape.plain(x)) for x in inputs))
    if not isinstance(out, Tracked):
        return like._wrap(out)
    owners = {id(leaf.owner): leaf.owner for leaf in tape.leaves(out) if leaf.owner is not None}
    params = tuple(Tracked(t.value.value, owner=t) for t in owners.values())
    unchanged = _watch("checkpoint", owners.values())

    def pull(g: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
        unchanged()
        create_graph = any(isinstance(x, Tracked) for x in operands)
        given = operands[: len(inputs)]
        # The second computation will be differentiated again, so keep its history.
        if create_graph:
            again = tuple(x if isinstance(x, Tracked) else Tracked(x) for x in given)
        else:
            again = tuple(Tracked(ops.call("barrier", x, tape.plain(g))) for x in given)
        with tape.record(True), _replaying(log):
            stops = {id(x) for x in again}
            found = tape.walk(run(*again), g, stops, create_graph).values()
        grads = [[p for leaf, p in found if leaf is x] for x in again]
        grads += [[p for leaf, p in found if leaf.owner is t] for t in owners.values()]
        return [_sum(parts) for parts in grads]

    return like._wrap(Tracked(tape.plain(out), (*inputs, *params), pull))


def _watch(what: str, tensors: Iterable[Any]) -> Callable[[], None]:
    """A check that these tensors hold what they hold now: raises GradientError otherwise."""
    before = [(t, *t._content()) for t in tensors]

    def unchanged() -> None:
        for t, content, version in before:
            now = t._content()
            if now[0] is not content or now[1] != version:
                known = f"{t.name!r} {t._known()}" if t.name else t._known()
                raise GradientError(tape.changed(what, known))

    return unchanged


def recomputed(
    name: str, results: Sequence[Any], parameters: Sequence[Any], again: Callable[[], Sequence[Any]]
) -> list[Any]:
    """Gives tensors that were computed without a tape a history. The first backward pass from any
    of them calls `again` once, which computes them again, recorded. The pass then differentiates
    with respect to `parameters`: tensors with requires_grad, which must not change in between."""
    leaves = tuple(Tracked(tape.plain(p.value), owner=p) for p in parameters)
    unchanged = _watch(name, parameters)
    kept: list[Any] = []

    def history(i: int, x: Any) -> Any:
        def pull(g: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
            unchanged()
            with tape.record(True):
                kept[:] = kept or [y.value if isinstance(y, TensorBase) else y for y in again()]
                if not isinstance(kept[i], Tracked):
                    return [None] * len(leaves)
                create_graph = any(y.pull is not None for y in operands if isinstance(y, Tracked))
                found = tape.walk(kept[i], g, None, create_graph).values()
            grads = [[part for leaf, part in found if leaf.owner is p] for p in parameters]
            return [_sum(parts) for parts in grads]

        return x._wrap(Tracked(tape.plain(x.value), leaves, pull))

    floats = [isinstance(x, TensorBase) and x.dtype.is_float for x in results]
    return [history(i, x) if f else x for i, (x, f) in enumerate(zip(results, floats))]


def _sum(parts: Sequence[Any]) -> Any:
    """The sum of gradients; None of none."""
    total = None
    for p in parts:
        total = p if total is None else ops.add(total, p)
    return total
