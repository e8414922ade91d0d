"""A dot's problem: its sizes, and its operands as strided views of materialised values."""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.templates.group import Group
from weft.templates.view import OperandView, operand


@dataclass(frozen=True)
class MatmulProblem:
    """a[*batch, M, K] . b[*batch, K, N] for one or more dots that share `a`.

    Leading axes whose `b` does not move are merged into M where `a` allows it, so a linear layer
    over [B, T, K] is one tall matmul. `lead` are the output's axes before N: batch axes first,
    then `rows`, the axes that make up M (more than one when merged).
    """

    dots: tuple[Node, ...]
    a: OperandView
    bs: tuple[OperandView, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    m: int
    n: int
    k: int
    a_batch: tuple[int, ...]  # strides
    a_m: int
    a_k: int

    @property
    def batches(self) -> int:
        return math.prod(self.batch)

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k * len(self.dots)

    def b_strides(self, i: int) -> tuple[tuple[int, ...], int, int]:
        """(batch strides, stride along k, stride along n) of operand b of dot number i."""
        s = self.bs[i].strides
        return s[: len(self.batch)], s[-2], s[-1]


@dataclass(frozen=True)
class DotSegment:
    """Dots of one N whose values meet, and the outputs they feed."""

    problem: MatmulProblem
    outputs: tuple[Node, ...]


def problem_of(group: Group, dots: tuple[Node, ...] = ()) -> MatmulProblem:
    """The Problem of dots (by default all of the group) over the same left operand. Raises
    CompileError where they differ."""
    dots = dots or find_dots(group)
    first = dots[0]
    a = operand(group, first.inputs[0])
    for other in dots[1:]:
        if other.shape != first.shape or operand(group, other.inputs[0]) != a:
            raise CompileError("dots of one group must share the left operand and the shape")
    bs = tuple(operand(group, d.inputs[1], picks=True) for d in dots)
    *lead, m, n = first.shape
    k = first.inputs[0].shape[-1]
    rows, a_m = [m], a.strides[-2]
    while lead and (lead[-1] == 1 or not any(_moves(b, len(lead) - 1) for b in bs)):
        d, s = lead[-1], a.strides[len(lead) - 1]
        size = math.prod(rows)
        if d != 1 and size != 1 and s != size * a_m:
            break
        a_m = s if size == 1 and d != 1 else a_m
        rows.insert(0, d)
        lead.pop()
    nb = len(lead)
    return MatmulProblem(
        dots, a, bs, tuple(lead), tuple(rows), math.prod(rows), n, k,
        a.strides[:nb], a_m, a.strides[-1],
    )  # fmt: skip


def _moves(b: OperandView, axis: int) -> bool:
    """True if operand b is another matrix further along a batch axis."""
    by_pick = b.pick is not None and any(
        s.name == f"axis{axis}" for x in b.pick.at for s, _ in x.terms
    )
    return by_pick or b.strides[axis] != 0


def find_dots(group: Group) -> tuple[Node, ...]:
    """The dots that the group computes, in the order its outputs reach them."""
    return tuple(n for n in reversed(group.inside()) if n.op == "dot")


def mode(p: MatmulProblem, caps: Caps) -> str:
    """Returns the kind of products: "f32", "dot2" (bf16 pairs), "i32" (exact integers) or "whole"
    (integers with scales). It follows from dtypes, K and the machine, not from the rows."""
    if not p.dots[0].inputs[0].dtype.is_float:
        return "i32"
    if p.a.whole:
        return "whole"
    pairs = {v.dtype for v in (p.a, *p.bs)} == {dt.bfloat16} and p.a_k == 1 and p.k % 2 == 0
    return "dot2" if pairs and {"dot2_bf16", "dot2_fast"} <= caps.features else "f32"
