"""LLVM IR text → object code, by llvmlite. Imported only when something must be compiled."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import llvmlite
import llvmlite.binding as llvm

from weft.backends.cpu.host import Host
from weft.backends.llvm.optimise import LOCK, optimised

_machines: dict[Host, llvm.TargetMachine] = {}


def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def ask_llvm() -> Host:
    """The host's triple, CPU name and features as LLVM detects them."""
    with LOCK:
        _initialise()
        version = ".".join(str(v) for v in llvm.llvm_version_info)
        features = llvm.get_host_cpu_features().flatten()
        triple = llvm.get_process_triple()
        cpu = llvm.get_host_cpu_name()
        return Host(triple, cpu, features, f"{llvmlite.__version__}/{version}")


def own_linking(host: Host) -> bool:
    """Can link.py place this host's objects? (Elsewhere LLVM's MCJIT does.)"""
    return sys.platform == "linux" and host.arch == "x86_64"


def _new_machine(host: Host) -> llvm.TargetMachine:
    _initialise()
    own = own_linking(host)
    return llvm.Target.from_triple(host.triple).create_target_machine(
        cpu=host.cpu,
        features=host.features,
        opt=3,
        reloc="pic" if own else "default",
        codemodel="small" if own else "jitdefault",
        jit=not own,
    )


def _machine(host: Host) -> llvm.TargetMachine:
    if host not in _machines:
        _machines[host] = _new_machine(host)
    return _machines[host]


def _optimised(text: str, host: Host, name: str) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    machine = _machine(host)
    return optimised(text, machine, name, level=2, loops=True), machine


def compile_object(text: str, host: Host, name: str) -> bytes:
    """The relocatable object of one module. Raises CompileError naming the kernel."""
    with LOCK:
        module, machine = _optimised(text, host, name)
        return machine.emit_object(module)


def assembly(text: str, host: Host, name: str = "kernel") -> str:
    """The optimised assembly, for people."""
    with LOCK:
        module, machine = _optimised(text, host, name)
        return machine.emit_assembly(module)


def link_by_llvm(host: Host, data: bytes, wanted: Sequence[str]) -> dict[str, int]:
    """Loads an object with MCJIT; the addresses of its `wanted` symbols. The code stays for the
    life of the process."""
    with LOCK:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _new_machine(host))
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        found = {name: int(engine.get_function_address(name)) for name in wanted}
        engine.detach()  # never disposed of: a worker may be in its code until the very end
        return found
