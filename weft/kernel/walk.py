"""Walks over the nodes of a kernel, and rebuilds the statements that hold others."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

from weft.kernel.ir import Array, Assign, Block, Expr, For, If, Kernel, Let, Stmt, Tile

T = TypeVar("T")

# Fields that never hold children (the memory and tiles that a node names are not any).
_PLAIN = {
    "source", "target", "type", "op", "name", "slot", "kind", "dim", "attr", "lanes", "step",
    "nontemporal", "mutable", "unroll", "dtype", "size", "space", "threads", "flops", "bytes",
    "rows", "cols", "tiles", "memory", "stride", "barriers", "resident", "clean",
}  # fmt: skip
_NODE = (Expr, Stmt)


@functools.cache
def child_fields(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a class of nodes that may hold children."""
    return tuple(f.name for f in fields(kind) if f.name not in _PLAIN)


def children(node: object) -> list[Expr | Stmt]:
    """The direct Expr and Stmt fields of a node, in field order (Buffers and Arrays named by a
    Load or Store are not children)."""
    kind: Any = type(node)
    found: list[Expr | Stmt] = []
    for name in child_fields(kind):
        value = getattr(node, name)
        if isinstance(value, _NODE):
            found.append(value)
        elif isinstance(value, tuple):
            found += [item for item in value if isinstance(item, _NODE)]
    return found


def operands(e: Expr) -> list[Expr]:
    """The children of an expression."""
    return children(e)  # type: ignore[return-value]


def walk(node: Expr | Stmt) -> Iterator[Expr | Stmt]:
    """The node and all below it, each before its children, in the order of the text."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        kind: Any = type(one)
        if child_fields(kind):  # most nodes are variables and constants
            stack += children(one)[::-1]


def statements(s: Stmt) -> Iterator[Stmt]:
    """The statement and all within it, in the order of the text."""
    stack = [s]
    while stack:
        one = stack.pop()
        yield one
        stack += [c for c in children(one)[::-1] if isinstance(c, Stmt)]


def declared(kernel: Kernel) -> list[str]:
    """The names of all that a kernel declares."""
    found = [b.name for b in kernel.buffers]
    for s in statements(kernel.body):
        if isinstance(s, Let | For):
            found.append(s.var.name)
        elif isinstance(s, Array | Tile):
            found.append(s.name)
    return found


def assigned(s: Stmt) -> dict[str, list[Expr]]:
    """The variables that a statement assigns, and what they become."""
    found: dict[str, list[Expr]] = defaultdict(list)
    for one in statements(s):
        if isinstance(one, Assign):
            found[one.var.name].append(one.value)
    return found


def changed(node: T, **fields: Any) -> T:
    """Returns the node with these fields, or the node itself if it has them already."""
    if all(getattr(node, name) is value for name, value in fields.items()):
        return node
    whole: Any = node
    made: T = replace(whole, **fields)
    return made


def with_body(kernel: Kernel, body: Block) -> Kernel:
    """The kernel with another body: a plain Kernel, also of one that is parsed when it is used."""
    parts = {f.name: getattr(kernel, f.name) for f in fields(Kernel)}
    return Kernel(**{**parts, "body": body})


def rewritten(block: Block, make: Callable[[Stmt], Iterable[Stmt] | None]) -> Block:
    """The block with what `make` gives for each statement in its place; of a statement that it
    gives None for, the blocks within are rewritten."""

    def inner(s: Stmt) -> Stmt:
        if isinstance(s, Block):
            return rewritten(s, make)
        if isinstance(s, For):
            return replace(s, body=rewritten(s.body, make))
        if isinstance(s, If):
            other = None if s.other is None else rewritten(s.other, make)
            return replace(s, then=rewritten(s.then, make), other=other)
        return s

    body: list[Stmt] = []
    for s in block.body:
        made = make(s)
        body += (inner(s),) if made is None else made
    return Block(tuple(body))
