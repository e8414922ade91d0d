"""Tables of rules: readers of kernels have a rule for every class of nodes or refuse it by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

import numpy as np
import pytest

from weft.backends.llvm import cpu_target, gpu_target, render, render_gpu, rules as llvm
from weft.backends.wgsl import render as render_wgsl
from weft.backends.wgsl.dialect import RULES as WGSL
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import CompileError, KernelError
from weft.kernel import interp, ir, printer, rules, verify, walk
from weft.kernel.builder import Builder
from weft.kernel.walk import with_body

STATEMENTS = {x for x in vars(ir).values() if isinstance(x, type) and issubclass(x, ir.Stmt)}
NODES = {x for x in vars(ir).values() if isinstance(x, type) and issubclass(x, ir.Expr)}
NODES = (NODES | STATEMENTS) - {ir.Expr, ir.Stmt}
TABLES = {
    "cpu": llvm.CPU, "amx": llvm.AMX, "outer": llvm.OUTER, "nvptx": llvm.NVPTX,
    "amdgcn": llvm.AMDGCN, "wgsl": WGSL, "interpreter": interp.RULES, "printer": printer._RULES,
}  # fmt: skip
REFUSED = {"cpu": {ir.Tile, ir.TileOp}, "wgsl": {ir.Tile, ir.TileOp}}


@dataclass(frozen=True, eq=False)
class Odd(ir.Stmt):
    """A statement that nobody knows."""


@pytest.mark.parametrize("name", TABLES)
def test_every_node_has_a_rule(name: str) -> None:
    table = TABLES[name]
    assert set(table) == NODES
    refused = {kind for kind, rule in table.items() if isinstance(rule, rules.Refusal)}
    assert refused == REFUSED.get(name, set())


def test_the_verifier_knows_every_statement() -> None:
    assert set(verify._RULES) == STATEMENTS - {ir.Stmt}


def test_walks_know_every_field_with_nodes() -> None:
    types = {str(f.type) for kind in (*NODES, ir.Kernel) for f in fields(kind)}
    held = {t for t in types if re.search(r"\b(Expr|Stmt|Block|Var|Store)\b", t)}
    assert held == set(walk._HOLDS)


def test_a_node_without_a_rule_is_an_error() -> None:
    b = Builder("strange")
    b.buffer("out", dt.float32, 1, "w")
    kernel = with_body(b.kernel((1,)), ir.Block((Odd(),)))
    message = "kernel strange: .* has no rule for Odd"
    with pytest.raises(CompileError, match=message):
        render(kernel, PRESETS["cpu-avx2"], cpu_target("x86_64-linux", frozenset()))
    with pytest.raises(CompileError, match=message):
        render_gpu(kernel, gpu_target("sm_80"))
    with pytest.raises(CompileError, match=message):
        render_wgsl(kernel, PRESETS["webgpu"])
    with pytest.raises(KernelError, match="kernel strange: Odd is not a statement"):
        interp.run(kernel, [np.zeros(1, np.float32)])
    with pytest.raises(KernelError, match=message):
        interp.run(kernel, [np.zeros(1, np.float32)], check=False)


def test_a_later_table_overrides_entries() -> None:
    def first(state: object, node: object) -> str:
        return "first"

    def second(state: object, node: object) -> str:
        return "second"

    joined = rules.Rules("x", {ir.Let: first, ir.For: first}, {ir.For: second})
    assert (joined[ir.Let], joined[ir.For]) == (first, second)
