"""Walks over the nodes of a kernel, and rebuilds the statements that hold others."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, TypeVar

from weft.core.records import values_of
from weft.kernel.ir import Array, Assign, Block, Expr, For, If, Kernel, Let, Stmt, Tile

T = TypeVar("T")

# How a field holds children, by its declared type. Others hold none: the memory and the tiles that
# a node names are declared elsewhere.
_ONE, _MAYBE, _MANY = range(3)
_HOLDS = {
    "Expr": _ONE, "Var": _ONE, "Block": _ONE, "Store": _ONE, "Expr | None": _MAYBE,
    "Block | None": _MAYBE, "tuple[Expr, ...]": _MANY, "tuple[Stmt, ...]": _MANY,
    "tuple[Expr, Expr, Expr]": _MANY,
}  # fmt: skip
_STATEMENTS = {"Block", "Store", "Block | None", "tuple[Stmt, ...]"}


@functools.cache
def child_fields(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a class of nodes that may hold children."""
    return tuple(f.name for f in fields(kind) if f.type in _HOLDS)


class _Readers(dict[type, Callable[[Any], Sequence[Any]]]):
    """By a node's class, the function that returns its children in fields of these declared types.
    Each is made at its first use."""

    def __init__(self, types: Collection[str]) -> None:
        self.types = types

    def __missing__(self, kind: Any) -> Callable[[Any], Sequence[Any]]:
        held = [f for f in fields(kind) if f.type in self.types]
        made = self[kind] = _reader([f.name for f in held], [_HOLDS[str(f.type)] for f in held])
        return made


def _reader(names: list[str], ways: list[int]) -> Callable[[Any], Sequence[Any]]:
    read = values_of(names)
    if ways == [_MANY]:
        return attrgetter(names[0])
    if _MANY not in ways:
        if _MAYBE not in ways:
            return read
        return lambda node: [value for value in read(node) if value is not None]
    return lambda node: [x for value in read(node) for x in _listed(value)]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


_children, _inner = _Readers(_HOLDS), _Readers(_STATEMENTS)


def children(node: object) -> Sequence[Expr | Stmt]:
    """The direct Expr and Stmt fields of a node, in field order (Buffers and Arrays named by a
    Load or Store are not children)."""
    return _children[type(node)](node)


def operands(e: Expr) -> Sequence[Expr]:
    """The children of an expression."""
    return _children[type(e)](e)


def walk(node: Expr | Stmt) -> Iterator[Expr | Stmt]:
    """The node and all below it, each before its children, in the order of the text."""
    return _below(node, _children)


def statements(s: Stmt) -> Iterator[Stmt]:
    """The statement and all within it, in the order of the text."""
    return _below(s, _inner)


def _below(node: T, readers: _Readers) -> Iterator[T]:
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        if below := readers[type(one)](one):  # most nodes are variables and constants
            stack += below[::-1]


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
