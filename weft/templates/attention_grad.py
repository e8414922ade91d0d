"""The derivative of attention without the T x T matrix: picks the variant for the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.ir import Kernel
from weft.templates import (
    attention_grad_blocks,
    attention_grad_cpu,
    attention_grad_fused,
    attention_grad_gpu,
    attention_grad_units,
)
from weft.templates.group import Group
from weft.templates.matmul_tail import find_call
from weft.templates.registry import claims, template


@claims("attention_grad", kind="attention_grad")
def claim_whole(node: Node, caps: Caps) -> bool:
    """All three gradients at once on a CPU; elsewhere the body takes them apart."""
    return caps.is_cpu and node.size > 0 and attention_grad_fused.fits(node, caps)


@claims("attention_lse", "attention_dq", "attention_dkv", kind="attention_grad")
def claim_part(node: Node, caps: Caps) -> bool:
    """Every shape that has elements."""
    return node.size > 0 and node.inputs[0].size > 0 and node.inputs[1].size > 0


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """What `weft tune` may choose from for this group (see `attention_grad_units`)."""
    return [] if caps.is_cpu else attention_grad_units.candidates(group, find_call(group), caps)


@template("attention_grad")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one of the composites of `weft.ops.attention_grad`, operands
    read in place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    node = find_call(group)
    if node.attrs["name"] == "attention_grad":
        return attention_grad_fused.build(group, node, caps, config)
    if caps.is_cpu:
        return attention_grad_cpu.build(group, node, caps, config)
    plan = attention_grad_units.plan_for(group, node, caps, config)
    if plan is not None:
        return attention_grad_units.build(group, node, caps, plan)
    shared = config.get("shared", caps.cheap_barrier)
    variant = attention_grad_blocks if shared else attention_grad_gpu
    return variant.build(group, node, caps, config)
