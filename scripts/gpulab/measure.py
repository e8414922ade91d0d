"""Cases measured round by round, the contenders in turn, so that all meet the same machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab.cases import Case
from gpulab.targets import WEFT
from gpulab.worker import Clock, Store, Worker

ROUNDS = 3
ONCE = 0.4  # seconds of one contender in one round, at most


@dataclass(frozen=True)
class Contender:
    """One side of a measurement: its name in reports, its worker, and the variant to ask for."""

    name: str
    worker: Worker
    variant: str


def run(
    store: Store,
    cases: Sequence[Case],
    contenders: Callable[[Case], Sequence[Contender]],
    clock: Clock,
    note: Callable[[str], None],
) -> str:
    """Measures cases that are not yet in the store, or in which weft failed; returns what is
    missing, "" if nothing.
    A case's seconds are its share of what is left, compiling included."""
    todo = [c for c in cases if not _whole(store.data["cases"].get(c.name, {}))]
    left_out = []
    for i, case in enumerate(todo):
        share = Clock(clock.left / (len(todo) - i) * (1.4 if i + 1 < len(todo) else 1.0))
        share.end = min(share.end, clock.end)
        if clock.left < 1:
            left_out.append(case.name)
            continue
        note(case.name)
        found = _case(case, contenders(case), share, note)
        store.data["cases"][case.name] = found
        store.save()
        if not found["done"]:
            left_out.append(f"{case.name} (in part)")
    broken = [c.name for c in cases if _failed(store.data["cases"].get(c.name, {}))]
    said = [f"time was up before {', '.join(left_out)}"] * bool(left_out)
    said += [f"weft failed in {', '.join(broken)} (see Times)"] * bool(broken)
    return "; ".join(said)


def _failed(found: dict[str, Any]) -> bool:
    """True if weft failed in a case that was tried."""
    return "error" in found.get("results", {}).get(WEFT, {})


def _whole(found: dict[str, Any]) -> bool:
    return bool(found.get("done")) and not _failed(found)


def _case(
    case: Case, contenders: Sequence[Contender], clock: Clock, note: Callable[[str], None]
) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, Any]]] = {c.name: [] for c in contenders}
    failed: dict[str, str] = {}
    done = True
    for turn in range(ROUNDS):
        for c in contenders:
            if c.name in failed:
                continue
            if clock.left < 0.5:
                done = done and turn > 0  # one whole round is enough for a figure
                break
            note(f"{case.name}: {c.name}, round {turn + 1}")
            budget = min(ONCE, clock.left / len(contenders) / 2)
            got = c.worker.ask(clock.left + 5, run=case.name, variant=c.variant, budget=budget)
            if "error" in got:
                failed[c.name] = got["error"]
            else:
                rounds[c.name].append(got)
    for worker in {id(c.worker): c.worker for c in contenders}.values():
        if worker.process is not None:
            worker.ask(30, drop=case.name)
    results: dict[str, Any] = {name: _middle(case, r) for name, r in rounds.items() if r}
    results |= {name: {"error": why} for name, why in failed.items()}
    return {"part": case.part, "op": case.op, "dtype": case.dtype, "shape": list(case.shape),
            "unit": case.unit, "work": case.work, "done": done, "results": results}  # fmt: skip


def _middle(case: Case, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The peers' keys over all rounds: the median of medians, the least and the greatest."""
    medians = [r["median_ms"] for r in rounds]
    median = statistics.median(medians)
    found = dict(rounds[-1]) | {
        "median_ms": median, "min_ms": min(r["min_ms"] for r in rounds),
        "max_ms": max(r["max_ms"] for r in rounds), "n": sum(r["n"] for r in rounds),
        "rounds_ms": medians,
    }  # fmt: skip
    if case.unit:
        found[case.unit] = round(case.work / median / 1e6, 2)
    if "tok_s" in found:
        found["tok_s"] = round(statistics.median(r["tok_s"] for r in rounds), 2)
    return found
