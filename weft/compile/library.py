"""Finds groups that are products which a vendor's library may compute instead of their kernel
(Library steps).

The offer requires that the library computes the same as the kernel, to the last rounding: one dot
of plain matrices, plus a bias, a residual and gelu, rounded once. Products with rows bounded at run
time keep their own kernel. A library may choose differently for another number of rows, and
decoding and serving promise that a row's bits do not depend on it.
"""

from __future__ import annotations

import itertools

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.errors import CompileError
from weft.graph.ir import Node
from weft.ops.composite import COMPOSITES
from weft.ops.primitive import building
from weft.program.gemm import DTYPES, Gemm, Matrix, plain
from weft.templates import affine
from weft.templates.group import Group
from weft.templates.product.problem import MatmulProblem, find_dots, problem_of
from weft.templates.view import view_of
from weft.transform.rebuild import frozen

FEATURE = "gemm_library"
LEAST = 16  # least length of a side
MOST = 3  # summands: the dot, a bias, a residual
WORK = 1 << 21  # m * n * k * batch from which a library call pays


def offered(group: Group, caps: Caps) -> tuple[Gemm | None, str]:
    """Returns the product that a group computes, or None and the reason ("" for groups of other
    kinds)."""
    if FEATURE not in caps.features or group.kind != "matmul":
        return None, ""
    if group.rows is not None:
        return None, "rows bounded at run time"
    dots = find_dots(group)
    if len(dots) != 1 or len(group.outputs) != 1 or group.in_place:
        return None, "more than one product or result"
    try:
        return _gemm(group, problem_of(group, dots))
    except CompileError as error:
        return None, str(error)


def _gemm(group: Group, p: MatmulProblem) -> tuple[Gemm | None, str]:
    if any(b.pick is not None for b in p.bs):
        return None, "matrices chosen at run time"
    if any(v.form is not None or v.whole for v in (p.a, *p.bs)):
        return None, "packed operands"
    out = group.outputs[0]
    batch = max(p.batches, 1)
    if min(p.m, p.n, p.k) < LEAST or p.m * p.n * p.k * batch < WORK:
        return None, "small"
    b_batch, b_k, b_n = p.b_strides(0)
    a_step, b_step = _merged(p.batch, p.a_batch), _merged(p.batch, b_batch)
    if a_step is None or b_step is None:
        return None, "batch axes that are not one"
    chain = _Chain(group)
    numbers = chain.numbers
    a = Matrix(numbers[id(p.a.node)], p.a.dtype, p.a.offset, (a_step, p.a_m, p.a_k))
    b = Matrix(numbers[id(p.bs[0].node)], p.bs[0].dtype, p.bs[0].offset, (b_step, b_k, b_n))
    c = Matrix(len(group.inputs), out.dtype, 0, (p.m * p.n, p.n, 1))
    if not (plain(a, p.m, p.k) and plain(b, p.k, p.n)):
        return None, "operands that are no plain matrices"
    if a.dtype is not b.dtype or (a.dtype, c.dtype) not in DTYPES:
        return None, f"{a.dtype.name} by {b.dtype.name} to {c.dtype.name}"
    result = chain.result()
    inner = chain.gelu(result)
    # A library's tanh may be the hardware's, which is good enough only where the result is rounded.
    if inner is not None and not _narrow(c.dtype):
        return None, "gelu in float32"
    added = chain.added(chain.terms(result if inner is None else inner), p, c.dtype)
    if added is None or (inner is not None and "residual" in added) or (added and c.dtype.is_int):
        return None, "an epilogue of its own"
    if "bias" in added and batch > 1:
        return None, "a bias in a batch"
    return Gemm(p.m, p.n, p.k, batch, a, b, c, **added, gelu=inner is not None), ""


