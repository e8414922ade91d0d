"""Kernels → one WebAssembly module: LLVM's wasm32 target with SIMD, and weft's own linker.

Kernel number n is the export `k{n}(bufs, scalars, gx, gy, gz, begin, end, scratch)`, all i32. It
runs the groups begin <= g < end of the grid in linear order. `bufs` points at one i32 per buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import llvmlite.binding as llvm

from weft.backends.llvm import wasm_link
from weft.backends.llvm.dialect import ENTRY, render
from weft.backends.llvm.optimise import LLVM, emitted, optimised
from weft.backends.llvm.target import LlvmTarget
from weft.core.caps import Caps
from weft.kernel.ir import Kernel

BASE = 1024  # address of the constants, so that none has a null pointer
TRIPLE = "wasm32-unknown-unknown"
FEATURES = "+simd128,+bulk-memory,+bulk-memory-opt,+nontrapping-fptoint,+sign-ext"
WASM = LlvmTarget(
    "wasm",
    "noinline nounwind",
    f16_convert=False,
    index="i32",
    nontemporal=False,
    prefetch=False,
    fused=False,
    min_max=False,
    pairs={4: ("", "llvm.wasm.dot", "")},
)
RELAXED = replace(
    WASM,
    name="wasm-relaxed",
    madd="llvm.wasm.relaxed.madd.v4f32",
    seven="llvm.wasm.relaxed.dot.i8x16.i7x16.signed",
)
_ENTRY = """
define void @k{n}(ptr %b, ptr %s, i32 %x, i32 %y, i32 %z, i32 %from, i32 %to, ptr %room) {{
  %begin = zext i32 %from to i64
  %end = zext i32 %to to i64
  call void @{entry}(ptr %b, ptr %s, i32 %x, i32 %y, i32 %z, i64 %begin, i64 %end, ptr %room)
  ret void
}}
"""


@dataclass(frozen=True)
class WasmModule:
    """A linked module. Its memory holds constants in [BASE, BASE + constants). The byte at `flags`
    is 1, or 3 where threads share the memory."""

    code: bytes
    constants: int
    flags: int


def compile_module(kernels: Sequence[Kernel], caps: Caps, target: LlvmTarget = WASM) -> WasmModule:
    """The kernels as one module, of RELAXED instructions too if `target` says so. Raises
    CompileError naming the kernel."""
    features = FEATURES + (",+relaxed-simd" if target is RELAXED else "")
    with LLVM:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
            cpu="generic", features=features, opt=3, reloc="static", codemodel="default"
        )
        whole = llvm.parse_assembly(f'target triple = "{TRIPLE}"\n')
        for n, kernel in enumerate(kernels):
            text = render(kernel, caps, target).replace(f"@{ENTRY}(", f"@{ENTRY}{n}(")
            text += _ENTRY.format(n=n, entry=f"{ENTRY}{n}")
            module = optimised(text, machine, kernel.name, level=2, loops=True)
            whole.link_in(llvm.parse_assembly(str(module)))
        whole.data_layout = str(machine.target_data)
        data = emitted(whole, machine)
    return WasmModule(*wasm_link.link(data, [f"k{n}" for n in range(len(kernels))], BASE))
