"""Composites: named ops with a body written in primitives.

A template may claim a composite by name; otherwise the body is inlined. So templates find their
work without matching patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from weft.core.records import dataclass
from weft.graph.ir import Graph, Node
from weft.ops.primitive import AbstractRule, Aval, NumpyRule, VjpRule, building


@dataclass(frozen=True)
class Composite:
    """The definition of a composite.

    `body(*values, **params)` computes the result with ops functions, on arrays or Nodes. A
    composite with several outputs gives a tuple, and so does `abstract`.
    `numpy`, if given, is a faster form of the body for eager use.
    `vjp`, if given, is the derivative of a single output; otherwise the body is differentiated.
    `kind` is "movement" where the emitter knows how the index moves, so that it fuses as movement
    does, and "pointwise" where each result needs one element of each operand.
    `defaults` holds every parameter with its default; None marks one that the caller must give.
    `carries` (operand, output) says that the operand becomes the output and may share its buffer.
    It is state, and its rows do not count. -1 is the last operand.
    """

    name: str
    abstract: AbstractRule
    body: Callable[..., Any]
    defaults: Mapping[str, Any]
    numpy: NumpyRule | None = None
    vjp: VjpRule | None = None
    kind: str = "call"
    carries: tuple[int, int] | None = None


COMPOSITES: dict[str, Composite] = {}


def register_composite(composite: Composite) -> Composite:
    """Adds a composite to the table; a second one of the same name is a bug."""
    if composite.name in COMPOSITES:
        raise ValueError(f"composite {composite.name!r} is registered twice")
    COMPOSITES[composite.name] = composite
    return composite


def body_graph(name: str, avals: tuple[Aval, ...], params: Mapping[str, Any]) -> Graph:
    """The composite's body as a Graph for operands like `avals`; equal requests share one."""
    return _body(name, avals, tuple(sorted(params.items())))


@lru_cache(maxsize=512)
def _body(name: str, avals: tuple[Aval, ...], params: tuple[tuple[str, Any], ...]) -> Graph:
    inputs = tuple(
        Node("input", (), {"name": f"x{i}", "role": "input"}, a.shape, a.dtype)
        for i, a in enumerate(avals)
    )
    with building():
        out = COMPOSITES[name].body(*inputs, **dict(params))
    return Graph(inputs, out if isinstance(out, tuple) else (out,), name=name)
