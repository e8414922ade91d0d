"""Gradients and Jacobians as functions: grad, grad_and_value, jacrev, jacfwd, hessian."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import GradientError
from weft.core.trees import flatten, unflatten
from weft.func.vmap import vmap
from weft.tensor.base import TensorBase
from weft.tensor.core import Tensor
from weft.tensor.derivatives import chosen, grad as grad, is_tensor, linearize, value_and_grad, vjp
from weft.tensor.keys import place_like

Fn = Callable[..., Any]
Argnums = int | Sequence[int]


def grad_and_value(fn: Fn, argnums: Argnums = 0, has_aux: bool = False) -> Fn:
    """Returns the function that gives (gradient, value), PyTorch's order of weft.value_and_grad;
    with `has_aux` (gradient, (value, aux)).

    >>> gradient, value = weft.func.grad_and_value(lambda x: x * x)(weft.tensor(3.0))
    >>> gradient.item(), value.item()
    (6.0, 9.0)
    """
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def reversed_(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[::-1]

    return reversed_


def _basis(leaves: Sequence[TensorBase]) -> list[Any]:
    """For each tensor the directions of all elements of all tensors: [total, *shape]."""
    sizes = [math.prod(t.shape) for t in leaves]
    total, at, made = sum(sizes), 0, []
    for t, n in zip(leaves, sizes):
        block = np.zeros((total, n), t.dtype.numpy)
        block[at : at + n] = np.eye(n, dtype=t.dtype.numpy)
        made.append(Tensor(place_like(t, block.reshape(total, *t.shape))))
        at += n
    return made


def _cut(x: Any, leaves: Sequence[TensorBase]) -> list[Any]:
    """The rows of x[total, ...] that belong to each tensor, [*shape, ...]."""
    out, at = [], 0
    for t in leaves:
        n = math.prod(t.shape)
        out.append(x[at : at + n].reshape(*t.shape, *x.shape[1:]))
        at += n
    return out


def _floats(name: str, leaves: Sequence[TensorBase]) -> None:
    for t in leaves:
        if not t.dtype.is_float:
            raise GradientError(f"{name}: {t._known()} is not of floats; cast it, or leave it out")


def jacrev(
    fn: Fn, argnums: Argnums = 0, has_aux: bool = False, chunk_size: int | None = None
) -> Fn:
    """Returns the function that gives the Jacobian of `fn`, [*result, *argument] for each result
    and argument: one backward pass for each element of the results, mapped (at most `chunk_size` at
    once). It nests as the result, and in it as the arguments at `argnums`. With `has_aux` fn
    returns (result, aux), and the function (Jacobian, aux).

    >>> weft.func.jacrev(lambda x: x * x)(weft.tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    @functools.wraps(fn)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        of, given = chosen("jacrev", fn, argnums, args, kwargs)
        out, pull, *aux = vjp(of, *given, has_aux=has_aux)
        ends, outputs = flatten(out, is_tensor, "jacrev")
        _floats("jacrev", ends)
        basis = unflatten(outputs, _basis(ends))
        rows = vmap(pull, chunk_size=chunk_size)(basis)
        leaves, tree = flatten(rows, is_tensor, "jacrev")
        by_input = [_cut(x, ends) for x in leaves]
        found = [unflatten(tree, [cut[i] for cut in by_input]) for i in range(len(ends))]
        picked = [f[0] if isinstance(argnums, int) else f for f in found]
        made = unflatten(outputs, picked)
        return (made, *aux) if has_aux else made

    return jacobian


def jacfwd(
    fn: Fn, argnums: Argnums = 0, has_aux: bool = False, chunk_size: int | None = None
) -> Fn:
    """Returns the same as jacrev, by one forward derivative for each element of the arguments:
    cheaper where these are fewer than those of the result.

    >>> weft.func.jacfwd(lambda x: x * x)(weft.tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    @functools.wraps(fn)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        of, given = chosen("jacfwd", fn, argnums, args, kwargs)
        kept: list[Any] = []

        def first(*values: Any) -> Any:
            made = of(*values)
            if has_aux:
                made, aux = made
                kept[:] = [aux]
            return made

        _, push = linearize(first, *given)
        starts, tree = flatten(given, is_tensor, "jacfwd")
        _floats("jacfwd", starts)
        columns = vmap(push, chunk_size=chunk_size)(*unflatten(tree, _basis(starts)))
        ends, outputs = flatten(columns, is_tensor, "jacfwd")
        made = []
        for column in ends:
            cut = [_last(x, t.ndim) for x, t in zip(_cut(column, starts), starts)]
            nested = unflatten(tree, cut)
            made.append(nested[0] if isinstance(argnums, int) else nested)
        found = unflatten(outputs, made)
        return (found, *kept) if has_aux else found

    return jacobian


def _last(x: Any, count: int) -> Any:
    """x with its first `count` axes moved behind the others."""
    return x.permute(*range(count, x.ndim), *range(count))


def hessian(fn: Fn, argnums: Argnums = 0) -> Fn:
    """Returns the function that gives the second derivatives of `fn`: jacfwd of jacrev.

    >>> weft.func.hessian(lambda x: (x**3).sum())(weft.tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacfwd(jacrev(fn, argnums), argnums)
