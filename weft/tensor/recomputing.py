"""Values computed twice: a checkpointed function runs again in the backward pass, and so does what
other code computed without a tape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from weft import ops
from weft.core.errors import GradientError
from weft.ops import tape
from weft.ops.batching import top_frame
from weft.ops.primitive import level_of
from weft.ops.tape import Tracked
from weft.tensor.base import TensorBase

T = TypeVar("T")


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
    if like is None:
        return fn(*args)
    inputs = tuple(a.value for a in args if isinstance(a, TensorBase))
    level = max(map(level_of, inputs))
    if not tape.recording(level) or top_frame(inputs) is not None:
        return fn(*args)

    def run(*values: Any) -> Any:
        given = iter(values)
        made = [like._wrap(next(given)) if isinstance(a, TensorBase) else a for a in args]
        return fn(*made).value

    log = once(_Log)
    fresh = [Tracked(tape.peel(x, level), level=level) for x in inputs]
    with _replaying(log):
        out = run(*fresh)
    if not tape.is_tracked((out,), level):
        return like._wrap(out)
    mine = {id(x) for x in fresh}
    sources = {_key(x): x for x in tape.sources(out) if id(x) not in mine}
    owners = [x.owner for x in sources.values() if isinstance(x.owner, TensorBase)]
    unchanged = _watch("checkpoint", owners)

    def pull(g: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
        unchanged()
        create_graph = tape.is_tracked(operands, level)
        given = operands[: len(inputs)]
        # The second computation will be differentiated again, so keep its history.
        if create_graph:
            again = tuple(
                x if tape.is_tracked((x,), level) else Tracked(x, level=level) for x in given
            )
        else:
            after = tape.plain(g)
            again = tuple(Tracked(ops.call("barrier", x, after), level=level) for x in given)
        with tape.record(True), _replaying(log):
            stops = {id(x) for x in (*again, *sources.values())}
            found = tape.walk(run(*again), g, stops, create_graph).values()
        grads = [[p for leaf, p in found if leaf is x] for x in again]
        grads += [[p for leaf, p in found if _key(leaf) == key] for key in sources]
        return [_sum(parts) for parts in grads]

    return like._wrap(
        Tracked(tape.peel(out, level), (*inputs, *sources.values()), pull, level=level)
    )


def _key(source: Tracked) -> int:
    """Equal for the values of one tensor, which are new ones each time."""
    return id(source if source.owner is None or source.owner is tape.START else source.owner)


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
