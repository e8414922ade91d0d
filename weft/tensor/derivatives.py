"""Derivatives of functions: vjp, linearize, jvp, value_and_grad. They nest, among themselves, with
vmap and with the tape of `backward`.

A function runs on fresh starts, copies of its arguments from which a tape begins. A start leads on
to what the argument itself was computed from, so an outer derivative goes through the inner one. A
forward derivative is the derivative of a backward one, which is linear in its cotangent: no op
needs a second rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from weft import ops
from weft.core.errors import GradientError, ShapeError
from weft.core.trees import Tree, flatten, unflatten
from weft.ops import tape
from weft.ops.batching import detached, frames
from weft.ops.primitive import is_wrapper
from weft.ops.tape import Tracked
from weft.tensor.base import TensorBase, check_devices
from weft.tensor.current import CURRENT

Fn = Callable[..., Any]


def is_tensor(x: Any) -> bool:
    """True for what derivatives and maps treat as a leaf."""
    return isinstance(x, TensorBase)


@contextmanager
def transforming() -> Iterator[None]:
    """Has compiled functions called inside the block run as a part of what is transformed."""
    before, CURRENT.transforms = CURRENT.transforms, CURRENT.transforms + 1
    try:
        yield
    finally:
        CURRENT.transforms = before


class Recorded(NamedTuple):
    """A function's results with the tape from them back to its arguments."""

    starts: list[TensorBase]
    inputs: Tree
    ends: list[TensorBase]
    outputs: Tree
    aux: Any
    level: int
    outside: bool  # whether results keep what they depend on besides the arguments


def record(name: str, fn: Fn, args: Sequence[Any], has_aux: bool = False) -> Recorded:
    """Runs fn on fresh starts of the tensors nested in `args`. Raises GradientError for an argument
    without a tensor of floats."""
    level = len(frames())
    outside = tape.recording(level)
    leaves, tree = flatten(tuple(args), is_tensor, f"{name}'s arguments")
    for i, given in enumerate(args):
        if not any(x.dtype.is_float for x in flatten(given, is_tensor, name)[0]):
            raise GradientError(f"{name}: argument {i} is not a Tensor of floats, nor holds one")
    starts = [_start(x, level) if x.dtype.is_float else x for x in leaves]
    with tape.record(True), transforming():
        out = fn(*unflatten(tree, starts))
    aux = None
    if has_aux:
        if not isinstance(out, tuple) or len(out) != 2:
            raise GradientError(f"{name}: with has_aux the function returns (result, aux)")
        out, aux = out
    ends, outputs = flatten(out, is_tensor, f"{name}'s results")
    return Recorded(starts, tree, ends, outputs, aux, level, outside)


def _start(x: TensorBase, level: int) -> TensorBase:
    value = x.value
    if tape.is_tracked((value,), level):
        return x._wrap(Tracked(value.value, (value,), lambda g, _: (g,), tape.START, level))
    return x._wrap(Tracked(value, owner=tape.START, level=level))


def _depends(value: Any, starts: Sequence[TensorBase], level: int) -> bool:
    """True if a value has a history on this level that leads elsewhere than to the starts."""
    mine = {id(s._tape) for s in starts}
    return tape.is_tracked((value,), level) and any(
        id(leaf) not in mine for leaf in tape.leaves(value)
    )


def settled(run: Recorded, x: Any) -> Any:
    """Results without the part of their history that ends at the starts."""

    def one(t: TensorBase) -> TensorBase:
        with tape.record(True):
            value = t.value
        if not run.outside:
            return t._wrap(detached(value))
        return t if _depends(value, run.starts, run.level) else t._wrap(tape.peel(value, run.level))

    leaves, tree = flatten(x, is_tensor, "the results")
    return unflatten(tree, [one(t) for t in leaves])


def _holds(value: Any, level: int) -> bool:
    while is_wrapper(value):
        if isinstance(value, Tracked) and value.level == level:
            return True
        value = value.value
    return False


