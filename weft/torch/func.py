"""torch.func over weft.func: transforms of functions of weft.torch's tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from weft import func
from weft.core.trees import flatten, unflatten
from weft.func import functional_call as _functional_call, stack_module_state as _stacked
from weft.host.boundary import guard_calls, takes_function
from weft.tensor.core import Tensor
from weft.torch.tensor import adopt, own


def _ours(fn: Any) -> Any:
    """A function that is given, and gives, tensors of weft.torch."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return own(fn(*map(_adopted, args), **{k: _adopted(v) for k, v in kwargs.items()}))

    return call


def _adopted(value: Any) -> Any:
    if isinstance(value, Tensor) or not isinstance(value, dict | list | tuple):
        return adopt(value)
    leaves, tree = flatten(value, lambda v: isinstance(v, Tensor), "func")
    return unflatten(tree, [adopt(t) for t in leaves])


def _transform(of: Callable[..., Any]) -> Callable[..., Any]:
    """A transform that returns a function."""

    @functools.wraps(of)
    def transform(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return _ours(of(_ours(fn), *args, **kwargs))

    return transform


grad, grad_and_value = _transform(func.grad), _transform(func.grad_and_value)
vmap, jacrev, jacfwd = _transform(func.vmap), _transform(func.jacrev), _transform(func.jacfwd)
hessian = _transform(func.hessian)


def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The value, and the function from a cotangent to derivatives (then what else fn gave)."""
    options = {"has_aux": True} if has_aux else {}
    value, pull, *rest = func.vjp(_ours(fn), *primals, **options)
    return (own(value), _ours(pull), *own(rest))


def jvp(fn: Callable[..., Any], primals: Any, tangents: Any, **options: Any) -> Any:
    """The value and its derivative along tangents."""
    return own(func.jvp(_ours(fn), primals, tangents, **options))


def linearize(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Any]:
    """The value, and the function from tangents to its derivative."""
    value, push = func.linearize(_ours(fn), *primals)
    return own(value), _ours(push)


def functional_call(module: Any, parameters: Any, args: Any = (), kwargs: Any = None) -> Any:
    """module(*args, **kwargs) with other parameters."""
    return own(_functional_call(module, parameters, args, kwargs))


def stack_module_state(models: Any) -> Any:
    """Parameters and buffers of equal modules, stacked by name."""
    return own(_stacked(models))


_LISTED = sorted(n for n in func.__all__ if n != "value_and_grad")
guard_calls(globals(), ["functional_call"])
guard_calls(globals(), ["stack_module_state"], deep=True)
for _name in _LISTED:
    if _name not in ("functional_call", "stack_module_state"):
        globals()[_name] = takes_function(globals()[_name])


def __dir__() -> list[str]:
    return _LISTED
