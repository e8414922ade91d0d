"""The parts of torch besides functions: gradients, devices, files, compilation."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from weft.backends.cpu.host import thread_count
from weft.backends.registry import opened
from weft.core.errors import CallError, GradientError, UsageError
from weft.core.notices import say
from weft.host.boundary import check_options
from weft.nn.module import Module
from weft.tensor import autograd as tape
from weft.tensor.compiling import compile as _compile
from weft.tensor.core import Tensor
from weft.torch.tensor import Size as Size, adopt, own

# -- gradients


class set_grad_enabled:
    """Records for differentiation, or does not, from here on or inside a `with`."""

    def __init__(self, mode: bool) -> None:
        self._context: Any = tape.enable_grad() if mode else tape.no_grad()
        self._context.__enter__()

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


def inference_mode(mode: bool = True) -> Any:
    """`no_grad`, if mode holds."""
    return tape.no_grad() if mode else tape.enable_grad()


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _total(outputs: Any, weights: Any) -> Any:
    """The sum of outputs, each weighted by what goes with it."""
    results, total = _listed(outputs), None
    weights = weights if isinstance(weights, Sequence) else [weights] * len(results)
    for y, w in zip(results, weights):
        part = y if w is None else (y * w).sum()
        total = part if total is None else total + part
    if total is None:
        raise UsageError("no outputs to differentiate; give at least one tensor")
    return total


def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: Any = None,
    create_graph: bool = False, allow_unused: bool | None = None,
    materialize_grads: bool = False, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The derivatives of outputs (their sum, weighted by grad_outputs) by inputs. That by an input
    which no output depends on is None with allow_unused, zeros with materialize_grads; otherwise
    raises GradientError."""
    given, total = _listed(inputs), _total(outputs, grad_outputs)
    check_options("grad", options, ["only_inputs", "is_grads_batched"])
    if options.get("is_grads_batched"):
        raise UsageError("grad: is_grads_batched is not supported; use weft.torch.func.vmap")
    found = list(own(tape.grad(total, given, None, create_graph)))
    for i in () if materialize_grads else tape.unused(total, given):
        if not allow_unused:
            raise GradientError(
                f"grad: no output depends on input {i}, {given[i]._known()}; leave it out, or give "
                "allow_unused=True for None in its place"
            )
        found[i] = None
    return tuple(found)


def backward(
    tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    """Adds the derivatives of tensors (their sum, weighted by grad_tensors) to the .grad of each
    leaf they were computed from, or of those in `inputs`."""
    total = _total(tensors, grad_tensors)
    tape.backward(total, None, create_graph, None if inputs is None else _listed(inputs))


# -- devices


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Changes nothing: on one device weft's results are the same bits in every run."""


def are_deterministic_algorithms_enabled() -> bool:
    """True: see `use_deterministic_algorithms`."""
    return True


def get_float32_matmul_precision() -> str:
    """ "highest": float32 products are computed in float32."""
    return "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Changes nothing: float32 products are computed in float32."""


def get_num_threads() -> int:
    """The threads that the CPU's kernels use."""
    cpu = opened("cpu")
    return thread_count() if cpu is None else int(cpu.info.extra["threads"])


def set_num_threads(number: int) -> None:
    """Limits the threads that the CPU's kernels use, as WEFT_NUM_THREADS does. Once the CPU is open
    it keeps its threads, which is said. Raises UsageError for a number below 1."""
    if not isinstance(number, int) or number < 1:
        raise UsageError(f"set_num_threads: {number!r:.40}; expected a whole number above 0")
    os.environ["WEFT_NUM_THREADS"] = str(number)
    if get_num_threads() != thread_count():
        say(f"set_num_threads: the CPU keeps its {get_num_threads()} threads, on which kernels "
            "have run; set them before the first kernel")  # fmt: skip


class Layout(str):
    """An order of elements in memory. weft has one, so that none of them changes anything."""

    __slots__ = ()


contiguous_format, preserve_format, channels_last, channels_last_3d, strided = (
    Layout(f"torch.{name}")
    for name in (
        "contiguous_format", "preserve_format", "channels_last", "channels_last_3d", "strided"
    )
)  # fmt: skip


# -- compilation


# Options of PyTorch's compiler, which change no number here.
_COMPILING = ["fullgraph", "dynamic", "backend", "mode", "options", "name", "disable"]


def compile(model: Any = None, *, device: Any = None, **options: Any) -> Any:
    """The function or module as one Program per signature (weft.compile); PyTorch's options of its
    own compiler mean nothing here. A call runs eagerly if its gradient may be needed outside: the
    call of a module in training, or with arguments that require gradients. To compile training,
    pass a function that computes the loss, calls backward and steps."""
    check_options("compile", options, _COMPILING)
    if model is None:
        return lambda fn: compile(fn, device=device, **options)
    if not callable(model):
        kind = type(model).__name__
        raise CallError(f"compile: {kind} is not a function or a module; give one of these")
    if options.get("disable"):
        return model
    found = _compile(_taking_ours(model), device="cpu" if device is None else device)

    def run(*args: Any, **kwargs: Any) -> Any:
        if tape.is_grad_enabled() and _trains(model, (*args, *kwargs.values())):
            return model(*args, **kwargs)
        return own(found(*args, **kwargs))

    return _CompiledModule(model, run) if isinstance(model, Module) else run


def _trains(model: Any, operands: tuple[Any, ...]) -> bool:
    own_leaves = model.parameters() if isinstance(model, Module) else ()
    given = [x for x in operands if isinstance(x, Tensor)]
    return any(t.requires_grad for t in (*own_leaves, *given))


class _CompiledModule:
    """A module whose calls run compiled; everything else is the module's."""

    def __init__(self, module: Module, run: Callable[..., Any]) -> None:
        self._orig_mod, self._run = module, run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._orig_mod, name)


def _taking_ours(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose tensors are weft.torch's."""

    @functools.wraps(getattr(fn, "forward", fn), updated=())  # its name and its arguments' names
    def traced(*args: Any, **kwargs: Any) -> Any:
        return fn(*map(adopt, args), **{k: adopt(v) for k, v in kwargs.items()})

    return traced
