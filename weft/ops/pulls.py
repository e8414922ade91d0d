"""Recorded derivatives: the gradients of the operands of a recorded step, without checks.

A step of a recorded call (ops/replay) meets the same shapes and dtypes each time, and so does its
derivative. The first backward pass through a step is recorded as the call was; later ones run the
NumPy rules that it bound. A gradient with steps of its own is computed when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from weft.core.records import dataclass
from weft.ops.primitive import RECORDED, tracing
from weft.ops.replay import Recording, Step
from weft.ops.tape import Tracked, is_tracked, vjp

# An operand's gradient: None, or the steps that it takes beyond the common ones and its slot (no
# steps, and False, where it is made in any case).
Part = tuple[tuple[Step, ...], int, bool] | None


@dataclass(frozen=True, slots=True)
class _Derivative:
    """The gradients of a step's operands, from its gradient, its result and its operands: those
    are the first slots. The common `steps` run in any case."""

    slots: list[Any]
    steps: tuple[Step, ...]
    parts: tuple[Part, ...]

    def gradients(self, given: Sequence[np.ndarray]) -> list[Any]:
        """The gradients, or functions that make them."""
        held = self.slots.copy()
        held[: len(given)] = given
        with np.errstate(all="ignore"):
            _run(self.steps, held)
        return [
            None if part is None else held[part[1]] if not part[2] else partial(_late, part, held)
            for part in self.parts
        ]


def _run(steps: Sequence[Step], held: list[Any]) -> None:
    for slot, rule, places, _, _ in steps:
        out = rule(held[places[0]]) if len(places) == 1 else rule(*[held[p] for p in places])
        held[slot] = out if type(out) is np.ndarray else np.asarray(out)


def _late(part: tuple[tuple[Step, ...], int, bool], held: list[Any]) -> Any:
    with np.errstate(all="ignore"):
        _run(part[0], held)
    return held[part[1]]


class Pulls:
    """The derivative of one step, an op with its attributes: recorded when it is first asked for
    with plain arrays."""

    __slots__ = ("_known", "attrs", "op")

    def __init__(self, op: str, attrs: Mapping[str, Any]) -> None:
        self.op, self.attrs = op, attrs
        self._known: _Derivative | bool | None = None  # False: it must take the long way

    def remember(self, out: Any, inputs: tuple[Any, ...]) -> Tracked:
        """The result of the step with a history of level 0."""
        made = Tracked(out, inputs, level=0)
        me, wanted = ref(made), [type(x) is Tracked for x in inputs]

        def pull(grad: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
            if is_tracked(operands, 0):
                return vjp(self.op, grad, me(), operands, self.attrs)
            return self.gradients(grad, out, operands, wanted)

        made.pull = pull
        made.name = str(self.attrs["name"]) if self.op == "call" else self.op
        return made

    def gradients(
        self, grad: Any, out: Any, operands: tuple[Any, ...], wanted: Sequence[bool]
    ) -> Sequence[Any]:
        """The gradients of the operands: each None, a value or a function that makes one. `out` is
        the result. Only those that are `wanted` must be given."""
        known = self._known
        plain = type(grad) is np.ndarray and all(type(x) is np.ndarray for x in operands)
        if known is False or not plain or RECORDED.now is not None or tracing():
            return vjp(self.op, grad, out, operands, self.attrs)
        if grad.dtype is not out.dtype or grad.shape != out.shape:
            return vjp(self.op, grad, out, operands, self.attrs)
        if type(known) is _Derivative:
            return known.gradients((grad, out, *operands))
        if any(grad is x for x in (out, *operands)):  # which of them a rule takes, cannot be told
            return vjp(self.op, grad, out, operands, self.attrs)
        made, self._known = self._recorded(grad, out, operands, wanted)
        return made

    def _recorded(
        self, grad: Any, out: Any, operands: tuple[Any, ...], wanted: Sequence[bool]
    ) -> tuple[Sequence[Any], _Derivative | bool]:
        given = (grad, out, *operands)
        now = Recording(given)
        RECORDED.now = now
        try:
            made = list(vjp(self.op, grad, out, operands, self.attrs))
            common = len(now)
            ends = [common]
            late = [callable(x) and bool(w) for x, w in zip(made, wanted)]
            for i, x in enumerate(made):
                made[i] = x() if late[i] else None if not wanted[i] else x
                ends.append(len(now))
        finally:
            RECORDED.now = None
        plan, parts = now.plan(), list[Part]()
        for i, x in enumerate(made):
            slot = None if x is None else now.made(x)
            if now.spoilt or (x is not None and slot is None):
                return made, False
            steps = plan.steps[ends[i] : ends[i + 1]]
            parts.append(None if slot is None else (steps, slot, late[i]))
        own = [{step[0] for step in part[0]} for part in parts if part is not None]
        needed = [_needed(part) for part in parts if part is not None]
        shared = any(
            not needed[i].isdisjoint(own[k]) for i in range(len(own)) for k in range(len(own))
            if i != k
        )  # fmt: skip
        if shared or len(plan.loads) != len(given):
            return made, False
        return made, _Derivative(plan.slots, plan.steps[:common], tuple(parts))


def _needed(part: tuple[tuple[Step, ...], int, bool]) -> set[int]:
    """The slots that a gradient's own steps read, and its own."""
    return {part[1], *(p for step in part[0] for p in step[2])}