def pull_back(
    run: Recorded, seeds: Sequence[Any], ends: Sequence[TensorBase], starts: Sequence[TensorBase]
) -> list[Any]:
    """The gradients of `starts`, as values, given those of `ends`."""
    with tape.record(True):
        pairs = [(t.value, g) for t, g in zip(ends, seeds)]
    pairs = [(y, g) for y, g in pairs if tape.is_tracked((y,), run.level)]
    found: dict[int, Any] = {}
    if pairs:
        again = any(_holds(g, run.level) for _, g in pairs) or (
            run.outside and any(_depends(y, starts, run.level) for y, _ in pairs)
        )
        stops = {id(s._tape) for s in starts}
        found = tape.walk_all(pairs, stops, again, only=lambda node: id(node) in stops)
    return [
        found[id(s._tape)][1] if id(s._tape) in found else ops.full_like(s._plain(), 0)
        for s in starts
    ]


def cotangents(run: Recorded, name: str, given: Any) -> list[Any]:
    """The values of tensors nested like the results. Raises ShapeError for others."""
    leaves, tree = flatten(given, is_tensor, name)
    if tree.marks != run.outputs.marks:
        raise ShapeError(f"{name}: the cotangents nest in another way than the results")
    for t, y in zip(leaves, run.ends):
        if t.shape != y.shape or t.dtype != y.dtype:
            raise ShapeError(f"{name}: a cotangent is {t._known()} for a result {y._known()}")
        check_devices(name, (t, y))
    return [t.value for t in leaves]