def _merged(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Returns the single stride of axes with these sizes and strides in row-major order, or
    None."""
    axes = [(d, s) for d, s in zip(sizes, strides) if d != 1]
    if any(s != s2 * d2 for (_, s), (d2, s2) in itertools.pairwise(axes)):
        return None
    return axes[-1][1] if axes else 0


# -- the epilogue ---------------------------------------------------------------------------------


class _Chain:
    """The computation of a group from its dot, read from the result backwards."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.numbers = {id(x): i for i, x in enumerate(group.inputs)}  # operand numbers

    def is_op(self, node: Node, op: str) -> bool:
        """True if the group itself computes `node`, by `op`."""
        return node.op == op and id(node) not in self.numbers

    def behind(self, node: Node) -> Node:
        """Returns the node behind reshapes and (exact) widening casts."""
        while self.is_op(node, "reshape") or (
            self.is_op(node, "cast") and _narrow(node.inputs[0].dtype)
        ):
            node = node.inputs[0]
        return node

    def result(self) -> Node:
        """The float32 value that is rounded when the result is stored. Any other rounding is a cast
        that stays."""
        out = self.group.outputs[0]
        while self.is_op(out, "reshape"):
            out = out.inputs[0]
        if self.is_op(out, "cast") and _narrow(out.dtype):
            out = out.inputs[0]
        return self.behind(out)

    def gelu(self, node: Node) -> Node | None:
        """x where `node` is the tanh form of gelu(x), spelt as its composite spells it."""
        if not self.is_op(node, "div") or node.dtype is not dt.float32:
            return None
        x = node.inputs[0]
        with building():
            wanted = COMPOSITES["gelu"].body(x, approximate="tanh")
        return x if self.same(node, wanted, x) else None

    def same(self, node: Node, wanted: Node, leaf: Node) -> bool:
        """True if the group computes `node` from `leaf` in the same way as `wanted` is computed
        from it."""
        if node is leaf or wanted is leaf or id(node) in self.numbers:
            return node is wanted
        alike = node.op == wanted.op and node.shape == wanted.shape and node.dtype is wanted.dtype
        alike = alike and len(node.inputs) == len(wanted.inputs)
        alike = alike and frozen(node.attrs) == frozen(wanted.attrs)
        return alike and all(self.same(x, y, leaf) for x, y in zip(node.inputs, wanted.inputs))

    def terms(self, node: Node) -> list[Node]:
        """The summands of a sum; where they are more than MOST, some are sums themselves."""
        found: list[Node] = []
        stack = [node]
        while stack:
            node = self.behind(stack.pop())
            if self.is_op(node, "add") and len(found) + len(stack) + 2 <= MOST:
                stack.extend(node.inputs)
            else:
                found.append(node)
        return found

    def added(self, terms: list[Node], p: MatmulProblem, dtype: DType) -> dict[str, Matrix] | None:
        """Returns the terms added to the dot, as bias and residual, or None if there are others."""
        found = [self._added(t, p, dtype) for t in terms if t is not p.dots[0]]
        names = [name for x in found for name in (x or ())]
        if None in found or len(found) != len(terms) - 1 or len(set(names)) != len(names):
            return None
        return {name: x for each in found for name, x in (each or {}).items()}

    def _added(self, term: Node, p: MatmulProblem, dtype: DType) -> dict[str, Matrix] | None:
        view = view_of(self.group, term)
        if view is None or view.dtype is not dtype:
            return None
        arg, shape = self.numbers[id(view.node)], term.shape
        if shape[-1:] == (p.n,) and view.strides == (*[0] * (len(shape) - 1), 1):
            return {"bias": Matrix(arg, dtype, view.offset, (0, 0, 1))}
        row_major = zip(shape, view.strides, affine.contiguous(shape))
        if term.size == p.dots[0].size and all(d == 1 or s == c for d, s, c in row_major):
            return {"residual": Matrix(arg, dtype, view.offset, (p.m * p.n, p.n, 1))}
        return None


def _narrow(dtype: DType) -> bool:
    return dtype in (dt.float16, dt.bfloat16)
