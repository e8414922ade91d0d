"""Rejects values that a target cannot hold, with an error naming the nodes."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.caps import Caps
from weft.core.errors import DTypeError, LimitError
from weft.graph.ir import Graph, Node, results, toposort
from weft.transform.rebuild import kind_of, shown


def check_dtypes(graph: Graph, caps: Caps) -> None:
    """Raises DTypeError naming the first values whose dtype the target cannot store."""
    wrong: list[Node] = []
    for node in toposort((*graph.inputs, *graph.roots())):
        if node.dtype not in caps.dtypes:
            wrong.append(node)
    if wrong:
        named = ", ".join(shown(n) for n in wrong[:3])
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DTypeError(f"{caps.name} has no {wrong[0].dtype.name}: {named}{more}; cast before")


def check_elements(nodes: Iterable[Node], caps: Caps) -> None:
    """Raises LimitError naming the first value with more elements than an index can count."""
    for node in nodes:
        if node.size > caps.max_elements:
            raise LimitError(
                f"{shown(node)} has {node.size:,} elements; {caps.name} counts at most "
                f"{caps.max_elements:,} in one value: split the value"
            )


def reason(node: Node, caps: Caps) -> str | None:
    """Returns the reason why the target cannot compute a value (it or an operand does not fit), or
    None.

    Stricter than compile_graph: a value that fusion would keep out of memory counts as stored.
    """
    if node.op == "result":  # one kernel writes all outputs of a call
        return reason(node.inputs[0], caps)
    given = results(node)
    inside = toposort(node.body.roots()) if node.body is not None else ()
    for value in (*given, *node.inputs, *inside):
        if value.dtype not in caps.dtypes:
            return f"{caps.name} has no {value.dtype.name}"
    for value in (*given, *node.inputs):
        if value.nbytes > caps.max_buffer_bytes:
            return (
                f"{_kind(value)} of {value.nbytes:,} bytes, {caps.name} allows "
                f"{caps.max_buffer_bytes:,} per buffer"
            )
        if value.size > caps.max_elements:
            return (
                f"{_kind(value)} of {value.size:,} elements, {caps.name} counts at most "
                f"{caps.max_elements:,}"
            )
    stored = {id(x): x.nbytes for x in (*given, *node.inputs) if x.attrs.get("role") != "weight"}
    bindings = sum(map(caps.bindings, stored.values()))
    largest = max(stored.values(), default=0)
    if largest > caps.max_binding_bytes and bindings > caps.max_bindings:
        return f"{bindings} bindings of large values, {caps.name} allows {caps.max_bindings}"
    return None


def offer(graph: Graph, caps: Caps, host: Caps) -> str:
    """The end of a refusal's message: how partition=True would help ("" where it would not)."""
    nodes = list(graph.nodes())
    work = [n for n in nodes if kind_of(n) != "source"]
    outside = [n for n in work if reason(n, caps) is not None]
    if not outside or any(reason(n, host) for n in nodes):
        return ""  # the CPU cannot compute it either
    return (
        f"; with partition=True {len(outside)} of {len(work)} nodes would run on the CPU, first "
        f"{shown(outside[0])}"
    )


def _kind(node: Node) -> str:
    return f"{node.attrs['role']} {node.attrs['name']!r}" if node.op == "input" else node.op
