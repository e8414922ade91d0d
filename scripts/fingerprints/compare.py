"""The differences between two runs: the first stage of each case, counted by group."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fingerprints.stages import Record, Texts

Hashes = list[str]


@dataclass(frozen=True)
class Change:
    """The first stage at which a case differs, and its hashes before and after."""

    case: str
    stage: str
    before: Hashes
    after: Hashes

    @property
    def group(self) -> str:
        return self.case.partition("/")[0]


def listed(record: Record) -> list[tuple[str, Hashes]]:
    """A record's stages in order. Kernels are listed by their template."""
    found: list[tuple[str, Hashes]] = []
    if "graph" in record:
        found.append(("traced graph", [record["graph"]]))
    found += [(f"pass {name!r}", [hashed]) for name, hashed in record.get("passes", ())]
    if "plan" in record:
        found.append(("plan", [record["plan"]]))
    kinds: dict[str, Hashes] = {}
    for kind, hashed in record.get("kernels", ()):
        kinds.setdefault(f"kernels of {kind}", []).append(hashed)
    found += kinds.items()
    if "program" in record:
        found.append(("saved Program", [record["program"]]))
    found += [(f"text for {name}", hashes) for name, hashes in record.get("texts", {}).items()]
    return found + [("error", [record["error"]]) for _ in "e" if "error" in record]


def change(case: str, before: Record, after: Record) -> Change | None:
    """The first stage that differs; None where both records are equal in the stages of both. A
    pass that only one has counts where no pass before it differs."""
    old, new = listed(before), dict(listed(after))
    ended = [name for name, _ in old if name not in new]
    for stage, hashes in [*old, *((s, []) for s in new if s not in dict(old))]:
        if stage in ended and _shorter(before, after):
            continue
        if new.get(stage, []) != hashes:
            return Change(case, stage, hashes, new.get(stage, []))
    return None


def _shorter(before: Record, after: Record) -> bool:
    """True if one run ended at an earlier stage than the other, as with `--stage`."""
    return ("texts" in before) != ("texts" in after) and "error" not in {**before, **after}


def changes(before: Mapping[str, Record], after: Mapping[str, Record]) -> list[Change]:
    """Those of the cases that both have."""
    both = [(case, before[case], record) for case, record in after.items() if case in before]
    return [found for found in (change(*each) for each in both) if found is not None]


def summary(
    before: Mapping[str, Record], after: Mapping[str, Record], whole: bool
) -> tuple[list[str], bool]:
    """Lines that say what differs, a line per group and stage, and whether anything does. Cases
    that are gone count where the run was of all cases (`whole`)."""
    found = changes(before, after)
    counts = Counter((c.stage, c.group) for c in found)
    first = {(c.stage, c.group): c.case for c in reversed(found)}
    rows = [
        (f"{stage}, {group}", str(n), f"for example {first[stage, group]}")
        for (stage, group), n in counts.items()
    ]
    gone = [case for case in before if case not in after] if whole else []
    new = [case for case in after if case not in before]
    rows += [("gone", str(len(gone)), f"for example {gone[0]}")] if gone else []
    rows += [("new", str(len(new)), f"for example {new[0]}")] if new else []
    widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
    lines = [f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c}" for a, b, c in rows]
    if found:
        lines.insert(0, "First stage that differs, group, number of cases:")
    same = len(after) - len(found) - len(new)
    lines.append(f"{same:,} of {len(after):,} cases identical")
    return lines, bool(found or gone)


def shown(found: Change, texts: Texts) -> Iterator[str]:
    """The unified diff of the first stage that differs; what was not kept is said."""
    yield f"{found.case}: {found.stage}"
    if found.stage == "error" or not (found.before and found.after):
        yield from (f"- {x}" for x in found.before)
        yield from (f"+ {x}" for x in found.after)
        return
    for i in range(max(len(found.before), len(found.after))):
        pair: list[Any] = [x[i] if i < len(x) else None for x in (found.before, found.after)]
        if pair[0] == pair[1]:
            continue
        held = ["" if key is None else texts.get(key) for key in pair]
        if None in held:
            yield f"{'before' if held[0] is None else 'after'}: the text was not kept (--keep)"
            continue
        old, new = ((text or "").splitlines() for text in held)
        yield from difflib.unified_diff(old, new, f"before/{i}", f"after/{i}", lineterm="")
