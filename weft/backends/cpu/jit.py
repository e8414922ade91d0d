"""LLVM IR text → object code, by llvmlite. Imported only when something must be compiled."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import PriorityQueue

import llvmlite
import llvmlite.binding as llvm

from weft.backends.cpu import arm
from weft.backends.cpu.host import Host, quickly
from weft.backends.llvm.optimise import (
    LLVM,
    QUICK,
    WRITTEN_OUT,
    emitted,
    has_register_tile,
    optimised,
)

_lock = threading.Lock()  # only ever held inside LLVM, so never while forking
# Machines that no thread uses now, by host and effort.
_spare: dict[tuple[Host, int], list[llvm.TargetMachine]] = {}


def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def ask_llvm() -> Host:
    """The host's triple, CPU name and features as LLVM detects them."""
    with LLVM:
        _initialise()
        version = ".".join(str(v) for v in llvm.llvm_version_info)
        features = arm.merged(llvm.get_host_cpu_features().flatten(), arm.features())
        triple = llvm.get_process_triple()
        cpu = llvm.get_host_cpu_name()
        return Host(triple, cpu, features, f"{llvmlite.__version__}/{version}")


def own_linking(host: Host) -> bool:
    """Can link.py place this host's objects? (Elsewhere LLVM's MCJIT does.)"""
    return sys.platform == "linux" and host.arch == "x86_64"


def _new_machine(host: Host, effort: int = 3) -> llvm.TargetMachine:
    _initialise()
    own = own_linking(host)
    return llvm.Target.from_triple(host.triple).create_target_machine(
        cpu=host.cpu,
        features=host.features,
        opt=effort,
        reloc="pic" if own else "default",
        codemodel="small" if own else "jitdefault",
        jit=not own,
    )


@contextmanager
def _machine(host: Host) -> Iterator[llvm.TargetMachine]:
    """A machine that no other thread uses; the block may call LLVM."""
    effort = 0 if quickly() else 3
    with LLVM:
        with _lock:
            free = _spare.setdefault((host, effort), [])
            machine = free.pop() if free else _new_machine(host, effort)
        try:
            yield machine
        finally:
            free.append(machine)


def _optimised(text: str, machine: llvm.TargetMachine, name: str) -> llvm.ModuleRef:
    passes = QUICK if quickly() else WRITTEN_OUT if has_register_tile(text) else ()
    return optimised(text, machine, name, level=2, loops=True, passes=passes)


def compile_object(text: str, host: Host, name: str) -> bytes:
    """The relocatable object of one module. Raises CompileError naming the kernel."""
    with _machine(host) as machine:
        return emitted(_optimised(text, machine, name), machine)


def compile_objects(
    sources: Sequence[tuple[str, Callable[[], str]]], host: Host, threads: int
) -> list[bytes]:
    """Returns the objects of several modules, given as names and functions that render them, made
    on so many threads. Raises CompileError naming the kernel."""
    if min(threads, len(sources)) < 2:
        return [compile_object(text(), host, name) for name, text in sources]
    with Compiling(host, min(threads, len(sources))) as compiling:
        started = [compiling.add(name, text()) for name, text in sources]
        return [one.result() for one in started]


class Compiling:
    """Threads that compile modules. A free one takes the longest text that waits. Leaving the
    context waits for all."""

    def __init__(self, host: Host, threads: int) -> None:
        self._host = host
        self._pool = ThreadPoolExecutor(threads, "weft-llvm")
        self._waiting: PriorityQueue[tuple[int, int, str, str, Future[bytes]]] = PriorityQueue()
        self._numbers = itertools.count()

    def add(self, name: str, text: str) -> Future[bytes]:
        """Returns the object to come, or the CompileError that names the kernel."""
        made: Future[bytes] = Future()
        self._waiting.put((-len(text), next(self._numbers), name, text, made))
        self._pool.submit(self._longest)
        return made

    def _longest(self) -> None:
        _, _, name, text, made = self._waiting.get_nowait()
        try:
            made.set_result(compile_object(text, self._host, name))
        except BaseException as error:
            made.set_exception(error)

    def __enter__(self) -> Compiling:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def assembly(text: str, host: Host, name: str = "kernel") -> str:
    """The optimised assembly, for people."""
    with _machine(host) as machine:
        return str(machine.emit_assembly(_optimised(text, machine, name)))


def link_by_llvm(host: Host, data: bytes, wanted: Sequence[str]) -> dict[str, int]:
    """Loads an object with MCJIT; the addresses of its `wanted` symbols. The code stays for the
    life of the process."""
    with LLVM, _lock:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _new_machine(host))
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        found = {name: int(engine.get_function_address(name)) for name in wanted}
        engine.detach()  # never disposed of: a worker may run its code until the very end
        return found
