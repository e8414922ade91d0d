"""One module of LLVM IR through LLVM's optimiser. Imported only when something is compiled."""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from weft.core.errors import CompileError
from weft.host.forks import ForkLock

LLVM = ForkLock()  # every call of llvmlite's happens in it: its lock and LLVM's outlive no fork


def optimised(
    text: str, machine: llvm.TargetMachine, name: str, level: int, loops: bool
) -> llvm.ModuleRef:
    """The parsed, verified and optimised module, in a context of its own: threads that have a
    machine each optimise at once. `loops`: let LLVM vectorise, interleave and unroll loops.
    Raises CompileError naming the kernel."""
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
    manager = builder.getModulePassManager()
    run = _without_lock("LLVMPY_RunNewModulePassManager")
    run(manager, module, builder)
    # llvmlite's own _dispose of a manager is hidden by its other base class: 100 KiB a module.
    ffi.lib.LLVMPY_DisposeNewModulePassManger(manager)
    manager.detach()
    return module


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
