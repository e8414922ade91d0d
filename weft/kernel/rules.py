"""Tables of rules: a reader of kernels (the interpreter, a renderer) has one function per class of
nodes and one object that holds its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.core.records import dataclass

Rule = Callable[..., Any]  # (state, node) -> what the reader makes of the node
Table = dict[type, Rule]


class Rules(Table):
    """Tables as one; an entry of a later table replaces that of an earlier one. A node of a class
    without an entry is an error that names the class and the `reader`: what `fail` of the state
    makes of it."""

    def __init__(self, reader: str, *tables: Mapping[type, Rule]) -> None:
        super().__init__()
        self.reader = reader
        for table in tables:
            self.update(table)

    def __missing__(self, kind: type) -> Rule:
        return Refusal(f"{self.reader} has no rule for {kind.__name__}")


@dataclass(frozen=True)
class Refusal:
    """The rule of a node that a reader does not support."""

    why: str

    def __call__(self, state: Any, node: object) -> None:
        raise state.fail(self.why)
