"""Groups that templates refused to write, so that grouping makes smaller kernels of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.compile.analysis import FUSIBLE, base
from weft.templates.group import Group
from weft.transform.rebuild import kind_of


@dataclass
class Refusals:
    """Notes on values that templates could not write. `alone` has the ids of values in groups of
    their own; `stored` has values stored to make groups smaller (id -> reason)."""

    alone: set[int] = field(default_factory=set)
    stored: dict[int, str] = field(default_factory=dict)

    def learn(self, group: Group) -> bool:
        """Notes a group that its template refused; False where it cannot become smaller. First it
        is no longer joined with others, then its epilogue is cut off, then its prologue."""
        made = {id(o) for o in group.outputs}
        if not made <= self.alone:
            self.alone |= made
            return True
        why, anchor = f"no {group.kind} kernel could be written with it", group.anchor
        if anchor is not None and id(anchor) not in made | self.stored.keys():
            self.stored[id(anchor)] = why
            return True
        roots = group.outputs if anchor is None else (*group.outputs, anchor)
        given = {id(x) for x in group.inputs} | made | self.stored.keys()
        inner = [x for node in roots for x in node.inputs if id(x) not in given]
        able = [base(x) for x in inner if kind_of(base(x)) in FUSIBLE]
        found = {id(x): why for x in able if id(x) not in given}
        self.stored |= found
        return bool(found)
