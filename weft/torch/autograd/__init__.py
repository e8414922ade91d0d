"""torch.autograd: derivatives by weft's tape, and functions with a derivative of their own."""

from __future__ import annotations

from typing import Any

from weft.core.errors import UsageError
from weft.host.boundary import guard_calls, users
from weft.ops.tape import plain, remember
from weft.tensor.autograd import enable_grad as enable_grad, no_grad
from weft.tensor.core import Tensor as Base
from weft.torch.autograd import functional as functional, graph as graph
from weft.torch.autograd.anomaly import (
    detect_anomaly as detect_anomaly,
    set_detect_anomaly as set_detect_anomaly,
)
from weft.torch.autograd.checks import gradcheck as gradcheck
from weft.torch.runtime import (
    backward as backward,
    grad as grad,
    inference_mode as inference_mode,
    set_grad_enabled as set_grad_enabled,
)
from weft.torch.tensor import Tensor, own


class _Kind(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Base)


class Variable(metaclass=_Kind):
    """A tensor of the same content without history, as scripts for PyTorch before 0.4 make it.
    Raises UsageError for `volatile`, which `no_grad` replaced. Every tensor is an instance."""

    def __new__(cls, data: Any, requires_grad: bool = False, volatile: Any = None) -> Any:
        if volatile:
            raise UsageError("Variable: volatile is no more in PyTorch; use torch.no_grad()")
        if not isinstance(data, Base):
            raise UsageError(f"Variable: {type(data).__name__}; expected a tensor")
        made: Any = own(data.detach())
        return made.requires_grad_() if requires_grad else made


class Context:
    """Values that `forward` leaves for `backward`, as attributes of any name."""

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors, as `saved_tensors`."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Changes nothing: integers and bools have no gradient."""

    def set_materialize_grads(self, value: bool) -> None:
        """Changes nothing: gradients that are missing are zeros."""


class Function:
    """A function with a derivative of its own: `forward(ctx, ...)` and `backward(ctx, ...)` are
    static methods; `apply` calls it."""

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """The function's value."""
        raise UsageError("autograd.Function: a subclass defines forward and backward")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The derivatives of the arguments of `forward`, None for those without."""
        raise UsageError("autograd.Function: a subclass defines forward and backward")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """The function's value, which remembers how to go back."""
        ctx = Context()
        ctx.needs_input_grad = tuple(isinstance(a, Base) and a.requires_grad for a in args)
        setup = getattr(cls, "setup_context", None)
        with no_grad():
            found = cls.forward(*args) if setup else cls.forward(ctx, *args)
            if setup:
                setup(ctx, args, found)
        results = found if isinstance(found, tuple) else (found,)
        made = tuple(cls._remembered(ctx, args, results, i) for i in range(len(results)))
        return made if isinstance(found, tuple) else made[0]

    @classmethod
    def _remembered(cls, ctx: Context, args: Any, results: Any, at: int) -> Any:
        """Result `at`, with its part of the derivative."""
        if not isinstance(results[at], Base):
            return results[at]

        def rule(g: Any, out: Any, values: Any) -> list[Any]:
            grads = [Tensor(g) if i == at else own(y * 0) for i, y in enumerate(results)]
            given = users(cls.backward)(ctx, *grads)
            given = given if isinstance(given, tuple) else (given,)
            wanted = [d for d, a in zip(given, args) if isinstance(a, Base)]
            return [None if d is None else d.value for d in wanted]

        inputs = tuple(a.value for a in args if isinstance(a, Base))
        return Tensor(remember(cls.__name__, plain(results[at].value), inputs, rule))


guard_calls(globals(), ["backward", "grad"], deep=True)
guard_calls(globals(), ["gradcheck"])


def __dir__() -> list[str]:
    return [
        "Function", "Variable", "backward", "detect_anomaly", "enable_grad", "functional", "grad",
        "gradcheck", "graph", "inference_mode", "no_grad", "set_detect_anomaly",
        "set_grad_enabled",
    ]  # fmt: skip