def vjp(fn: Fn, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Returns fn(*primals) and the function that takes cotangents, nested like that result, to the
    tuple of gradients of the primals. `primals` are tensors, or nest them; fn may return several,
    nested. With `has_aux` fn returns (result, aux), and aux comes third. Raises GradientError for a
    primal without a tensor of floats, ShapeError for cotangents unlike the result.

    >>> y, pull = weft.func.vjp(lambda x: x * x, weft.tensor([1.0, 2.0]))
    >>> y.tolist(), pull(weft.tensor([1.0, 10.0]))[0].tolist()
    ([1.0, 4.0], [2.0, 40.0])
    """
    run = record("vjp", fn, primals, has_aux)

    def pull(given: Any) -> Any:
        seeds = cotangents(run, "vjp", given)
        floats = [s for s in run.starts if s.dtype.is_float]
        grads = iter(pull_back(run, seeds, run.ends, floats))
        made = [
            s._wrap(next(grads)) if s.dtype.is_float else s._wrap(ops.full_like(s.value, 0))
            for s in run.starts
        ]
        return settled(run, unflatten(run.inputs, made))

    out = settled(run, unflatten(run.outputs, run.ends))
    return (out, pull, settled(run, run.aux)) if has_aux else (out, pull)


def _linear(name: str, fn: Fn, primals: Sequence[Any], has_aux: bool) -> tuple[Recorded, Fn]:
    run = record(name, fn, primals, has_aux)
    floats = [s for s in run.starts if s.dtype.is_float]
    with tape.record(True):
        zeros = [Tracked(ops.full_like(y._plain(), 0), level=run.level) for y in run.ends]
        grads = pull_back(run, zeros, run.ends, floats)
    behind = [run.starts[0]._wrap(g) for g in grads]
    dummies = [y._wrap(z) for y, z in zip(run.ends, zeros)]

    def push(*tangents: Any) -> Any:
        leaves, tree = flatten(tangents, is_tensor, name)
        if tree.marks != run.inputs.marks:
            raise ShapeError(f"{name}: the tangents nest in another way than the primals")
        for t, s in zip(leaves, run.starts):
            if t.shape != s.shape or t.dtype != s.dtype:
                raise ShapeError(f"{name}: a tangent is {t._known()} for a primal {s._known()}")
        seeds = [t.value for t, s in zip(leaves, run.starts) if s.dtype.is_float]
        made = pull_back(run._replace(starts=[*run.starts, *dummies]), seeds, behind, dummies)
        out = [y._wrap(v) for y, v in zip(run.ends, made)]
        return settled(run._replace(starts=[*run.starts, *dummies]), unflatten(run.outputs, out))

    return run, push


def linearize(fn: Fn, *primals: Any) -> tuple[Any, Fn]:
    """Returns fn(*primals) and its derivative there: the function that takes tangents, shaped like
    the primals, to the tangent of the result. fn runs once, however many tangents follow.

    >>> y, push = weft.func.linearize(lambda x: x * x, weft.tensor([1.0, 2.0]))
    >>> push(weft.tensor([1.0, 10.0])).tolist()
    [2.0, 40.0]
    """
    run, push = _linear("linearize", fn, primals, False)
    return settled(run, unflatten(run.outputs, run.ends)), push


def jvp(fn: Fn, primals: Any, tangents: Any, *, has_aux: bool = False) -> tuple[Any, ...]:
    """Returns fn(*primals) and its derivative in the direction of `tangents`, a tuple like
    `primals`. With `has_aux` fn returns (result, aux), and aux comes third. Raises GradientError
    and ShapeError as vjp does.

    >>> x, v = weft.tensor([1.0, 2.0]), weft.tensor([1.0, 10.0])
    >>> [t.tolist() for t in weft.func.jvp(lambda x: x * x, (x,), (v,))]
    [[1.0, 4.0], [2.0, 40.0]]
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise GradientError("jvp: primals and tangents are tuples; for one argument, (x,) and (v,)")
    run, push = _linear("jvp", fn, primals, has_aux)
    out, slope = settled(run, unflatten(run.outputs, run.ends)), push(*tangents)
    return (out, slope, settled(run, run.aux)) if has_aux else (out, slope)


def chosen(
    name: str, fn: Fn, argnums: int | Sequence[int], args: Sequence[Any], kwargs: Any
) -> Any:
    """fn as a function of its arguments at `argnums` alone, and those arguments. Raises
    GradientError for a position that is not there."""
    which = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not which or any(not -len(args) <= i < len(args) for i in which):
        raise GradientError(f"{name}: argnums {argnums} for {len(args)} positional arguments")

    def of(*values: Any) -> Any:
        given = list(args)
        for i, v in zip(which, values):
            given[i] = v
        return fn(*given, **kwargs)

    return of, tuple(args[i] for i in which)


def value_and_grad(
    fn: Fn, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Returns a function that gives fn's value (one element) and its derivative with respect to the
    tensors in the argument positions `argnums` (a tuple of them if `argnums` is a sequence). An
    argument may nest tensors in lists, tuples and dicts; so does its derivative. With `has_aux` fn
    returns (value, aux), and so does the function in the value's place. It raises GradientError
    for an argument without a tensor of floats, ShapeError for a value of several elements.

    >>> f = weft.value_and_grad(lambda x: (x * x).sum())
    >>> value, gradient = f(weft.tensor([3.0, 4.0]))
    >>> value.item(), gradient.tolist()
    (25.0, [6.0, 8.0])
    """

    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        of, given = chosen("value_and_grad", fn, argnums, args, kwargs)
        run = record("value_and_grad", of, given, has_aux)
        if len(run.ends) != 1 or run.ends[0].size != 1 or len(run.outputs.makers) != 1:
            found = ", ".join(y._known() for y in run.ends) or "no tensor"
            raise ShapeError(
                f"value_and_grad: the function gives {found}; reduce it to one element"
            )
        out = run.ends[0]
        floats = [s for s in run.starts if s.dtype.is_float]
        grads = iter(pull_back(run, [ops.full_like(out._plain(), 1)], [out], floats))
        made = [s._wrap(next(grads)) if s.dtype.is_float else None for s in run.starts]
        found = settled(run, unflatten(run.inputs, made))
        value = settled(run, (out, run.aux) if has_aux else out)
        return value, found[0] if isinstance(argnums, int) else found

    return wrapped


def grad(fn: Fn, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Fn:
    """Returns the function that gives the gradient of `fn` (whose result has one element) with
    respect to its arguments at `argnums`, nested as they are: see weft.value_and_grad. With
    `has_aux` fn returns (result, aux), and the function (gradient, aux).

    >>> weft.func.grad(weft.func.grad(lambda x: x**3))(weft.tensor(2.0)).item()
    12.0
    """
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient
