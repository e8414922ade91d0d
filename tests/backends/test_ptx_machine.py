"""The PTX that ptxas gets, executed as it stands: see ptx_machine. The machine reports registers
and memory that are read before they are written, and what lies beyond a buffer."""

from __future__ import annotations

import itertools

import gpu_case as case
import numpy as np
import ptx_machine
import pytest
from gpu_emulator import Arrays, Emulated, Ints
from rows import few

from weft.backends.llvm import gpu_target, launch, offline
from weft.conform import kernels, primitives, templates
from weft.kernel.ir import Kernel

# What an emulator of others' had wrong (gpuocelot): see docs/testing.md.
CACHED = ["cached_attention float32 ", "cached_attention float32 {'window': 7}"]
CACHED += ["cached_attention float32 {'softcap': 5.0}"]
GRADIENT = "gradient of attention float32 1x3/1x33x33x64 "
CAUSAL = [GRADIENT + "{'causal': True}", GRADIENT + "{'causal': True, 'window': 4}"]


class Printed(Emulated):
    """A device whose kernels are PTX, executed by the machine."""

    def launch(self, kernel: Kernel, arrays: Arrays, scalars: Ints, known: Arrays) -> None:
        grid = launch.launch_grid(kernel, scalars)
        if 0 in grid:
            return
        text = offline.code(kernel, self.target).decode()
        given = [*(a.copy() for a in arrays), np.array([*scalars, 0], np.int32)]
        dynamic = launch.shared_bytes(kernel, self.target.static_shared)
        ptx_machine.play(text, given, [*known, None], kernel.threads, grid, dynamic)
        for array, found in zip(arrays, given):
            array[:] = found


def run(arch: str, module, names=None, every: int = 1) -> int:  # type: ignore[no-untyped-def]
    """Runs a level's checks (each `every`-th, or those named); how many kernels that took."""
    device = Printed(gpu_target(arch))
    checks = (c for c in module.checks(device) if names is None or c[0] in names)
    return device.run_checks(itertools.islice(checks, 0, None, every))


@pytest.mark.parametrize("arch,every", [("sm_80", 4), ("sm_90", 9), ("sm_120", 6)])
def test_nodes(arch: str, every: int) -> None:
    assert run(arch, kernels, every=every) > 12


@pytest.mark.parametrize("arch,every", [("sm_80", 40), ("sm_120", 57)])
def test_primitives(arch: str, every: int) -> None:
    assert run(arch, primitives, every=every) > 10


@pytest.mark.parametrize("arch,every", few([("sm_80", 31), ("sm_90", 61)], ("sm_80", 31)))
def test_templates(arch: str, every: int) -> None:
    assert run(arch, templates, every=every) > 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", [kernels, primitives, templates], ids=lambda m: m.__name__)
@pytest.mark.parametrize("arch", case.NVIDIA)
def test_everything(arch: str, module) -> None:  # type: ignore[no-untyped-def]
    assert run(arch, module) > 80


# -- what another emulator had wrong


@pytest.mark.parametrize("names,kernels", [
    (CACHED, 3), pytest.param(CAUSAL[1:], 7, marks=pytest.mark.slow)
], ids=["cached", "causal"])  # fmt: skip
def test_they_are_right_as_printed(names: list[str], kernels: int) -> None:
    assert run("sm_80", templates, names) == kernels


# -- that the machine sees what it is for


def module(body: str) -> str:
    lines = "\n".join(f"\t{line}" for line in body.strip().splitlines())
    head = "\t.reg .pred \t%p<9>;\n\t.reg .b32 \t%r<9>;\n\t.reg .b64 \t%rd<9>;\n"
    head += "\t.shared .align 16 .b8 k_s[256];\n\tld.param.b64 \t%rd1, [k_param_0];\n"
    head += "\tmov.u32 \t%r1, %tid.x;\n\tmul.wide.u32 \t%rd2, %r1, 4;\n"
    head += "\tadd.s64 \t%rd3, %rd1, %rd2;\n"
    return f".visible .entry k(\n\t.param .u64 k_param_0\n)\n.reqntid 64\n{{\n{head}{lines}\n}}\n"


FAULTS = {
    "was not written": """setp.lt.u32 %p1, %r1, 63;
@%p1 mov.b32 %r2, 1;
add.s32 %r3, %r2, 1;
ret;""",
    "memory that was not written": """setp.eq.b32 %p1, %r1, 5;
@%p1 bra $L__BB0_2;
st.shared.b32 [%rd2], %r1;
$L__BB0_2:
bar.sync 0;
ld.shared.b32 %r2, [%rd2];
ret;""",
    "beyond an array or buffer": """setp.lt.u32 %p1, %r1, 63;
ld.global.b32 %r2, [%rd3+4];
selp.b32 %r3, %r2, 0, %p1;
st.global.b32 [%rd3], %r3;
ret;""",
    "threads wait for others": "setp.eq.b32 %p1, %r1, 5;\n@%p1 ret;\nbar.sync 0;\nret;",
    "threads wait": """setp.eq.b32 %p1, %r1, 5;
@%p1 ret;
shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
ret;""",
    "an access of 8 bytes": "mov.b32 %r2, 0;\nst.shared.v2.b32 [%rd2], {%r2, %r2};\nret;",
    "sin.approx.f32 is not known": "sin.approx.f32 %r2, %r1;\nret;",
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_faults_are_seen(what: str) -> None:
    out = np.zeros(64, np.int32)
    with pytest.raises(ptx_machine.Fault, match=what):
        ptx_machine.play(module(FAULTS[what]), [out], [None], (64, 1, 1), (1, 1, 1))


def test_a_loop_that_threads_leave_one_by_one() -> None:
    body = """mov.b32 %r2, 0;
$L__BB0_1:
add.s32 %r2, %r2, %r1;
setp.lt.u32 %p1, %r2, 100;
setp.ne.b32 %p2, %r1, 0;
and.pred %p1, %p1, %p2;
@%p1 bra $L__BB0_1;
shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;
st.global.b32 [%rd3], %r3;
ret;"""
    out = np.zeros(64, np.int32)
    ptx_machine.play(module(body), [out], [None], (64, 1, 1), (1, 1, 1))
    t = np.arange(64) ^ 1
    np.testing.assert_array_equal(out, np.where(t == 0, 0, -(-100 // np.maximum(t, 1)) * t))
