"""Attention without the T x T matrix, over whole sequences and over a KV cache, and its derivative.

The kernel follows from the target, the operands' dtypes and the kind of step (decoding or not).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.core.order import KEY_SPAN
from weft.graph.ir import Node
from weft.kernel.ir import Kernel
from weft.templates.attention import (
    backward,
    backward_matrix_units,
    backward_threads,
    backward_vector,
    forward_matrix_units,
    matrix_units,
    merge,
)
from weft.templates.attention.backward_fused import FusedBackward, fits
from weft.templates.attention.decode_cpu import DecodeForward
from weft.templates.attention.forward import ForwardKernel, ForwardWorker, sinks_of
from weft.templates.attention.forward_amx import AmxForward, in_tiles
from weft.templates.attention.forward_row_thread import RowThread
from weft.templates.attention.forward_threads import SharedTilesForward
from weft.templates.attention.forward_vector import VectorForward
from weft.templates.following import find_call
from weft.templates.group import Group
from weft.templates.registry import claims, template


@claims("cached_attention_parts", kind="cached_attention")
def claim_parts(node: Node, caps: Caps) -> bool:
    """True on every GPU: one group per row and key/value head would leave most of it idle."""
    buffers = len({id(_bound(x)) for x in node.inputs}) + 2  # two results
    fits = buffers <= caps.max_bindings
    return not caps.is_cpu and node.attrs["params"]["part"] == KEY_SPAN and fits


def _bound(node: Node) -> Node:
    """The node whose buffer a kernel binds to read `node`."""
    while node.op in ("slice", "reshape"):
        node = node.inputs[0]
    return node


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """Returns the block shapes in matrix units from which `weft tune` may choose for this group."""
    node = find_call(group)
    if caps.is_cpu or node.attrs["name"] in ("cached_attention_parts", "attention_merge"):
        return []
    return matrix_units.candidates(group, node, caps)


@claims("attention_grad", kind="attention_grad")
def claim_whole(node: Node, caps: Caps) -> bool:
    """All three gradients at once on a CPU; elsewhere the body takes them apart."""
    return caps.is_cpu and node.size > 0 and fits(node, caps)


@claims("attention_dq", "attention_dkv", kind="attention_grad")
def claim_part(node: Node, caps: Caps) -> bool:
    """Every shape that has elements."""
    return node.size > 0 and node.inputs[0].size > 0 and node.inputs[1].size > 0


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
    parts: q[N,H,D], caches [S,G,L,D] or in pages [G,P,PAGE,D], slot[N], pos[N], operands read in
    place as strided views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    node = find_call(group)
    if node.attrs["name"] == "attention_merge":
        return merge.build(group, node, caps)
    return _build(group, node, caps, config)


def _build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    sinks = sinks_of(node) is not None  # matrix units and tiles do not take sinks
    if caps.is_cpu:
        call = ForwardKernel(group, node, caps)
        if in_tiles(call) and not sinks:
            return call.kernel(AmxForward(call, config))
        return call.kernel(DecodeForward(call) if call.few else VectorForward(call, config))
    plan = None if sinks else matrix_units.plan_for(group, node, caps, config)
    shared = plan is not None or config.get("shared", caps.cheap_barrier)
    call = ForwardKernel(group, node, caps, flat=not shared)
    worker: ForwardWorker
    if plan is not None:
        worker = forward_matrix_units.MatrixUnitForward(call, plan)
    else:
        worker = (SharedTilesForward if shared else RowThread)(call, config)
    return call.kernel(worker)


@template("attention_grad")
def build_gradients(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one of `backward.FORMS`, operands read in place as strided
    views.

    Raises CompileError where an operand is not a strided view of an input.
    """
    call = backward.BackwardKernel(group, find_call(group), caps)
    return call.kernel(_gradient_team(call, config))


def _gradient_team(
    call: backward.BackwardKernel, config: Mapping[str, Any]
) -> backward.BackwardWorker:
    if call.caps.is_cpu:
        worker = FusedBackward if call.name == "attention_grad" else backward_vector.VectorBackward
        return worker(call, config)
    plan = matrix_units.plan_for(call.group, call.node, call.caps, config)
    if plan is not None:
        return backward_matrix_units.MatrixUnitBackward(call, plan)
    shared = config.get("shared", call.caps.cheap_barrier)
    return (backward_threads.SharedTilesBackward if shared else backward_threads.ItemThread)(
        call, config
    )
