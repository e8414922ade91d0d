"""The derivative of attention without the T x T matrix: picks the variant for the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.ir import Kernel
from weft.templates.attention import backward_units
from weft.templates.attention.backward_fused import Whole, fits
from weft.templates.attention.backward_pairs import Call, Team
from weft.templates.attention.backward_threads import Alone, Shared
from weft.templates.attention.backward_units import Units
from weft.templates.attention.backward_vector import Vector
from weft.templates.following import find_call
from weft.templates.group import Group
from weft.templates.registry import claims, template


@claims("attention_grad", kind="attention_grad")
def claim_whole(node: Node, caps: Caps) -> bool:
    """All three gradients at once on a CPU; elsewhere the body takes them apart."""
    return caps.is_cpu and node.size > 0 and fits(node, caps)


@claims("attention_dq", "attention_dkv", kind="attention_grad")
def claim_part(node: Node, caps: Caps) -> bool:
    """Every shape that has elements."""
    return node.size > 0 and node.inputs[0].size > 0 and node.inputs[1].size > 0


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """What `weft tune` may choose from for this group (see `backward_units`)."""
    return [] if caps.is_cpu else backward_units.candidates(group, find_call(group), caps)


@template("attention_grad")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one of the composites of `weft.ops.attention_grad`, operands
    read in place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    call = Call(group, find_call(group), caps)
    return call.kernel(_team(call, config))


def _team(call: Call, config: Mapping[str, Any]) -> Team:
    if call.caps.is_cpu:
        return (Whole if call.name == "attention_grad" else Vector)(call, config)
    plan = backward_units.plan_for(call.group, call.node, call.caps, config)
    if plan is not None:
        return Units(call, plan)
    shared = config.get("shared", call.caps.cheap_barrier)
    return Shared(call, config) if shared else Alone(call, config)
