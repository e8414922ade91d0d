"""Elementwise functions of tensors that a traced function has as one node each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft import ops
from weft.graph.ir import Graph, Node
from weft.ops.pointwise import known
from weft.ops.primitive import Aval, aval
from weft.tensor.base import TensorBase, values
from weft.transform.fold import fold
from weft.transform.prune import cse


class Pointwise:
    """`fn(*tensors)`, elementwise with further 0-d operands, gives a tuple of tensors.
    While a function is traced, fn is traced once for operands of the same shapes and dtypes, and
    each call is one node. Elsewhere it runs as it is."""

    def __init__(self, fn: Callable[..., tuple[Any, ...]]) -> None:
        self.fn = fn
        self._known: dict[tuple[Aval, ...], str] = {}

    def __call__(self, *tensors: TensorBase) -> tuple[Any, ...]:
        """The results of fn."""
        given = values("pointwise", tensors)
        if not any(isinstance(x, Node) for x in given):
            return self.fn(*tensors)
        like, key = tensors[0], tuple(map(aval, given))
        if key not in self._known:
            inputs = tuple(ops.input_node(f"x{i}", x.shape, x.dtype) for i, x in enumerate(key))
            made = self.fn(*map(like._wrap, inputs))
            work = Graph(inputs, tuple(x.value for x in made), name="pointwise")
            self._known[key] = known(cse(fold(work)))  # simple already where it becomes a kernel
        out = ops.call("pointwise", *given, work=self._known[key])
        return tuple(map(like._wrap, out if isinstance(out, tuple) else (out,)))
