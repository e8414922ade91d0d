"""One module of LLVM IR through LLVM's optimiser. Imported only when something is compiled."""

from __future__ import annotations

import threading

import llvmlite.binding as llvm

from weft.core.errors import CompileError

LOCK = threading.Lock()  # LLVM's own objects are for one thread at a time


def optimised(
    text: str, machine: llvm.TargetMachine, name: str, level: int, loops: bool
) -> llvm.ModuleRef:
    """The parsed, verified and optimised module. `loops`: let LLVM vectorise, interleave and unroll
    loops. Raises CompileError naming the kernel."""
    try:
        module = llvm.parse_assembly(text)
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
    builder.getModulePassManager().run(module, builder)
    return module
