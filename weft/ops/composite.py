"""What a composite is: a named op with a body written in primitives.

A template may claim a composite by its name; otherwise its body is inlined. So no template has to
find its work by matching patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from weft.graph.ir import Graph, Node
from weft.ops.primitive import AbstractRule, Aval, NumpyRule, VjpRule, building


@dataclass(frozen=True)
class Composite:
    """`body(*values, **params)` computes the result with ops functions, on arrays or Nodes; of a
    composite with several outputs it gives a tuple, and so does `abstract`. `numpy`, where given,
    is a faster form of the same for eager use. `vjp`, where given, is the derivative of the one
    output (else, and for several outputs, that of the body). `kind` is "movement" where the emitter
    knows how its index moves, so that it is fused as movement is. `defaults` holds every parameter
    with its default; None means that the caller must give it. `carries` (operand, output) says that
    the one becomes the other, and may share its buffer: state, of which there are no rows."""

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
