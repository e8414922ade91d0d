"""Attention over a KV cache: picks the variant for the target and for the number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.core.order import KEY_SPAN, STREAM_ROWS
from weft.graph.ir import Node
from weft.kernel.ir import Kernel
from weft.templates.attention import (
    cached_cpu,
    forward_threads,
    forward_units,
    merge,
)
from weft.templates.attention.forward import Call
from weft.templates.group import Group
from weft.templates.product.epilogue import find_call
from weft.templates.registry import claims, template


@claims("cached_attention_parts", kind="cached_attention")
def claim_parts(node: Node, caps: Caps) -> bool:
    """On every GPU: one group per row and key/value head would leave most of it idle."""
    return not caps.is_cpu and node.attrs["params"]["part"] == KEY_SPAN


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """What `weft tune` may choose from for this group (see `forward_units`)."""
    node = find_call(group)
    many = node.attrs["name"] == "cached_attention" and node.shape[0] > STREAM_ROWS
    units = many and not caps.is_cpu
    return forward_units.candidates(group, node, caps) if units else []


@template("cached_attention")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `cached_attention` call: q[N,H,D], caches [S,G,L,D],
    slot[N], pos[N], operands read in place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    node = find_call(group)
    if node.attrs["name"] == "attention_merge":
        return merge.build(group, node, caps)
    if not caps.is_cpu:
        return _gpu(group, node, caps, config)
    return cached_cpu.build(group, node, caps, config)


def _gpu(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    plan = forward_units.plan_for(group, node, caps, config)
    if plan is not None:
        call = Call(group, node, caps)
        return call.kernel(forward_units.Units(call, plan))
    return forward_threads.build(group, node, caps, config)
