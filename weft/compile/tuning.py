"""Tuning tables: (kind, class of target, class of shape) -> template configuration.

Templates carry good defaults; a row here overrides them where measurements on a class of target
say so. An empty configuration means the template's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.templates.group import Group

Key = tuple[str, str, str]
TABLE: dict[Key, Mapping[str, Any]] = {}


def caps_class(caps: Caps) -> str:
    """Targets that tune alike: CPUs by vector width, GPUs by subgroup and barrier cost."""
    if caps.is_cpu:
        return f"cpu{caps.lanes}"
    return f"gpu{caps.subgroup}" + ("" if caps.cheap_barrier else "-slow-barrier")


def shape_class(group: Group) -> str:
    """Sizes that tune alike: each axis of the output, rounded up to a power of four."""

    def bucket(n: int) -> int:
        size = 1
        while size < n:
            size *= 4
        return size

    node = group.anchor or group.outputs[0]
    return "x".join(str(bucket(n)) for n in node.shape) or "1"


def config_for(group: Group, caps: Caps) -> tuple[Mapping[str, Any], str]:
    """The configuration for a group and why it was chosen."""
    target = caps_class(caps)
    for key in ((group.kind, target, shape_class(group)), (group.kind, target, "*")):
        if key in TABLE:
            return TABLE[key], "tuned for " + " ".join(key)
    return {}, "template default"
