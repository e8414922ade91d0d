"""Recorded calls: the primitives that a call on host arrays bound, to be run again without it.

Which primitives a call binds depends on shapes and dtypes, and not on values unless the call reads
them. So what it bound once, it binds again: the shape rules hold, and the NumPy rules are all that
is left to run. A `Recording` listens to `bind`. It gives up (`spoil`) where a value is read,
written or drawn, and where an operand has an origin that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from weft.core.records import dataclass
from weft.ops.primitive import PRIMITIVES, RECORDED, Listener
from weft.ops.short_rules import short_rule
from weft.ops.tape import Tracked, plain


class Noted(Protocol):
    """A step that the tape notes."""

    def remember(self, out: Any, inputs: tuple[Any, ...]) -> Any:
        """The result of the step with its history."""


# (slot of the result, NumPy rule, slots of the operands, what the tape notes of it, True if
# operands may be Tracked)
Step = tuple[int, Callable[..., Any], tuple[int, ...], Noted | None, bool]
Note = Callable[[str, Mapping[str, Any]], Noted]  # of an op with its attributes


_LARGE = 1 << 16  # bytes of a constant
_SILENT = frozenset(("reshape", "transpose", "broadcast", "slice", "pad", "concat", "argmax"))


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a recorded call. `slots` holds its constants, and room for the rest; `loads`
    are (slot, number of the argument, True for its history), `checks` the slots of steps that only
    look at values. A `silent` one only moves elements,
    of which NumPy never warns."""

    slots: list[Any]
    loads: tuple[tuple[int, int, bool], ...]
    steps: tuple[Step, ...]
    silent: bool = False
    checks: frozenset[int] = frozenset()

    def run(self, arrays: Sequence[np.ndarray], history: Callable[[int], Tracked]) -> list[Any]:
        """The values of all slots, from those of the arguments."""
        held = self.slots.copy()
        for slot, number, taped in self.loads:
            held[slot] = history(number) if taped else arrays[number]
        for slot, rule, places, noted, taped in self.steps:
            if not taped:
                out = rule(*[held[p] for p in places])
                held[slot] = out if type(out) is np.ndarray else np.asarray(out)
                continue
            inputs = tuple([held[p] for p in places])
            out = np.asarray(rule(*map(plain, inputs)))
            held[slot] = out if noted is None else noted.remember(out, inputs)
        return held

    def function(self, slot: int) -> Callable[..., Any] | None:
        """The function from all arguments' arrays to the value of one slot; None where a history
        is wanted too. It may give a NumPy number where the value has no axes."""
        if any(taped for *_, taped in (*self.loads, *self.steps)):
            return None
        if [number for _, number, _ in self.loads] != list(range(len(self.loads))):
            return None
        first = tuple(place for place, *_ in self.loads)
        steps, wanted = [], {slot, *self.checks}
        for step in reversed(self.steps):
            if step[0] in wanted:
                wanted |= {*step[2]}
                steps.append(step)
        steps.reverse()
        if not steps:
            return None
        (at, rule, places, *_), *more = steps
        if places == first and not more:
            return rule
        if places == first and len(more) == 1 and more[0][2] == (at,):
            last = more[0][1]
            return lambda *xs: last(np.asarray(rule(*xs)))
        return partial(_followed, self.slots, first, tuple(steps), slot)


def _followed(
    slots: list[Any], first: tuple[int, ...], steps: tuple[Step, ...], slot: int, *arrays: Any
) -> Any:
    held = slots.copy()
    for place, array in zip(first, arrays):
        held[place] = array
    for at, rule, places, _, _ in steps:
        out = rule(held[places[0]]) if len(places) == 1 else rule(*[held[p] for p in places])
        held[at] = out if type(out) is np.ndarray else np.asarray(out)
    return held[slot]


def _rule(op: str, arrays: Sequence[Any], rule: Any, attrs: Mapping[str, Any]) -> Any:
    """The function of arrays like these that a step runs: a ufunc, the rule, or what the rule of a
    composite binds."""
    if (short := short_rule(op, arrays, attrs)) is not None:
        return short
    whole = partial(rule, **attrs) if attrs else rule
    if op != "call":
        return whole
    now = Recording(arrays)
    RECORDED.now = now
    try:
        out = now.made(whole(*arrays))
    finally:
        RECORDED.now = None
    if out is None or now.spoilt:
        return whole
    return now.plan().function(out) or whole


