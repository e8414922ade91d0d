"""What a compiled function keeps of each signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core import dtypes as dt
from weft.core.trees import Tree
from weft.graph.ir import Graph
from weft.program.parted import PartedProgram, PartedSession
from weft.program.session import Session
from weft.tensor.base import TensorBase
from weft.tensor.core import Tensor
from weft.tensor.device import StateArray
from weft.tensor.direct import Direct
from weft.tensor.guards import Facts
from weft.tensor.operands import shared_arguments

TRIALS = 4  # first calls of a Program, after each of which it may be known to be small


@dataclass
class Entry:
    """What one signature compiled to."""

    graph: Graph
    parted: PartedProgram  # one part, unless partition=True found that the device needs help
    tree: Tree  # of what the function returns
    wanted: list[tuple[int, str]]  # (argument number, name) of those that a Program takes
    roles: Sequence[str]  # of the outputs' buffers
    captured: dict[str, Tensor]
    states: frozenset[str]
    bound: dict[str, Any]  # name -> the value that the session's weight was made from
    fed: list[tuple[str, TensorBase]]  # inputs that take the .grad of a tensor
    grads: tuple[tuple[TensorBase, TensorBase | None], ...] = ()  # tensors and .grad after a run
    guards: tuple[Callable[[], bool], ...] = ()  # it serves while these hold
    facts: Facts | None = None  # the guards on modules, which can say what changed
    shared: Sequence[tuple[int, Tensor]] = ()  # arguments that were met as these tensors
    roots: frozenset[int] = frozenset()  # ids of what the trace read, if it leaves anything behind
    session: Session | PartedSession | None = None
    written: Sequence[StateArray] = ()  # the homes of `states`
    derived: Sequence[tuple[StateArray, int]] = ()  # states of others that it reads, as of when
    used: int = 0  # when it last ran: the number of that call
    trials: int = TRIALS  # calls after which a shorter way is looked for
    direct: Direct | None = None  # the shorter way

    def serves(self, leaves: Sequence[Any]) -> bool:
        """True if the trace is valid now, for these arguments."""
        if not all(holds() for holds in self.guards):
            return False
        if not self.roots:
            return True
        met = shared_arguments(leaves, self.roots, bool(self.grads))
        return len(met) == len(self.shared) and all(
            i == j and a is b for (i, a), (j, b) in zip(met, self.shared)
        )


@dataclass
class Signature:
    """Shapes and dtypes of a call's arrays, and what was compiled for them (one per guard)."""

    operands: tuple[tuple[tuple[int, ...], dt.DType], ...]
    entries: list[Entry]
