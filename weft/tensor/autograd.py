"""Differentiation of tensors: `backward`, `grad`, `no_grad`, `checkpoint`.

A tensor with requires_grad starts a tape (weft.ops.tape); whatever is computed from it carries the
tape on, eagerly, on a device and in a traced function alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar, overload

import numpy as np

from weft import ops
from weft.core.errors import CallError, DTypeError, GradientError, ShapeError
from weft.ops import tape
from weft.ops.batching import Batched, detached, frames, leading
from weft.ops.primitive import level_of
from weft.ops.tape import Tracked
from weft.tensor import hooks, views
from weft.tensor.base import TensorBase, check_devices
from weft.tensor.guards import changed

T = TypeVar("T")


class Autograd(TensorBase):
    """The methods of Tensor that concern derivatives."""

    __slots__ = ()

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Starts (or stops) recording what is computed from this tensor; returns it. Raises
        DTypeError for a tensor that is not of floats, GradientError for one that was computed."""
        if requires_grad and not self.dtype.is_float:
            raise DTypeError(f"requires_grad: {self._known()} is not of floats; cast it first")
        if self._tape is not None:
            raise GradientError(
                f"requires_grad_: {self._known()} was computed from tensors that require gradients;"
                " detach() it first"
            )
        inside = frames() if requires_grad and not self._leaf else ()
        if inside:  # gradients are those of each example
            self._value = Batched(leading(self._value, inside[-1]), inside[-1])
        if self._leaf != bool(requires_grad):
            self._leaf = bool(requires_grad)
            changed()
        return self

    def detach(self) -> Self:
        """The same content, without its history: gradients stop here. A view, as PyTorch's: what is
        written to it, unrecorded, this tensor holds too."""
        out = self._wrap(detached(self.value))
        made: Self = views.link(
            out, self, detached, lambda _, v: v, views.strides(self), detached=True
        )
        return made

    def backward(self, gradient: Any = None, create_graph: bool = False) -> None:
        """Adds the derivative of this tensor to the .grad of every leaf it was computed from.

        `gradient` (of this tensor's shape) weighs its elements; without it the tensor must have
        one element. Raises GradientError when nothing requires a gradient."""
        backward(self, gradient, create_graph)

    def register_hook(self, hook: Callable[[Any], Any]) -> hooks.Handle:
        """Has backward passes call hook(gradient) once the gradient of this tensor is complete.
        A result other than None replaces the gradient. Hooks run in order; `remove` of
        the result ends the calls. Raises GradientError for a tensor without gradients, TraceError
        in compiled and transformed functions.

        >>> x = weft.tensor([1.0, 2.0], requires_grad=True)
        >>> hook = x.register_hook(lambda gradient: gradient * 10)
        >>> (x * x).sum().backward()
        >>> x.grad.tolist()
        [20.0, 40.0]
        """
        return hooks.before_gradient(self, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], Any]) -> hooks.Handle:
        """Has `backward` call hook(tensor) once it has added to the .grad of this leaf."""
        return hooks.after_gradient(self, hook)

    def retain_grad(self) -> None:
        """Has `backward` add to the .grad of this tensor too, though it was computed."""
        hooks.retain(self)

    @property
    def retains_grad(self) -> bool:
        """True for a computed tensor after `retain_grad`."""
        return hooks.retains(self)


def backward(
    out: Any, gradient: Any, create_graph: bool, inputs: Sequence[TensorBase] | None = None
) -> None:
    """`Tensor.backward`, for all leaves or for `inputs` alone, which may be computed tensors."""
    if inputs is None:
        found = hooks.at_leaves(_walk(out, gradient, create_graph), out)
    else:
        kept = [t for i, t in enumerate(inputs) if i not in unused(out, inputs)]
        found = list(zip(kept, grad(out, kept, gradient, create_graph)))
    with tape.record(create_graph):
        for owner, part in found:
            hooks.accumulate(owner, part)
            hooks.arrived(owner)


