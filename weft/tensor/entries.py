"""The Programs that a compiled function keeps, by the signatures of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.core.trees import Tree
from weft.graph.ir import Graph
from weft.program.parted import PartedProgram, PartedSession
from weft.program.session import Session
from weft.tensor.base import TensorBase
from weft.tensor.core import Tensor
from weft.tensor.device import StateArray
from weft.tensor.direct import Direct, direct_call
from weft.tensor.guards import TraceReads
from weft.tensor.operands import content, program_dtype, shared_arguments

TRIALS = 4  # first calls of a Program, after each of which it may be known to be small
DIRECT = 4  # shorter ways that a compiled function tries


@dataclass
class CompiledSignature:
    """The compiled form of one signature."""

    graph: Graph
    parted: PartedProgram  # one part, unless partition=True found that the device needs help
    tree: Tree  # the nesting of the function's result
    wanted: list[tuple[int, str]]  # (argument number, name) of each argument that a Program takes
    roles: Sequence[str]  # one role per output buffer
    captured: dict[str, Tensor]
    states: frozenset[str]
    bound: dict[str, Any]  # name -> the value that the session's weight was made from
    fed: list[tuple[str, TensorBase]]  # inputs that take the .grad of a tensor
    grads: tuple[tuple[TensorBase, TensorBase | None], ...] = ()  # tensors and .grad after a run
    guards: tuple[Callable[[], bool], ...] = ()  # the entry is valid while all hold
    facts: TraceReads | None = None  # the guards on modules, which can say what changed
    checks: tuple[Callable[[Any], None], ...] = ()  # functions that may reject a run
    shared: Sequence[tuple[int, Tensor]] = ()  # arguments that the trace took as these tensors
    roots: frozenset[int] = frozenset()  # ids of what the trace read, if it leaves anything behind
    session: Session | PartedSession | None = None
    written: Sequence[StateArray] = ()  # the homes of `states`
    derived: Sequence[tuple[StateArray, int]] = ()  # states of others that it reads, as of when
    used: int = 0  # when it last ran: the number of that call
    trials: int = TRIALS  # calls after which a shorter way is looked for
    direct: Direct | None = None  # the shorter way

    @property
    def current(self) -> bool:
        """True if the session is over what the tensors hold now."""
        bound = self.bound.items()
        return (
            self.session is not None
            and all(content(self.captured[name]) is value for name, value in bound)
            and all(home.version == version for home, version in self.derived)
        )

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
    entries: list[CompiledSignature]


class ProgramCache:
    """The `most` Programs that were used last, by signature."""

    def __init__(self, most: int) -> None:
        self.direct: list[tuple[CompiledSignature, Direct]] = []  # shorter ways, the latest first
        self._most = most
        self._signatures: dict[Any, Signature] = {}
        self._seen: dict[Any, Signature] = {}  # the same, by the dtypes as they were given

    def entries(self) -> list[CompiledSignature]:
        return [entry for s in self._signatures.values() for entry in s.entries]

    def find(self, name: str, shape: Any, values: list[Any]) -> Signature:
        """The signature of a call of the function `name`. Raises UsageError for an argument that
        is neither a tensor nor hashable."""
        seen = (shape, tuple([(v.shape, v.dtype) for v in values]))
        try:
            known = self._seen.get(seen)
        except (TypeError, RecursionError):
            raise UsageError(
                f"{name}: an argument is neither a tensor nor hashable; pass tensors, "
                "arrays, numbers, strings, or tuples, lists, dicts and dataclasses of them"
            ) from None
        if known is None:
            if len(self._seen) >= 2 * self._most:  # some have lost their entries
                self._seen.clear()
                self._signatures = {k: s for k, s in self._signatures.items() if s.entries}
            # dtypes have several names: NumPy's, weft's, 64 bits for 32
            operands = tuple((v.shape, program_dtype(v)) for v in values)
            made = Signature(operands, [])
            known = self._seen[seen] = self._signatures.setdefault((shape, operands), made)
        return known

    def make_room(self) -> None:
        """Forgets what was used least recently, Program and memory, so that one more fits."""
        while len(kept := self.entries()) >= self._most:
            oldest = min(kept, key=lambda entry: entry.used)
            for signature in self._signatures.values():
                signature.entries = [e for e in signature.entries if e is not oldest]
            self.lengthen(oldest)

    def shorten(self, entry: CompiledSignature, count: int) -> None:
        """Looks for a shorter way to make calls with `count` arrays like the one just made."""
        if entry.trials:
            entry.trials -= 1
            plain = not (entry.states or entry.fed or entry.grads or entry.derived or entry.checks)
            plain = plain and len(entry.wanted) == count
            if plain and isinstance(entry.session, Session):
                bound = [(entry.captured[name], value) for name, value in entry.bound.items()]
                names = [name for _, name in entry.wanted]
                play = direct_call(entry.session, names, entry.tree, entry.guards, bound)
                entry.direct, entry.trials = play, 0 if play else entry.trials
        if entry.direct is not None and all(e is not entry for e, _ in self.direct):
            self.direct = [(entry, entry.direct), *self.direct[: DIRECT - 1]]

    def lengthen(self, entry: CompiledSignature) -> None:
        """Forgets the short way of calling an entry after its session changed."""
        self.direct = [pair for pair in self.direct if pair[0] is not entry]
        entry.direct, entry.trials = None, TRIALS
