"""Group signatures: two groups with equal signatures have the same kernel, so that the layers of a
model build each template once."""

from __future__ import annotations

import hashlib
from typing import Any

from weft.graph.ir import Node
from weft.templates.group import Group
from weft.transform.rebuild import frozen


def signature(group: Group) -> str:
    """A digest of everything a template sees of a group except names and buffer contents."""
    number: dict[int, int] = {}
    parts: list[Any] = [
        (group.kind, group.rows, group.rows_scale, sorted(group.in_place.items())),
    ]
    for x in group.inputs:
        number[id(x)] = len(number)
        parts.append(("buffer", x.shape, x.dtype.name))
    for node in _inside(group):
        if id(node) in number:
            continue
        number[id(node)] = len(number)
        parts.append(_entry(node, group, number))
    parts.append([number[id(x)] for x in group.outputs])
    parts.append(number[id(group.anchor)] if group.anchor is not None else None)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _entry(node: Node, group: Group, number: dict[int, int]) -> Any:
    attrs = frozen(node.attrs)
    if node.op == "input":  # a runtime scalar: its slot is what the kernel holds
        attrs = ("slot", node.attrs["name"], group.slots.get(node.attrs["name"]))
    operands = [number[id(x)] for x in node.inputs]
    return (node.op, operands, attrs, node.shape, node.dtype.name)


def _inside(group: Group) -> list[Node]:
    """The nodes a kernel computes, operands first, not looking behind its buffers."""
    stop = {id(x) for x in group.inputs}
    out: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(x, False) for x in reversed(group.outputs)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            out.append(node)
        elif id(node) not in seen and id(node) not in stop:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((x, False) for x in reversed(node.inputs))
    return out
