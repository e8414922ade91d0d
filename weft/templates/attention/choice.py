"""Attention that never holds the T x T matrix, over whole sequences and over a KV cache: who
computes a call follows from the target, the operands' dtypes and whether it is a decoding step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.core.order import KEY_SPAN
from weft.graph.ir import Node
from weft.kernel.ir import Kernel
from weft.templates.attention import forward_units, merge
from weft.templates.attention.decode_cpu import Decode
from weft.templates.attention.forward import Call, Team
from weft.templates.attention.forward_alone import Alone
from weft.templates.attention.forward_amx import Tiles, in_tiles
from weft.templates.attention.forward_threads import Shared
from weft.templates.attention.forward_units import Units
from weft.templates.attention.forward_vector import Vector
from weft.templates.following import find_call
from weft.templates.group import Group
from weft.templates.registry import claims, template


@claims("cached_attention_parts", kind="cached_attention")
def claim_parts(node: Node, caps: Caps) -> bool:
    """On every GPU: one group per row and key/value head would leave most of it idle."""
    return not caps.is_cpu and node.attrs["params"]["part"] == KEY_SPAN


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """What `weft tune` may choose from for this group (see `forward_units`)."""
    node = find_call(group)
    if caps.is_cpu or node.attrs["name"] in ("cached_attention_parts", "attention_merge"):
        return []
    return forward_units.candidates(group, node, caps)


@template("attention")
def build_whole(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `attention` call: q[B,H,T,D], k and v [B,G,S,D] and
    optionally lengths[B], operands read in place as strided views; or one `attention_lse`: q, k.

    Raises CompileError where an operand is not a strided view of an input.
    """
    return _build(group, find_call(group), caps, config)


@template("cached_attention")
def build_cached(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `cached_attention` call, a part of one, or the merge of
    parts: q[N,H,D], caches [S,G,L,D], slot[N], pos[N], operands read in place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    node = find_call(group)
    if node.attrs["name"] == "attention_merge":
        return merge.build(group, node, caps)
    return _build(group, node, caps, config)


def _build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    if caps.is_cpu:
        call = Call(group, node, caps)
        if in_tiles(call):
            return call.kernel(Tiles(call, config))
        return call.kernel(Decode(call) if call.few else Vector(call, config))
    plan = forward_units.plan_for(group, node, caps, config)
    shared = plan is not None or config.get("shared", caps.cheap_barrier)
    call = Call(group, node, caps, flat=not shared)
    team: Team
    if plan is not None:
        team = Units(call, plan)
    else:
        team = (Shared if shared else Alone)(call, config)
    return call.kernel(team)
