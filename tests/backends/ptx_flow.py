"""Is every register of a PTX kernel written before it is read, on every path that leads there?

Definite assignment: the registers that are written on all paths to a block are those that are
written at the end of every block before it. A write under a guard may not happen, so it only counts
where the guard has not changed since and the read has the same one.
"""

from __future__ import annotations

import itertools

import ptx_text
from ptx_text import Entry, Instruction


def unwritten(text: str) -> list[str]:
    """What each kernel of a module may read without having written it: one line per instruction."""
    return [f"{e.name}: {line}" for e in ptx_text.entries(text) for line in _unwritten(e)]


def _unwritten(entry: Entry) -> list[str]:
    starts, after = _blocks(entry)
    every = frozenset(r for i in entry.code for r in (*i.writes, *i.reads))
    written = dict.fromkeys(starts, every)  # before each block, on all paths so far
    written[0] = frozenset()
    todo = [0]
    seen: set[int] = set()
    found: dict[int, str] = {}
    while todo:
        start = todo.pop()
        seen.add(start)
        known = _through(entry, start, starts[start], written[start], found)
        for following in after[start]:
            both = written[following] & known
            if following not in seen or both != written[following]:
                written[following] = both
                todo.append(following)
    return [line for _, line in sorted(found.items())]


def _blocks(entry: Entry) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Where each block starts and ends, and the starts of those that may follow it."""
    code, count = entry.code, len(entry.code)
    cuts = {0, count, *entry.labels.values()}
    cuts |= {n + 1 for n, i in enumerate(code) if _leaves(i)}
    order = sorted(cuts)
    starts = dict(itertools.pairwise(order))
    after: dict[int, list[int]] = {}
    for start, end in starts.items():
        last = code[end - 1]
        goes = [entry.labels[last.operands[0]]] if last.op.startswith("bra") else []
        on = [end] if not _leaves(last) or last.guard else []
        after[start] = goes + on
        if count in after[start]:
            raise AssertionError(f"{entry.name} runs past its end")
    return starts, after


def _leaves(i: Instruction) -> bool:
    kind = i.op.split(".")[0]
    if kind in ("call", "brx", "exit", "trap"):
        raise AssertionError(f"the flow of {i} is not known")
    return kind in ("bra", "ret")


def _through(
    entry: Entry, start: int, end: int, before: frozenset[str], found: dict[int, str]
) -> frozenset[str]:
    """What is written after a block; notes in `found` what it reads that is not."""
    known, guarded = set(before), set[tuple[str, str]]()
    for n in range(start, end):
        i = entry.code[n]
        missing = [r for r in i.reads if r not in known and (i.guard, r) not in guarded]
        if missing:
            found[n] = f"{', '.join(missing)} in `{i}`"
        for register in i.writes:
            guarded = {(g, r) for g, r in guarded if g.lstrip("!") != register}
            if i.guard:
                guarded.add((i.guard, register))
            else:
                known.add(register)
    return frozenset(known)
