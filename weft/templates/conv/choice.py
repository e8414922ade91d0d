"""The kernel of a convolution with channels last: which one, by target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.ir import Kernel
from weft.ops import codes as of_codes
from weft.ops.conv_last import CONV, DEPTHWISE
from weft.ops.winograd import WINOGRAD
from weft.templates.conv import codes, cpu, depthwise, gpu, winograd
from weft.templates.conv.sizes import WinogradTiling, shape_of
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.product.kernel import nothing
from weft.templates.product.problem import MatmulProblem
from weft.templates.registry import claims, template
from weft.templates.view import OperandView, operand

_KINDS: Mapping[str, tuple[Any, Any]] = {  # composite -> kernels for a CPU and for threads
    CONV: (cpu.CpuConv, gpu.GpuConv),
    DEPTHWISE: (depthwise.CpuDepthwise, gpu.GpuDepthwise),
    of_codes.CONV_LAST: (codes.CpuCodes, gpu.GpuCodes),
    of_codes.DEPTHWISE_LAST: (depthwise.CpuDepthwise, gpu.GpuDepthwise),
    WINOGRAD: (winograd.CpuWinograd, None),
}
_WHOLE = (CONV, of_codes.CONV_LAST, WINOGRAD)


@claims(*_KINDS, kind="conv")
def claim_conv(node: Node, caps: Caps) -> bool:
    """float32 or codes; on a CPU where its scratch memory holds the windows of a row of results."""
    s, operand = shape_of(node), node.inputs[0].dtype
    if node.attrs["name"] == WINOGRAD:
        room = (
            WinogradTiling(s, caps).nbytes(1, caps) <= caps.scratch_bytes // 2
            if caps.is_cpu
            else False
        )
        return room and operand == dt.float32
    if operand not in (dt.float32, *of_codes.BYTES) or not caps.is_cpu:
        return operand in (dt.float32, *of_codes.BYTES)
    room = operand.itemsize * s.high(1) * s.wide * s.c <= caps.scratch_bytes // 2
    return room if node.attrs["name"] in _WHOLE else s.places <= depthwise.PLACES


@template("conv")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """Returns the kernel of a group around a convolution, with its epilogue. Raises CompileError if
    an operand is not a plain value in memory."""
    node = group.anchor
    assert node is not None
    em = Emitter(Builder(group.name or "conv"), group, caps)
    p = problem_of(group, node)
    made = nothing(em, p)
    if made is not None:
        return made
    kind = _KINDS[node.attrs["name"]][0 if caps.is_cpu else 1]
    kernel: Kernel = kind(em, p, shape_of(node)).kernel()
    return kernel


def problem_of(group: Group, node: Node) -> MatmulProblem:
    """The convolution as a product: rows are places of results, k runs through windows."""
    s = shape_of(node)
    x, *others = (_whole(group, y) for y in node.inputs)
    return MatmulProblem(
        (node,), x, tuple(others), (), (s.n, s.oh, s.ow), s.n * s.oh * s.ow, s.o,
        s.k if node.attrs["name"] in _WHOLE else s.places, (), 0, 1,
    )  # fmt: skip


def _whole(group: Group, node: Node) -> OperandView:
    view = operand(group, node)
    strides, step = [], 1
    for d in reversed(node.shape):
        strides.append(step)
        step *= d
    real = [(a, b) for a, b, d in zip(view.strides, reversed(strides), node.shape) if d > 1]
    if view.offset or any(a != b for a, b in real):
        raise CompileError(f"operand {node!r} of {group.kind} is not an input as it lies in memory")
    return view
