"""`@weft.kernel`: kernels that a user writes, called like any function of tensors."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft import ops
from weft.backends import registry
from weft.core import dtypes as dt
from weft.core.dtypes import as_dtype
from weft.core.errors import (
    CallError,
    DTypeError,
    GradientError,
    LimitError,
    ShapeError,
    UsageError,
)
from weft.host.forks import lock_of
from weft.ops import tape
from weft.ops.batching import Batched, MapFrame, leading, top_frame
from weft.ops.composite import Composite, register_composite
from weft.ops.primitive import Aval, aval
from weft.program.session import Session
from weft.templates.own import BY_DIGEST, OwnKernel, beyond
from weft.tensor import kernel_tools
from weft.tensor.base import place, values
from weft.tensor.core import Tensor
from weft.tensor.device import DEVICES, one_op
from weft.tensor.shapes import stack
from weft.tensor.tracing import Spec

Gradient = Callable[..., Any]
MOST = 64  # combinations of numbers to measure


def kernel(
    function: Callable[..., None] | None = None,
    *,
    tune: Mapping[str, Sequence[Any]] | None = None,
) -> Any:
    """Makes a kernel of a function that writes one: `@weft.kernel` or `@weft.kernel(tune=...)`.

    The function gets a writer `k`, then each argument's memory, and keyword numbers. It runs once
    for each new combination of shapes, dtypes and numbers. The kernel it writes is called with
    tensors, eagerly or inside weft.compile, on every device.

    >>> @weft.kernel
    ... def double(k, x, *, threads=256):
    ...     y = k.output(x.shape, x.dtype)
    ...     k.launch(k.ceil_div(x.size, threads), threads)
    ...     i = k.group() * threads + k.thread()
    ...     with k.when(i < x.size):
    ...         y.flat[i] = 2 * x.flat[i]
    >>> double(weft.tensor([1.0, 2.0])).numpy()
    array([2., 4.], dtype=float32)
    """
    if function is None:
        return functools.partial(kernel, tune=tune)
    return Kernel(function, tune or {})


class Kernel:
    """A kernel of one's own, made by `weft.kernel`. Calling it with tensors gives its output, or a
    tuple of several."""

    __name__: str

    def __init__(self, function: Callable[..., None], tune: Mapping[str, Sequence[Any]]) -> None:
        if not callable(function):
            raise CallError(f"weft.kernel takes a function, not {function!r:.60}")
        functools.update_wrapper(self, function)
        self.function = function
        self._names, self._numbers = _parameters(function)
        self._varied = tuple(tune)
        self._choices = _choices(self.__name__, tune, self._numbers)
        self._gradient: Gradient | None = None
        self._known: dict[Any, OwnKernel] = {}

    def __call__(self, *arguments: Any, **numbers: Any) -> Any:
        tensors = self._tensors(arguments)
        given = values(self.__name__, tensors)
        if (frame := top_frame(given)) is not None:
            return self._mapped(
                frame, [tensors[0]._wrap(leading(v, frame)) for v in given], numbers
            )
        own, level = self._own(tensors, numbers), tape.tape_level(given)
        inside = given if level is None else [tape.peel(v, level) for v in given]
        out = ops.call("own", *inside, kernel=own.digest)
        outs = out if isinstance(out, tuple) else (out,)
        made = [tensors[0]._wrap(x) for x in self._remembered(own, outs, tuple(given))]
        return tuple(made) if len(made) > 1 else made[0]

    def _mapped(self, frame: MapFrame, whole: Sequence[Tensor], numbers: Any) -> Any:
        """A call for each example of a mapped function: the kernel knows no batch."""
        rows = [self(*(t[i] for t in whole), **numbers) for i in range(frame.size)]
        outs = zip(*(r if isinstance(r, tuple) else (r,) for r in rows))
        made = [y[0]._wrap(Batched(stack(list(y)).value, frame)) for y in outs]
        return tuple(made) if len(made) > 1 else made[0]

    def __repr__(self) -> str:
        return f"<weft.kernel {self.__name__}({', '.join(self._names)})>"

    def _tensors(self, arguments: Sequence[Any], *also: type) -> list[Any]:
        if len(arguments) != len(self._names):
            expected = ", ".join(self._names)
            raise CallError(
                f"{self.__name__} takes {len(self._names)} tensors ({expected}), got "
                f"{len(arguments)}; numbers go by keyword"
            )
        for name, x in zip(self._names, arguments):
            if not isinstance(x, (Tensor, np.ndarray, *also)):
                raise CallError(
                    f"{self.__name__}: {name} is a {type(x).__name__}; expected a tensor"
                )
        return [Tensor(x) if isinstance(x, np.ndarray) else x for x in arguments]

    def _own(self, tensors: Sequence[Any], numbers: Mapping[str, Any]) -> OwnKernel:
        """The kernel for arguments like these: written once, then known."""
        operands = tuple(
            (n, Aval(tuple(x.shape), as_dtype(x.dtype))) for n, x in zip(self._names, tensors)
        )
        wrong = [n for n in numbers if n not in self._numbers]
        if wrong:
            known = ", ".join(self._numbers) or "none"
            raise CallError(f"{self.__name__} lacks a number {wrong[0]!r}; known: {known}")
        chosen = {**self._numbers, **numbers}
        for name, value in chosen.items():
            if value is inspect.Parameter.empty:
                raise CallError(f"{self.__name__} needs the number {name!r}, by keyword")
            if not isinstance(value, int | float | str | tuple | None):
                raise CallError(f"{self.__name__}: {name}={value!r:.60}; expected a number")
        key = (operands, tuple((k, type(v), v) for k, v in chosen.items()))
        if key not in self._known:
            for name, x in operands:
                if x.dtype not in dt.DEVICE:
                    raise DTypeError(
                        f"{self.__name__}: {name} is {x.dtype.name}, which no device holds; "
                        f"cast {name}"
                    )
            choices = [c for c in self._choices if not c.keys() & numbers.keys()]
            own = OwnKernel(self.__name__, self.function, operands, chosen, choices)
            BY_DIGEST[own.digest] = self._known[key] = own
        return self._known[key]

    # -- what one can ask of it

    def check(self, *arguments: Any, target: str | None = None, **numbers: Any) -> None:
        """Runs the kernel on these arguments in weft's interpreter. Raises KernelError with the
        line for an access out of bounds, a read of unstored memory, or a race between threads. It
        does so too for a barrier that some threads miss, an output not written whole, and exceeded
        limits of `target`. That is a device, an architecture ("sm_90", "gfx942") or a preset; by
        default all of weft.core.caps.PRESETS, present here or not."""
        tensors = self._tensors(arguments)
        own = self._own(tensors, numbers)
        kernel_tools.check(own, [t.detach().numpy() for t in tensors], target)

    def source(self, *arguments: Any, target: str = "ir", **numbers: Any) -> str:
        """The text of the kernel for the shapes of the arguments (tensors, or weft.Spec). `target`:
        "ir" (weft's own, which the interpreter runs), "wgsl", "llvm" (for this CPU), "llvm:sm_90"
        and the like, an architecture ("sm_90", "gfx942": its assembly), or a device."""
        own = self._own(self._tensors(arguments, Spec), numbers)
        return kernel_tools.source(own, target)

    def tune(self, *arguments: Any, **numbers: Any) -> list[tuple[dict[str, Any], float]]:
        """Measures the candidates of `@weft.kernel(tune=...)` on the device of the arguments, and
        keeps the fastest for their shapes. Later compilations, in any process, use it. Returns
        (numbers, milliseconds of a call), the chosen ones first."""
        tensors = self._tensors(arguments)
        own = self._own(tensors, numbers)
        device = place(tensors[0]) or registry.host()
        able = [c for c in ({}, *own.choices) if not beyond(own.written(c).kernel, device.caps)]
        if len(able) < 2:
            raise UsageError(
                f"{self.__name__} has no candidates to measure on {device.info.id}; give them: "
                "@weft.kernel(tune={'threads': (64, 128, 256)})"
            )

        def run_of(choice: Mapping[str, Any]) -> Callable[[], list[np.ndarray]]:
            chosen = {**numbers, **{k: own.numbers[k] for k in self._varied}, **choice}

            def run() -> list[np.ndarray]:
                made = self(*tensors, **chosen)
                return [t.numpy() for t in (made if isinstance(made, tuple) else (made,))]

            return run

        found = kernel_tools.tune(device, [(c, run_of(c)) for c in able])
        default = next(ms for c, ms in found if not c)
        kernel_tools.keep(own, device.caps, found[0][0], found[0][1], default)
        _HOST.forget(own.digest)
        DEVICES.forget()
        return [({k: {**own.numbers, **c}[k] for k in self._varied}, ms) for c, ms in found]

    # -- derivatives

    def gradient(self, function: Gradient) -> Gradient:
        """Gives the kernel a derivative: `@my_kernel.gradient` over a function of (gradient of the
        output, output, *arguments) that returns the gradient of each argument, or None. It gets
        those of the numbers that it has parameters for. With several outputs, gradients and outputs
        are tuples. It is written in weft's functions or
        other kernels."""
        self._gradient = function
        return function

    def _remembered(
        self, own: OwnKernel, outs: tuple[Any, ...], given: tuple[Any, ...]
    ) -> list[Any]:
        def rule_of(i: int) -> tape.Rule:
            return lambda g, out, xs: self._pull(i, g, outs, xs, own.numbers)

        return [tape.remember(self.__name__, out, given, rule_of(i)) for i, out in enumerate(outs)]

    def _pull(
        self, i: int, g: Any, outs: tuple[Any, ...], xs: tuple[Any, ...], numbers: Any
    ) -> Any:
        if self._gradient is None:
            raise GradientError(
                f"kernel {self.__name__} has no derivative; give it one with "
                f"@{self.__name__}.gradient, or detach() its arguments"
            )
        grads: Any = tuple(g if j == i else ops.mul(out, 0.0) for j, out in enumerate(outs))
        single = len(outs) == 1
        found = self._gradient(
            *(Tensor(v[0]) if single else tuple(map(Tensor, v)) for v in (grads, outs)),
            *map(Tensor, xs),
            **{name: numbers[name] for name in _named(self._gradient) & numbers.keys()},
        )
        found = found if isinstance(found, tuple | list) else (found,)
        if len(found) != len(xs):
            raise GradientError(
                f"the derivative of kernel {self.__name__} gave {len(found)} gradients for "
                f"{len(xs)} arguments; return one for each, or None"
            )
        return [None if t is None else t.value for t in found]


def _named(function: Callable[..., Any]) -> set[str]:
    """The names of a derivative's parameters."""
    return set(inspect.signature(function).parameters)


def _parameters(function: Callable[..., None]) -> tuple[list[str], dict[str, Any]]:
    """The names of a kernel's arguments, and its numbers with their defaults. Raises CallError."""
    name = getattr(function, "__name__", "kernel")
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise CallError(f"weft.kernel: {function!r:.60} has no signature") from None
    rest = found[1:]
    if not found or found[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise CallError(f"kernel {name}: its first parameter is the writer: def {name}(k, x, ...)")
    for p in rest:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise CallError(
                f"kernel {name}: *{p.name} does not fix the number of arguments; name each one"
            )
        if p.kind is not p.KEYWORD_ONLY and p.default is not p.empty:
            raise CallError(
                f"kernel {name}: the number {p.name} goes after a *: (k, x, *, {p.name})"
            )
    arguments = [p.name for p in rest if p.kind is not p.KEYWORD_ONLY]
    if not arguments:
        raise CallError(f"kernel {name} takes no tensor: def {name}(k, x, ...)")
    return arguments, {p.name: p.default for p in rest if p.kind is p.KEYWORD_ONLY}


def _choices(
    name: str, tune: Mapping[str, Sequence[Any]], numbers: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """All combinations of the candidates but the default. Raises UsageError."""
    for key, listed in tune.items():
        if key not in numbers or numbers[key] is inspect.Parameter.empty:
            raise UsageError(f"kernel {name}: tune names {key!r}, no number with a default")
        several = isinstance(listed, tuple | list) and len(listed) > 0
        if not several or not all(isinstance(v, int | str) for v in listed):
            raise UsageError(f"kernel {name}: tune={{{key!r}: {listed!r:.60}}}; expected numbers")
    found = [dict(zip(tune, chosen)) for chosen in itertools.product(*tune.values())]
    if len(found) > MOST:
        raise LimitError(f"kernel {name}: {len(found):,} combinations to tune; at most {MOST}")
    return [c for c in found if any(numbers[k] != v for k, v in c.items())]


# -- the composite


def _abstract(*xs: Aval, kernel: str) -> Any:
    own = BY_DIGEST[kernel]
    if any(0 in x.shape for x in xs) and not all(0 in out.shape for out in own.outputs):
        raise ShapeError(f"kernel {own.name}: an argument is empty and an output is not")
    return own.outputs if len(own.outputs) > 1 else own.outputs[0]


def _body(*xs: Any, kernel: str) -> Any:
    """Zeros: what is inlined is only a call without elements; the template takes all others."""
    own = BY_DIGEST[kernel]
    made = [ops.broadcast(ops.const(0, out.dtype), out.shape) for out in own.outputs]
    return tuple(made) if len(made) > 1 else made[0]


class _Host:
    """Runs kernels for eager tensors in host memory, with a Session for each."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._lock = lock_of(self)

    def forget(self, kernel: str) -> None:
        with self._lock:
            self._sessions.pop(kernel, None)

    def run(self, *xs: np.ndarray, kernel: str) -> Any:
        own = BY_DIGEST[kernel]
        if all(0 in out.shape for out in own.outputs):
            made = [np.zeros(out.shape, out.dtype.numpy) for out in own.outputs]
            return tuple(made) if len(made) > 1 else made[0]
        with self._lock:
            session = self._sessions.get(kernel)
            if session is None:
                device = registry.host()
                attrs = {"name": "own", "params": {"kernel": kernel}}
                avals = tuple(map(aval, xs))
                program = one_op(device, "call", attrs, avals, (False,) * len(xs), "input")
                session = self._sessions[kernel] = Session(program, device)
            found = session.run(xs)
        return tuple(found) if len(found) > 1 else found[0]


_HOST = _Host()
register_composite(
    Composite("own", _abstract, _body, {"kernel": None}, numpy=_HOST.run, kind="own")
)
