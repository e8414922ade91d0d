"""torch.autograd.functional: derivatives of a function at given inputs, as numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.errors import UsageError
from weft.torch.tensor import Tensor, public


def _of(transform: Any, fn: Callable[..., Any], inputs: Any) -> Any:
    many = isinstance(inputs, tuple)
    at = inputs if many else (inputs,)
    found = transform(fn, argnums=tuple(range(len(at))))(*at)
    return found if many else _first(found)


def _first(found: Any) -> Any:
    """The part of the only input: of each output if the function has several."""
    if isinstance(found[0], tuple):
        return tuple(part[0] for part in found) if len(found) > 1 else found[0][0]
    return found[0]


@public
def jacobian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False,
    vectorize: bool = False, strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The derivatives of outputs by inputs: output's shape + input's shape; in tuples by output
    and by input where there are tuples of them."""
    from weft.torch.func import jacfwd, jacrev

    found = _of(jacfwd if strategy == "forward-mode" else jacrev, func, inputs)
    return found if create_graph else _plain(found)


@public
def hessian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False,
    vectorize: bool = False, outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The second derivatives of a function with one number as its output."""
    from weft.torch.func import hessian as second

    found = _of(second, func, inputs)
    return found if create_graph else _plain(found)


def _plain(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(map(_plain, found))
    return found.detach()


def _given(inputs: Any) -> tuple[Any, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


@public
def vjp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
    strict: bool = False,
) -> Any:  # fmt: skip
    """The value, and v times the Jacobian. v may be left out for an output of one number."""
    from weft.torch import func as transforms

    value, pull = transforms.vjp(func, *_given(inputs))
    found = pull(_weights(value) if v is None else v)
    found = found if isinstance(inputs, tuple) else found[0]
    return (value, found) if create_graph else (_plain(value), _plain(found))


@public
def jvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
    strict: bool = False,
) -> Any:  # fmt: skip
    """The value, and the Jacobian times v. v may be left out for an input of one number."""
    from weft.torch import func as transforms

    at = _given(inputs)
    along = tuple(map(_weights, at)) if v is None else _given(v)
    value, found = transforms.jvp(func, at, along)
    return (value, found) if create_graph else (_plain(value), _plain(found))


@public
def vhp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
    strict: bool = False,
) -> Any:  # fmt: skip
    """The value of a function with one number as its output, and v times its second derivatives.
    v may be left out for an input of one number."""
    from weft.torch import func as transforms

    at = _given(inputs)
    along = tuple(map(_weights, at)) if v is None else _given(v)
    places = tuple(range(len(at)))
    value, (_, found) = func(*at), transforms.jvp(transforms.grad(func, places), at, along)
    found = found if isinstance(inputs, tuple) else found[0]
    return (value, found) if create_graph else (_plain(value), _plain(found))


hvp = vhp  # second derivatives are symmetric


def _weights(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.numel() != 1:
        raise UsageError("v may be left out for one number alone; give v")
    return x.new_ones(x.shape)


def __dir__() -> list[str]:
    return ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
