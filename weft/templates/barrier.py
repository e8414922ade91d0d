"""barrier: a copy of its first operand, in a kernel that waits for the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.templates.group import Group
from weft.templates.map import build_map
from weft.templates.registry import template


@template("barrier")
def build_barrier(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `barrier` call; the emitter knows its value."""
    return build_map(group, caps, config)
