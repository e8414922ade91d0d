"""A Graph as aligned text, one value per line, for `weft explain`, tests and messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.graph.ir import Graph, Node, toposort


def to_text(graph: Graph, bodies: bool = False) -> str:
    """One line per value: its number, shape, op with operands, attributes, user's line. With
    `bodies`, the body of each composite follows (each different one once)."""
    order = list(toposort((*graph.inputs, *graph.roots())))
    number = {id(n): f"%{i}" for i, n in enumerate(order)}
    rows = [_row(n, number) for n in order]
    widths = [max((len(r[i]) for r in rows), default=0) for i in range(3)]
    lines = [f"graph {graph.name}"]
    for a, b, c, where in rows:
        line = f"  {a.ljust(widths[0])}  {b.ljust(widths[1])}  {c.ljust(widths[2])}  {where}"
        lines.append(line.rstrip())
    for state, new in graph.assigns:
        lines.append(f"  {state.attrs['name']} <- {number[id(new)]}")
    lines.append("  return " + ", ".join(number[id(n)] for n in graph.outputs))
    if bodies:
        lines += _bodies(order)
    return "\n".join(lines)


def _bodies(order: list[Node]) -> list[str]:
    seen: dict[int, Graph] = {id(n.body): n.body for n in order if n.body is not None}
    lines: list[str] = []
    for body in seen.values():
        lines += ["", to_text(body, bodies=True)]
    return lines


def _row(node: Node, number: dict[int, str]) -> tuple[str, str, str, str]:
    kind = f"{node.dtype.name}[{', '.join(map(str, node.shape))}]"
    operands = " ".join(number[id(x)] for x in node.inputs)
    attrs = " ".join(f"{k}={_plain(v)}" for k, v in node.attrs.items())
    body = " ".join(x for x in (node.op, operands, attrs) if x)
    return number[id(node)], kind, body, f"# {node.where}" if node.where else ""


def _plain(value: Any) -> str:
    if isinstance(value, DType):
        return value.name
    if isinstance(value, np.ndarray):
        if value.size <= 4:
            return "[" + ", ".join(str(v) for v in value.reshape(-1).tolist()) + "]"
        return f"<{value.nbytes} bytes>"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_plain, value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_plain(v)}" for k, v in value.items()) + "}"
    return str(value)
