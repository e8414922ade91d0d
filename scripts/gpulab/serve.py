"""A worker: answers requests, one JSON object per line, on what was its stdin and stdout.

{"run": case, "variant": v, "budget": seconds} -> {"median_ms": ...} or {"error": why}
{"ask": name, ...} -> what the side's function of that name returns
{"drop": case} -> {} (its operands are freed); {"quit": true} ends it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from gpulab import clock
from gpulab.cases import Case

Prepared = tuple[Callable[[], object], Callable[[], object]]  # (call, wait for the device)


class Side:
    """One contender: prepares cases and times them."""

    asks: Mapping[str, Callable[..., dict[str, Any]]] = {}

    def __init__(self, cases: Mapping[str, Case]) -> None:
        self.cases = cases
        self.kept: dict[tuple[str, str], Any] = {}

    def prepare(self, case: Case, variant: str) -> Any:
        """The operands that `time` needs for a case, kept until it is dropped."""
        raise NotImplementedError

    def time(self, case: Case, made: Any, budget: float) -> dict[str, Any]:
        """The figures of a case; by default of a (call, wait) pair."""
        call, sync = made
        return clock.summary(clock.measure(call, sync, budget), case.unit, case.work)

    def release(self) -> None:
        """Gives memory back to the device after a drop."""

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        if "drop" in message:
            for key in [k for k in self.kept if k[0] == message["drop"]]:
                del self.kept[key]
            gc.collect()
            self.release()
            return {}
        if "ask" in message:
            rest = {k: v for k, v in message.items() if k != "ask"}
            return self.asks[message["ask"]](**rest)
        case, variant = self.cases[message["run"]], str(message["variant"])
        if (case.name, variant) not in self.kept:
            self.kept[case.name, variant] = self.prepare(case, variant)
        return self.time(case, self.kept[case.name, variant], float(message["budget"]))


def serve(side: Side) -> None:
    """Answers until "quit" or the end of the input; what others print goes to stderr."""
    sys.stdout.flush()
    reply = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        message = json.loads(line)
        if "quit" in message:
            return
        try:
            found = side.answer(message)
        except Exception as error:  # whatever it is, the other cases go on
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(found), file=reply, flush=True)
