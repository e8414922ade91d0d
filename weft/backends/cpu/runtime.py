"""The native half of the CPU device: runs a whole Program in one call, with worker threads.

Its functions are LLVM IR, compiled and cached like any kernel. A Program is a table of 64-byte
entries, one per step; `weft_run` walks it. A step with little work runs on the caller. A larger one
is cut into chunks of groups. Each thread has a slice of them, so that consecutive steps find their
rows in the same core's cache.
A slice's 64-bit ticket holds (step number << 32 | chunks left); taking a chunk is one
compare-and-swap, so it can never be taken for the wrong step. A thread whose slice is empty takes
from the others. The caller waits for chunks to be finished, never for threads. Idle workers spin
briefly and then sleep in a futex. The time per group is measured as the Program runs and decides
the cutting; cutting never changes a result. `weft_alone` runs Programs with little work in all,
without other threads.
"""

from __future__ import annotations

import functools

from weft.backends.cpu import native, runtime_call, runtime_parts, runtime_run

_PAUSE = {
    "x86_64": ("llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()\n"),
    "aarch64": ("llvm.aarch64.isb(i32 15)", "declare void @llvm.aarch64.isb(i32)\n"),
}
_CLOCK = {"x86_64": "llvm.readcyclecounter"}


@functools.cache
def source(arch: str) -> str:
    """Returns the LLVM IR of the runtime for one architecture ("x86_64", "aarch64", ...).

    Functions: weft_run(pool, table, steps, scalars); weft_alone(table, steps, scalars, scratch);
    weft_worker(pool, scratch, number) -> i32 (0 when told to stop, 1 when idle on a system without
    futex); weft_copy and weft_fill (entries with the signature of a kernel); weft_clock() -> ticks;
    and weft_call, a function for Python (see direct.py).
    """
    pause, declared = _PAUSE.get(arch, ("", ""))
    clock = _CLOCK.get(arch, "llvm.readsteadycounter")
    functions = [
        *runtime_parts.functions(clock, pause), *runtime_run.functions(clock, pause),
        runtime_call.fits(), runtime_call.call(),
    ]  # fmt: skip
    declares = f"declare i64 @{clock}()\n{declared}{native.INTRINSICS}{native.ATTRIBUTES}"
    return "".join(f.text() for f in functions) + declares