class Recording:
    """The primitives that a call binds, while it runs. Its arguments are `arrays`; `owners` are the
    tensors around them, and `tapes` their histories; `note` makes what the tape notes of a step."""

    def __init__(
        self,
        arrays: Sequence[Any],
        owners: Sequence[Any] = (),
        tapes: Sequence[Any] = (),
        note: Note | None = None,
    ) -> None:
        self._note_of = note
        self._kept: list[Any] = []  # the value of each slot, so that no other gets its id
        self._slots: dict[int, int] = {}  # id of a value -> its slot
        self._loads: list[tuple[int, int, bool]] = []
        self._steps: list[Step] = []
        self._constant: set[int] = set()
        self._repeats: dict[int, int] = {}  # slot of a broadcast -> that of its operand
        self._owners = {id(t): i for i, t in enumerate(owners)}
        self.spoilt = False
        self._silent = True
        self._checks: set[int] = set()
        for i, array in enumerate(arrays):
            self._loads.append((self._slot(array), i, False))
        for i, tracked in enumerate(tapes):
            if tracked is not None:
                self._loads.append((self._slot(tracked), i, True))

    def spoil(self) -> None:
        """Gives up: the call depends on more than shapes, dtypes and plain arguments."""
        self.spoilt = True

    def constant(self, value: Any) -> None:
        """Notes a value that only plain arguments made. A large one would be kept: it spoils."""
        if value.nbytes > _LARGE:
            return self.spoil()
        self._constant.add(self._slot(value))

    def check(self, value: Any, look: Callable[[Any], None]) -> None:
        """Notes that the call looks at a value, and goes on if that does not raise."""
        place = self._place(value)
        if place is None:
            return self.spoil()
        self._kept.append(None)
        self._checks.add(len(self._kept) - 1)
        self._steps.append((len(self._kept) - 1, look, (place,), None, False))

    def bind(
        self, listener: Listener, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]
    ) -> Any:
        """Runs an op, and notes it."""
        RECORDED.now = None
        try:
            out = listener.bind(op, inputs, attrs)
            if not self.spoilt:
                self._note(op, inputs, attrs, out)
        finally:
            RECORDED.now = self
        return out

    def _note(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any], out: Any) -> None:
        found = [self._place(x) for x in inputs]
        places = tuple(p for p in found if p is not None)
        rule: Any = PRIMITIVES[op].numpy
        tracked = isinstance(out, Tracked)
        known = isinstance(out, np.ndarray) or (tracked and not out.level)
        if None in found or rule is None or not known or isinstance(plain(out), tuple):
            return self.spoil()
        if tracked and self._note_of is None:
            return self.spoil()
        if self._constant.issuperset(places):
            return self.constant(out)
        slot = self._slot(out)
        run = _rule(op, [plain(x) for x in inputs], rule, attrs)
        taped = any(isinstance(x, Tracked) for x in inputs)
        noted = self._note_of(op, attrs) if tracked and self._note_of is not None else None
        if op == "broadcast" and not taped:
            self._repeats[slot] = places[0]
        elif isinstance(run, np.ufunc) and not taped and len(places) == 2:
            places = self._repeated(places, out.shape)
        self._silent = self._silent and op in _SILENT
        self._steps.append((slot, run, places, noted, taped))

    def _repeated(self, places: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """The operands of a ufunc, of which it broadcasts one itself if the other is whole."""
        for i, other in ((0, 1), (1, 0)):
            source = self._repeats.get(places[i])
            if source is not None and plain(self._kept[places[other]]).shape == shape:
                return (source, places[1]) if i == 0 else (places[0], source)
        return places

    def _slot(self, value: Any) -> int:
        self._kept.append(value)
        self._slots[id(value)] = len(self._kept) - 1
        return len(self._kept) - 1

    def _place(self, value: Any) -> int | None:
        """The slot of an operand; None if its origin is not known."""
        found = self._slots.get(id(value))
        if found is None and isinstance(value, Tracked) and value.pull is None:
            number = self._owners.get(id(value.owner))  # a leaf gets a new history at each use
            if number is not None and not value.level:
                found = self._slot(value)
                self._loads.append((found, number, True))
        return found

    def made(self, value: Any) -> int | None:
        """The slot of a value that follows from the arguments, or None."""
        found = self._place(value)
        return None if found in self._constant else found

    def __len__(self) -> int:
        """The number of steps so far."""
        return len(self._steps)

    def plan(self) -> Plan:
        """The recorded plan."""
        slots = [x if i in self._constant else None for i, x in enumerate(self._kept)]
        return Plan(slots, tuple(self._loads), tuple(self._steps), self._silent,
                    frozenset(self._checks))  # fmt: skip
