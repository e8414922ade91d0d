"""One module of LLVM IR through LLVM's optimiser. Imported only when something is compiled."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from weft.core.errors import CompileError
from weft.host.forks import ForkLock

_TILE = 16  # multiply-adds in a loop's body from which a template has written it out
_USES = 1.5  # multiply-adds per load, at least: packed weights have scales of groups beside codes
_MULTIPLY_ADD = re.compile(r" call .*@llvm\.(?:fma\.v|x86\.avx512bf16\.dp|x86\.avx512\.vpdp)")
_LOAD = re.compile(r" = load .*, ptr %t")  # from memory, and not from a slot of a register
_BLOCK = re.compile(r"^(\w+):\n((?:  .*\n)*)", re.MULTILINE)

# For a kernel whose products a template wrote out. Its arrays become registers, and its short loops
# are unrolled. LLVM's own list goes over such code eight times.
WRITTEN_OUT = (
    "sroa", "simplify_cfg", "instruction_combine", "loop_unroll", "sroa", "new_gvn",
    "instruction_combine",
)  # fmt: skip
QUICK = ("sroa",)  # the least that keeps the stack small: variables and arrays become values

LLVM = ForkLock()  # every call of llvmlite's happens in it: its lock and LLVM's outlive no fork


def has_register_tile(text: str) -> bool:
    """True if the innermost loop of a kernel's code adds products to a tile of registers: it uses
    most values that it loads more than once, and repeats single numbers along vectors."""
    for label, body in _BLOCK.findall(text):
        if body.count("@llvm.") < _TILE or f"label %{label}," not in body:
            continue
        sums, loads = len(_MULTIPLY_ADD.findall(body)), len(_LOAD.findall(body))
        if sums >= max(_TILE, _USES * loads) and body.count("insertelement") > 1:
            return True
    return False


def optimised(
    text: str,
    machine: llvm.TargetMachine,
    name: str,
    level: int,
    loops: bool,
    passes: Sequence[str] = (),
) -> llvm.ModuleRef:
    """The parsed, verified and optimised module, in a context of its own: threads that have a
    machine each optimise at once. `loops`: let LLVM vectorise, interleave and unroll loops.
    `passes`: run these alone, by llvmlite's names, instead of all those of `level`. Raises
    CompileError naming the kernel."""
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as e:
        raise CompileError(f"kernel {name}: LLVM refuses the code: {e}") from None
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(level)
    options.loop_vectorization = loops
    if loops:
        options.loop_interleaving = options.loop_unrolling = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    manager = _manager(passes) if passes else builder.getModulePassManager()
    run = _without_lock("LLVMPY_RunNewModulePassManager")
    run(manager, module, builder)
    # llvmlite's own _dispose of a manager is hidden by its other base class: 100 KiB a module.
    ffi.lib.LLVMPY_DisposeNewModulePassManger(manager)
    manager.detach()
    return module


def _manager(passes: Sequence[str]) -> llvm.ModulePassManager:
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    return manager


def emitted(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> bytes:
    """The relocatable object of an optimised module (machine.emit_object, other threads going on).
    Raises CompileError."""
    emit = _without_lock("LLVMPY_TargetMachineEmitToMemory")
    with ffi.OutputString() as error:
        buffer = emit(machine, module, 1, error)
        if not buffer:
            raise CompileError(f"LLVM cannot emit an object: {error}")
    try:
        start = ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _without_lock(name: str) -> Any:
    """A function of LLVM's for modules that no other thread knows: llvmlite holds one lock in all
    of its calls, which LLVM asks for only within a context. (An llvmlite that wraps its functions
    in another way keeps its lock.)"""
    function = getattr(ffi.lib, name)
    return getattr(function, "_cfn", function)
