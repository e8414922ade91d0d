"""Groups in an order that respects data, in which two may become one.

Only groups near each other are joined, and only what lies between two is put in order again: so
time grows with the number of groups, whatever the length of the program.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.templates.group import Group

NEAR = 256  # places between two groups that may become one


class Order:
    """`groups` in a data order; None where a group has become part of another."""

    def __init__(self, groups: Sequence[Group]):
        self.groups: list[Group | None] = list(groups)
        self.place = {id(g): i for i, g in enumerate(groups)}

    def result(self) -> list[Group]:
        """The groups that are left."""
        return [g for g in self.groups if g is not None]

    def near(self, i: int) -> range:
        """The places after i of groups that group i may be joined with."""
        return range(i + 1, min(i + 1 + NEAR, len(self.groups)))

    def users_of(self, i: int, stop: int | None = None) -> set[int]:
        """The places near i (and before `stop`) of groups that need group i, directly or not."""
        places = self.near(i) if stop is None else range(i + 1, stop)
        writer = _writers(self.groups[i : places.stop], i)
        found: set[int] = set()
        for k in places:
            group = self.groups[k]
            if group is not None and any(n == i or n in found for n in needed(group, writer)):
                found.add(k)
        return found

    def leads_around(self, i: int, j: int) -> bool:
        """True if group j needs a group between that needs group i."""
        between, group = self.users_of(i, j), self.groups[j]
        assert group is not None
        writer = _writers(self.groups[i:j], i)
        return any(k in between for k in needed(group, writer))

    def join(self, i: int, j: int, joined: Group) -> None:
        """Puts `joined` in the place of groups i and j. Groups between them that j needs come
        first; they do not need i."""
        between = [g for g in self.groups[i + 1 : j] if g is not None]
        made: list[Group | None] = [*_ordered([joined, *between])]
        made += [None] * (j + 1 - i - len(made))
        self.groups[i : j + 1] = made
        self.place |= {id(g): i + k for k, g in enumerate(made) if g is not None}


def _ordered(groups: list[Group]) -> list[Group]:
    """The groups in a data order, as near to the given one as that allows."""
    writer = _writers(groups)
    placed: list[Group] = []
    done: set[int] = set()
    for start in range(len(groups)):
        stack = [start]
        while stack:
            k = stack[-1]
            if k in done:
                stack.pop()
                continue
            needs = [n for n in needed(groups[k], writer) if n not in done and n != k]
            if needs:
                stack.extend(needs)
                continue
            done.add(k)
            placed.append(groups[k])
            stack.pop()
    return placed


def _writers(groups: Sequence[Group | None], start: int = 0) -> dict[int, int]:
    """id of each value that is written -> the place of its group, counted from `start`."""
    return {id(o): i for i, g in enumerate(groups, start) if g is not None for o in g.outputs}


def needed(group: Group, writer: dict[int, int]) -> list[int]:
    """The places of the groups that write what `group` reads."""
    found = []
    for x in group.inputs:
        while id(x) not in writer and x.op == "reshape":
            x = x.inputs[0]
        if id(x) in writer:
            found.append(writer[id(x)])
    return found
