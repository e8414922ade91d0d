"""Joins elementwise kernels into the one other elementwise kernel of their shape that they feed.

A value may have to be in memory for another reason (the new state of an optimiser, an output). Its
only reader among the kernels then computes and writes it, so it does not read it from memory.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compile.analysis import base, straight
from weft.compile.cuts import WORK, work_of
from weft.core.caps import Caps
from weft.templates.group import Group


def merge_maps(groups: list[Group], caps: Caps) -> list[Group]:
    """The groups with such pairs joined, as long as the buffers fit the target's bindings and the
    work one kernel."""
    readers: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        for x in group.inputs:
            readers.setdefault(id(base(x)), []).append(i)
    merged: dict[int, Group] = {}  # by the place of the group that took the others in
    gone: set[int] = set()
    for i, group in enumerate(groups):
        users = readers.get(id(base(group.outputs[-1])), [])
        if len(users) != 1 or group.kind != "map" or group.alone or i in gone:
            continue
        mine = merged.pop(i, group)
        user = merged.get(users[0], groups[users[0]])
        joined = _joined(mine, user)
        fits = joined is not None and len(joined.inputs) + len(joined.outputs) <= caps.max_bindings
        if joined is None or not fits or work_of(mine) + work_of(user) > WORK:
            if mine is not group:
                merged[i] = mine
            continue
        merged[users[0]] = joined
        gone.add(i)
    return [merged.get(i, g) for i, g in enumerate(groups) if i not in gone]


def _joined(first: Group, user: Group) -> Group | None:
    """One kernel for both; None where `user` reads what `first` makes at other positions."""
    alike = (
        user.kind == "map"
        and not user.alone
        and (first.rows, first.rows_scale) == (user.rows, user.rows_scale)
    )
    shape = user.outputs[0].shape
    if not alike or any(o.shape != shape for o in (*first.outputs, *user.outputs)):
        return None
    made = {id(o) for o in first.outputs}
    reshaped = any(id(base(x)) in made and id(x) not in made for x in user.inputs)
    if reshaped or not straight(user, made):
        return None
    inputs = {id(x): x for x in (*first.inputs, *user.inputs) if id(x) not in made}
    name = f"{user.name}+{len(first.outputs)}" if len(first.outputs) > 1 else user.name
    return replace(
        user, inputs=tuple(inputs.values()), outputs=(*first.outputs, *user.outputs), name=name
    )
