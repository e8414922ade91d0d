"""Attention that never holds the T x T matrix: picks the variant for the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.templates.attention import forward_threads, forward_units, whole_cpu
from weft.templates.attention.forward import Call
from weft.templates.group import Group
from weft.templates.product.epilogue import find_call
from weft.templates.registry import template


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """What `weft tune` may choose from for this group (see `forward_units`)."""
    node = find_call(group)
    units = not caps.is_cpu
    return forward_units.candidates(group, node, caps) if units else []


@template("attention")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `attention` call: q[B,H,T,D], k and v [B,G,S,D] and
    optionally lengths[B], operands read in place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    node = find_call(group)
    if caps.is_cpu:
        return whole_cpu.build(group, node, caps, config)
    plan = forward_units.plan_for(group, node, caps, config)
    if plan is not None:
        call = Call(group, node, caps)
        return call.kernel(forward_units.Units(call, plan))
    return forward_threads.build(group, node, caps, config)