def unused(output: TensorBase, inputs: Sequence[TensorBase]) -> list[int]:
    """The numbers of inputs that `output` does not depend on."""
    value = output.value
    order = tape.history(value) if isinstance(value, Tracked) else []
    met = {id(node) for node in order} | {id(node.owner) for node in order}
    return [i for i, t in enumerate(inputs) if id(t._tape or t) not in met]


def _walk(
    out: TensorBase, gradient: Any, create_graph: bool, marks: set[int] | None = None,
    only: tape.Wanted | None = None,
) -> dict[int, tuple[Tracked, Any]]:  # fmt: skip
    with tape.record(True):  # also under no_grad; refuses what another trace, or none, computed
        value = out.value
    if isinstance(value, Batched):
        raise GradientError(
            f"backward: {out._known()} belongs to a mapped function (vmap), and the gradients of "
            "its examples to no tensor outside; use weft.func.grad in the function"
        )
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
    return tape.walk(value, seed, None, create_graph, marks, only)


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


def _wanted(output: Any, inputs: Any) -> Sequence[TensorBase]:
    """The tensors whose derivatives `grad` was asked for."""
    if not isinstance(output, TensorBase):
        raise CallError(
            f"grad: {type(output).__name__} is neither a tensor that was computed nor a function"
        )
    given = [inputs] if isinstance(inputs, TensorBase) else inputs
    wanted: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(t, TensorBase) for t in wanted):
        raise CallError("grad: give the tensors to differentiate by: grad(output, [x, y])")
    return wanted


@overload
def grad(
    output: TensorBase, inputs: Any, gradient: Any = None, create_graph: bool = False,
) -> list[Any]: ...  # fmt: skip
@overload
def grad(
    output: Callable[..., Any], inputs: int | Sequence[int] | None = None, *,
    argnums: int | Sequence[int] = 0, has_aux: bool = False,
) -> Callable[..., Any]: ...  # fmt: skip
def grad(
    output: Any, inputs: Any = None, gradient: Any = None, create_graph: bool = False, *,
    argnums: int | Sequence[int] = 0, has_aux: bool = False,
) -> Any:  # fmt: skip
    """Returns the derivatives of `output` with respect to `inputs`, each in its input's shape and
    dtype (zeros if `output` does not depend on it). No .grad changes.

    `inputs` are leaves or computed tensors. `gradient` is the derivative of the final result with
    respect to `output`; without it `output` has one element. With `create_graph` the results can be
    differentiated again. Raises GradientError.

    Of a function instead of an output it is `weft.func.grad(fn, argnums, has_aux)`: the function
    that gives the gradient.

    >>> x = weft.tensor([1.0, 2.0], requires_grad=True)
    >>> weft.grad((x * x).sum(), [x])[0].tolist()
    [2.0, 4.0]
    >>> weft.grad(lambda x: (x * x).sum())(x).tolist()
    [2.0, 4.0]
    """
    if callable(output) and not isinstance(output, TensorBase):
        from weft.tensor import derivatives

        return derivatives.grad(output, argnums if inputs is None else inputs, has_aux)
    inputs = _wanted(output, inputs)
    marks = {id(t._tape) for t in inputs if t._tape is not None}
    owners = {id(t) for t in inputs}
    found = _walk(
        output, gradient, create_graph, marks,
        lambda node: id(node) in marks or id(node.owner) in owners,
    )  # fmt: skip
    out = []
    level = level_of(output.value)
    for t in inputs:
        if level_of(t._value) < level:
            raise GradientError(
                f"grad: {t._known()} is from outside of the mapped function (vmap) that computes "
                "the output; pass it to the function as an argument, and use weft.func.grad"
            )
        parts: list[Any] = [
            output._wrap(g)
            for leaf, g in found.values()
            if (leaf is t._tape if t._tape is not None else leaf.owner is t)
        ]
        total: Any = t._wrap(ops.full_like(t.value, 0))
        if parts:
            with tape.record(create_graph):
                total = hooks.hooked(t, sum(parts[1:], parts[0]))
        out.append(total if create_graph else total._wrap(tape.plain(total.value)))
    return out
