"""Attention over a KV cache: picks the variant for the target and for the number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.templates import (
    attention_blocks,
    attention_gpu,
    cached_attention_cpu,
    cached_attention_decode,
)
from weft.templates.group import Group
from weft.templates.matmul_tail import find_call
from weft.templates.registry import template

DECODE_ROWS = 16  # up to this many rows each row reads the cache on its own


@template("cached_attention")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `cached_attention` call: q[N,H,D], caches [S,G,L,D],
    slot[N], pos[N], operands read in place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    node = find_call(group)
    if not caps.is_cpu:
        plan = attention_blocks.plan_for(group, node, caps, config)
        if plan is not None and node.shape[0] > DECODE_ROWS:
            return attention_blocks.build(group, node, caps, plan)
        return attention_gpu.build(group, node, caps, config)
    if node.shape[0] <= DECODE_ROWS:
        return cached_attention_decode.build(group, node, caps, config)
    return cached_attention_cpu.build(group, node, caps, config)
