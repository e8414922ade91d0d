"""What a primitive is, the table of all of them, and `bind`, which hands an op to its listener.

A primitive's shape rule, NumPy meaning, scalar lowering (and, with training, its vjp) stand side
by side in one record. Nothing else in weft knows an op by name except templates that claim a
composite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from weft.core.dtypes import DType
from weft.graph.ir import Shape


@dataclass(frozen=True)
class Aval:
    """What is known of a value before it exists: shape and dtype."""

    shape: Shape
    dtype: DType


AbstractRule = Callable[..., Aval]  # (*avals, **attrs) -> Aval; raises ShapeError, DTypeError
NumpyRule = Callable[..., np.ndarray]  # (*arrays, **attrs) -> array of the abstract shape/dtype
LowerRule = Callable[..., Any]  # elementwise only: (builder, *exprs, **attrs) -> Expr
VjpRule = Callable[..., Any]  # (grad, out, *inputs, **attrs) -> one gradient per input


@dataclass(frozen=True)
class Primitive:
    """One of the primitives. `kind` says which template family computes it: "elementwise",
    "movement", "reduce", "dot", "gather", "scatter", "sort", "source" or "call"."""

    name: str
    kind: str
    abstract: AbstractRule
    numpy: NumpyRule | None
    lower: LowerRule | None = None
    vjp: VjpRule | None = None


PRIMITIVES: dict[str, Primitive] = {}


def register(primitive: Primitive) -> Primitive:
    """Adds a primitive to the table; a second one of the same name is a bug."""
    if primitive.name in PRIMITIVES:
        raise ValueError(f"primitive {primitive.name!r} is registered twice")
    PRIMITIVES[primitive.name] = primitive
    return primitive


class Listener(Protocol):
    """Whoever turns a bound op into a value: eager NumPy, a device, or the tracer."""

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any: ...
