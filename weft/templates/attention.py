"""Attention that never holds the T x T matrix: picks the variant for the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.templates import attention_cpu, attention_gpu
from weft.templates.group import Group
from weft.templates.matmul_tail import find_call
from weft.templates.registry import template


@template("attention")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `attention` call: q[B,H,T,D], k and v [B,G,S,D] and
    optionally lengths[B], operands read in place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    variant = attention_cpu if caps.is_cpu else attention_gpu
    return variant.build(group, find_call(group), caps, config)
