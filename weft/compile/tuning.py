"""Chooses the configuration of a group's template: its own default, or a row of a tuning table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.compile import tuned
from weft.core.caps import Caps
from weft.templates import registry
from weft.templates.group import Group
from weft.templates.product.problem import find_dots, problem_of

_DOTS = ("matmul", "matvec")


def shape_class(group: Group) -> str:
    """Groups that are tuned together: the dtypes in memory and, of products, how the right operand
    lies, N (of all dots together) and K; of others the last axis. Sizes are rounded up to powers of
    two. The number of rows never counts: a row's result must not depend on it."""
    if group.kind in _DOTS:
        dots = find_dots(group)
        p = problem_of(group, dots[:1])
        lies = "nk" if p.b_strides(0)[1] == 1 else "kn"
        many = " batched" if p.batches > 1 else ""
        wide = _bucket(sum(d.shape[-1] for d in dots))
        return f"{p.a.dtype.name} {p.bs[0].dtype.name} {lies} n{wide} k{_bucket(p.k)}{many}"
    node = group.anchor or group.outputs[0]
    if group.kind == "own":  # a user's kernel is tuned for the shapes that it was written for
        return str(node.attrs["params"]["kernel"])
    dtypes = dict.fromkeys(x.dtype.name for x in node.inputs or (node,))
    axis = node.inputs[0].shape if node.inputs else node.shape
    return f"{' '.join(dtypes)} w{_bucket(axis[-1] if axis else 1)}"


def _bucket(n: int) -> int:
    return 1 << (max(n, 1) - 1).bit_length()


def config_for(group: Group, caps: Caps) -> tuple[Mapping[str, Any], str]:
    """The configuration for a group and why it was chosen. A row of the active table counts only
    where the template lists its configuration for this very group."""
    table = tuned.active(caps)
    if table is None:
        return {}, "template default"
    shapes = shape_class(group)
    row = table.rows.get((group.kind, shapes))
    if row is None:
        return {}, "template default"
    if row.config and row.config not in registry.candidates(group, caps):
        return {}, "template default: what the table says does not suit this group"
    return row.config, f"tuned for {table.device}, {shapes}"
