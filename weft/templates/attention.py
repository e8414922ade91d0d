"""Attention that never holds the T x T matrix: picks the variant for the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.templates import attention_blocks, attention_cpu, attention_gpu
from weft.templates.group import Group
from weft.templates.matmul_tail import find_call
from weft.templates.registry import template


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """What `weft tune` may choose from for this group (see `attention_blocks`)."""
    node = find_call(group)
    units = not caps.is_cpu
    return attention_blocks.candidates(group, node, caps) if units else []


@template("attention")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `attention` call: q[B,H,T,D], k and v [B,G,S,D] and
    optionally lengths[B], operands read in place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    node = find_call(group)
    if caps.is_cpu:
        return attention_cpu.build(group, node, caps, config)
    plan = attention_blocks.plan_for(group, node, caps, config)
    if plan is not None:
        return attention_blocks.build(group, node, caps, plan)
    return attention_gpu.build(group, node, caps, config)
