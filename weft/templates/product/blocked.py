"""Matrix multiplication with its epilogue: picks the variant for the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.kernel.builder import Builder
from weft.kernel.ir import Kernel
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.product import (
    blocked_amx,
    blocked_cpu,
    blocked_integers,
    blocked_outer,
    blocked_threads,
    blocked_units,
    blocked_words,
    cpu_plan,
    integers_amx,
    unit_words,
)
from weft.templates.product.kernel import nothing
from weft.templates.product.problem import MatmulProblem, problem_of
from weft.templates.registry import template


def _variant(p: MatmulProblem, caps: Caps) -> Any:
    """Returns the module that computes a product. It follows from the target and the operands'
    dtypes. The number of rows decides only between modules whose sums have the same bits."""
    if p.a.whole and not caps.is_cpu:
        return unit_words if unit_words.suits(p, caps) else blocked_words
    if p.a.whole:
        return integers_amx if integers_amx.suits(p, caps) else blocked_integers
    if caps.is_cpu:
        units = (unit for unit in (blocked_amx, blocked_outer) if unit.suits(p, caps))
        return next(units, blocked_cpu)
    return blocked_units if blocked_units.suits(p, caps) else blocked_threads


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """Returns the choices of `weft tune` for this group. Each of them sums a row in the same way
    for every number of rows."""
    problem = problem_of(group)
    found: list[dict[str, Any]] = _variant(problem, caps).candidates(problem, caps)
    return found


def takes_norm(group: Group, caps: Caps, config: Mapping[str, Any]) -> bool:
    """True if a matmul group that ends with a norm should be one kernel: its groups can own whole
    rows, and two kernels would not be faster."""
    p = problem_of(group)
    if not caps.is_cpu or group.rows is not None or len(p.dots) > 1:
        return False
    # With matrix registers a product is so short that sums of whole rows, beyond L2, cost more.
    tiles = blocked_amx.suits(p, caps)
    return not tiles and cpu_plan.pays(cpu_plan.plan_of(p, caps, config), p, caps)


@template("matmul")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group whose anchor is a dot (or several that share the left operand).

    Raises CompileError where an operand is not a strided view of an input.
    """
    problem = problem_of(group)
    em = Emitter(Builder(group.name or "matmul"), group, caps)
    kernel: Kernel = nothing(em, problem) or _variant(problem, caps).build(em, problem, config)
    return kernel
