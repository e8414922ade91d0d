"""That the flow check of PTX sees what it is for, and that kernels pass it without ptxas."""

from __future__ import annotations

import gpu_case as case
import ptx_flow
import ptx_text
import pytest

from weft.backends.llvm import gpu_target, offline, render_gpu
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt
from weft.tensor.tracing import Spec, trace


def module(body: str) -> str:
    lines = "\n".join(f"\t{line}" for line in body.strip().splitlines())
    head = "\t.reg .pred \t%p<9>;\n\t.reg .b32 \t%r<9>;\n\t.reg .b16 \t%rs<9>;\n"
    return f".visible .entry k(\n\t.param .u64 k_param_0\n)\n.reqntid 32\n{{\n{head}{lines}\n}}\n"


FINE = {
    "a line": "mov.u32 %r1, %tid.x;\nadd.s32 %r2, %r1, 1;\nret;",
    "both sides": """mov.pred %p1, -1;
@%p1 bra $L__BB0_2;
mov.b32 %r1, 1;
bra.uni $L__BB0_3;
$L__BB0_2:
mov.b32 %r1, 2;
$L__BB0_3:
add.s32 %r2, %r1, 1;
ret;""",
    "a loop": """mov.b32 %r1, 0;
$L__BB0_1:
add.s32 %r1, %r1, 1;
mov.b32 %r2, %r1;
setp.lt.s32 %p1, %r1, 4;
@%p1 bra $L__BB0_1;
mov.b32 %r3, %r2;
ret;""",
    "a guard": """mov.pred %p1, -1;
@%p1 mov.b32 %r1, 0;
@%p1 add.s32 %r2, %r1, 1;
ret;""",
    "halves": "mov.b32 %r1, 0;\nmov.b32 {%rs1, _}, %r1;\nmov.b16 %rs2, %rs1;\nret;",
}
WRONG = {
    "never": ("add.s32 %r2, %r1, 1;\nret;", "%r1"),
    "one side": (FINE["both sides"].replace("mov.b32 %r1, 2;", ""), "%r1"),
    "after a loop that may end at once": (
        """mov.b32 %r1, 0;
mov.pred %p1, -1;
@%p1 bra $L__BB0_2;
$L__BB0_1:
mov.b32 %r2, 1;
setp.lt.s32 %p2, %r1, 4;
@%p2 bra $L__BB0_1;
$L__BB0_2:
mov.b32 %r3, %r2;
ret;""",
        "%r2",
    ),
    "in a loop, before its end writes it": (
        """mov.b32 %r1, 0;
$L__BB0_1:
add.s32 %r1, %r1, %r2;
mov.b32 %r2, 1;
setp.lt.s32 %p1, %r1, 4;
@%p1 bra $L__BB0_1;
ret;""",
        "%r2",
    ),
    "another guard": (
        "mov.pred %p1, -1;\nmov.pred %p2, -1;\n@%p1 mov.b32 %r1, 0;\n@%p2 mov.b32 %r2, %r1;\nret;",
        "%r1",
    ),
    "a guard that changed": (
        "mov.pred %p1, -1;\n@%p1 mov.b32 %r1, 0;\nnot.pred %p1, %p1;\n@%p1 mov.b32 %r2, %r1;\nret;",
        "%r1",
    ),
    "no guard": ("@%p1 ret;\nret;", "%p1"),
    "an address": ("mov.b32 %r1, 0;\nst.shared.b32 [%r2+8], %r1;\nret;", "%r2"),
    "a vector's item": ("mov.b32 %r1, 0;\nst.shared.v2.b32 [k], {%r1, %r2};\nret;", "%r2"),
    "the other half": (
        "mov.b32 %r1, 0;\nmov.b32 {%rs1, _}, %r1;\nmov.b16 %rs3, %rs2;\nret;",
        "%rs2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_what_is_written_is_read(name: str) -> None:
    assert not ptx_flow.unwritten(module(FINE[name]))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_written_is_seen(name: str) -> None:
    body, register = WRONG[name]
    found = ptx_flow.unwritten(module(body))
    assert len(found) == 1 and found[0].startswith(f"k: {register} in `"), found


def test_every_write_of_a_kernel_is_needed() -> None:
    """Without any one of its writes a real kernel does not pass, but for those that nobody
    reads."""
    target = gpu_target("sm_80")
    text = offline.code(case.samples(case.caps_of(target))[1], target).decode()
    (entry,) = ptx_text.entries(text)
    read = {r for i in entry.code for r in i.reads}
    lines = text.split("\n")
    tried = 0
    for n, line in enumerate(lines):
        one = line.strip().rstrip(";").split(None, 1)
        if len(one) < 2 or not one[1].startswith("%") or line.lstrip().startswith("."):
            continue
        register = one[1].split(",")[0]
        once = sum(register in i.writes for i in entry.code) == 1
        if once and register in read:
            tried += 1
            assert ptx_flow.unwritten("\n".join(lines[:n] + lines[n + 1 :])), line
    assert tried > 100


def test_unknown_flow_is_refused() -> None:
    with pytest.raises(AssertionError, match="not known"):
        ptx_flow.unwritten(module("call.uni f;\nret;"))
    with pytest.raises(AssertionError, match="past its end"):
        ptx_flow.unwritten(module("mov.b32 %r1, 0;"))


def test_half_of_a_pair_that_nothing_needs_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of eight elements is padding, whatever was read: LLVM leaves it undefined."""
    target = gpu_target("sm_80")
    fn = lambda x: x.pad([(1, 0), (2, 1)], value=1.0)  # noqa: E731
    graph = trace(fn, [Spec((4, 5), dt.bfloat16)])
    (kernel,) = compile_graph(graph, case.caps_of(target)).kernels
    text = render_gpu(kernel, target)
    assert not ptx_flow.unwritten(offline.assembly(text, target))
    monkeypatch.setattr(offline, "_whole_pairs", lambda ptx: ptx)
    assert ptx_flow.unwritten(offline.assembly(text, target))


@pytest.mark.parametrize("arch", case.NVIDIA)
def test_samples(arch: str) -> None:
    target = gpu_target(arch)
    for kernel in case.samples(case.caps_of(target)):
        assert not ptx_flow.unwritten(offline.code(kernel, target).decode())
