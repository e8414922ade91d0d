"""Group signatures: two groups with equal signatures have the same kernel, so that the layers of a
model build each template once."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from weft.graph.ir import Node, toposort
from weft.templates.group import Group
from weft.transform.rebuild import frozen


class Number(NamedTuple):
    """A number in a group's kernel that it could read from memory: the value of a 0-d const node,
    or the start of a slice along an axis."""

    node: Node
    axis: int | None
    value: Any


def signature(group: Group) -> str:
    """A digest of everything a template sees of a group except names and buffer contents."""
    return hashlib.sha256(repr(described(group)).encode()).hexdigest()


def described(group: Group, numbers: list[Number] | None = None) -> tuple[Any, ...]:
    """Everything a template sees of a group except names and buffer contents, as a key. With a list
    of `numbers` they go there, and only their places are described."""
    number: dict[int, int] = {}
    parts: list[Any] = [
        (group.kind, group.rows, group.rows_scale, *sorted(group.in_place.items())),
    ]
    for x in group.inputs:
        number[id(x)] = len(number)
        order = [x.attrs[k] for k in ("interleave", "item") if k in x.attrs]
        parts.append(("buffer", x.shape, x.dtype.name, *order))
    stop = frozenset(number)
    for node in toposort(group.outputs, stop):
        if id(node) not in stop:
            number[id(node)] = len(number)
            parts.append(_entry(node, group, number, numbers))
    parts.append(tuple([number[id(x)] for x in group.outputs]))
    parts.append(number[id(group.anchor)] if group.anchor is not None else None)
    return tuple(parts)


def _entry(node: Node, group: Group, number: dict[int, int], numbers: list[Number] | None) -> Any:
    attrs: Any = node.attrs
    if node.op == "input":  # a runtime scalar: its slot is what the kernel holds
        attrs = ("slot", node.attrs["name"], group.slots.get(node.attrs["name"]))
    elif numbers is not None and node.op == "const":
        numbers.append(Number(node, None, node.attrs["value"].item()))
        attrs = None
    elif node.op == "slice":
        attrs = _slice_attrs(node, group, number, numbers)
    operands = tuple([number[id(x)] for x in node.inputs])
    return (node.op, operands, frozen(attrs), node.shape, node.dtype.name)


def _slice_attrs(
    node: Node, group: Group, number: dict[int, int], numbers: list[Number] | None
) -> Any:
    """The attributes of a slice without the starts (and so the stops) that are numbers."""
    read = {axis: number[id(x)] for axis, x in group.starts.get(id(node), ())}
    if numbers is None and not read:
        return node.attrs
    starts, steps = list(node.attrs["starts"]), node.attrs["steps"]
    for axis, (n, whole) in enumerate(zip(node.shape, node.inputs[0].shape)):
        if axis in read:
            starts[axis] = ("read", read[axis])
        elif numbers is not None and 0 < n < whole and steps[axis] > 0:
            numbers.append(Number(node, axis, starts[axis]))
            starts[axis] = "number"
    return {"starts": tuple(starts), "steps": steps}
