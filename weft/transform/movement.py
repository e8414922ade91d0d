"""Movement simplification: identities vanish, chains of one kind become one, no-op transposes and
broadcasts become reshapes (which cost nothing on a contiguous buffer)."""

from __future__ import annotations

from weft.graph.ir import Node, Shape
from weft.transform.rebuild import make, remake


def simplify_movement(node: Node) -> Node | None:
    """A simpler node with the same value, or None."""
    if node.op == "concat":
        return _concat(node)
    if node.op == "call":
        return None
    (x,) = node.inputs
    if node.op in ("reshape", "broadcast") and x.shape == node.shape:
        return x
    return _RULES[node.op](node, x)


def _reshape(node: Node, x: Node) -> Node | None:
    if x.op == "reshape":
        return make("reshape", x.inputs[0], shape=node.shape, where=node.where)
    if x.op == "broadcast":
        return reshaped_broadcast(x, node.shape)
    return None


def reshaped_broadcast(x: Node, shape: Shape) -> Node | None:
    """reshape(broadcast(a), shape) as broadcast(reshape(a)), or None where dims mix."""
    source, wide = x.inputs[0], x.shape
    if not x.size:
        return None
    if source.size == 1:
        flat = source if source.shape == () else make("reshape", source, shape=())
        return make("broadcast", flat, shape=shape) if shape else flat
    narrow = (1,) * (len(wide) - len(source.shape)) + source.shape
    kept: list[int] = []
    for old, new in matched_dims(wide, shape):
        if all(narrow[i] == wide[i] for i in old):
            kept += [shape[i] for i in new]
        elif all(narrow[i] == 1 for i in old):
            kept += [1] * len(new)
        else:
            return None
    inner = source if source.shape == tuple(kept) else make("reshape", source, shape=tuple(kept))
    return inner if inner.shape == shape else make("broadcast", inner, shape=shape)


def matched_dims(a: Shape, b: Shape) -> list[tuple[list[int], list[int]]]:
    """Axes of `a` and `b` (two shapes of one size) in the smallest groups of equal products."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        left, right, p, q = [], [], 1, 1
        if i < len(a):
            left, p, i = [i], a[i], i + 1
        if j < len(b):
            right, q, j = [j], b[j], j + 1
        while p != q:
            if (p < q and i < len(a)) or j >= len(b):
                left.append(i)
                p *= a[i]
                i += 1
            else:
                right.append(j)
                q *= b[j]
                j += 1
        groups.append((left, right))
    return groups


def _transpose(node: Node, x: Node) -> Node | None:
    perm = tuple(node.attrs["perm"])
    if perm == tuple(range(len(perm))):
        return x
    if x.op == "transpose":
        inner = tuple(x.attrs["perm"][p] for p in perm)
        return make("transpose", x.inputs[0], perm=inner, where=node.where)
    moved = [p for p in perm if x.shape[p] != 1]
    if moved == sorted(moved):
        return make("reshape", x, shape=node.shape, where=node.where)
    if x.op == "broadcast" and x.inputs[0].size == 1:
        return reshaped_broadcast(x, node.shape)
    return None


def _broadcast(node: Node, x: Node) -> Node | None:
    if x.size == node.size:
        return make("reshape", x, shape=node.shape, where=node.where)
    if x.op == "broadcast":
        return make("broadcast", x.inputs[0], shape=node.shape, where=node.where)
    return None


def _slice(node: Node, x: Node) -> Node | None:
    starts, _, steps = (tuple(node.attrs[k]) for k in ("starts", "stops", "steps"))
    if node.shape == x.shape and all(s == 1 for s in steps):
        return x
    if x.op == "broadcast" and x.inputs[0].size == 1 and node.size:
        return reshaped_broadcast(x, node.shape) or None
    if x.op == "concat" and all(s == 1 for s in steps):
        return _slice_of_part(node, x)
    if x.op == "slice" and all(s > 0 for s in (*steps, *x.attrs["steps"])) and node.size:
        inner = [tuple(x.attrs[k]) for k in ("starts", "stops", "steps")]
        begin = tuple(a + s * k for a, s, k in zip(inner[0], starts, inner[2]))
        step = tuple(s * k for s, k in zip(steps, inner[2]))
        end = tuple(b + (n - 1) * s + 1 for b, n, s in zip(begin, node.shape, step))
        return make("slice", x.inputs[0], starts=begin, stops=end, steps=step, where=node.where)
    return None


def _slice_of_part(node: Node, joined: Node) -> Node | None:
    """Takes a slice within one part of a concat from that part."""
    axis, at = joined.attrs["axis"], 0
    starts, stops = list(node.attrs["starts"]), list(node.attrs["stops"])
    for part in joined.inputs:
        size = part.shape[axis]
        if at <= starts[axis] and stops[axis] <= at + size and node.size:
            starts[axis], stops[axis] = starts[axis] - at, stops[axis] - at
            ends, steps = tuple(stops), node.attrs["steps"]
            return make("slice", part, starts=tuple(starts), stops=ends, steps=steps)
        at += size
    return None


def _pad(node: Node, x: Node) -> Node | None:
    return x if not any((*node.attrs["low"], *node.attrs["high"])) else None


def _concat(node: Node) -> Node | None:
    axis = node.attrs["axis"]
    parts = tuple(x for x in node.inputs if x.shape[axis])
    if len(parts) == 1:
        return parts[0]
    return remake(node, parts) if 0 < len(parts) < len(node.inputs) else None


_RULES = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
}
