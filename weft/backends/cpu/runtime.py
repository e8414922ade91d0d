"""The native half of the CPU device: plays a whole Program in one call, with worker threads.

Everything below is LLVM IR text, compiled and cached like any kernel. A Program is a table of
64-byte entries, one per step; `weft_run` walks it. A step with little work runs on the caller; a
larger one is cut into chunks of groups, and each thread has a slice of them, so that consecutive
steps find their rows in the same core's cache. A slice's 64-bit ticket holds (step number << 32 |
chunks left); taking a chunk is one compare-and-swap, so it can never be taken for the wrong step.
A thread whose slice is empty takes from the others', and the caller waits for chunks to be
finished, never for threads. Idle workers spin briefly and then sleep in a futex. How long a group
takes is measured as the Program runs and decides how it is cut; cutting never changes a result.
"""

from __future__ import annotations

import numpy as np

from weft.backends.cpu.runtime_run import RUN
from weft.backends.cpu.runtime_text import PARTS

# One step. `cost` is clock ticks per group times 256, 0 while unknown.
_ENTRY = "fn:u8 args:u8 gx:i4 gy:i4 gz:i4 pad:i4 groups:i8 chunk:i8 chunks:i4 pad2:i4 cost:i8"
ENTRY_DTYPE = np.dtype([(name, form) for name, form in (f.split(":") for f in _ENTRY.split())])

# Shared by the caller and the workers: name, format, offset. Words that different threads write
# stand on cache lines of their own: done, the line of the sleepers, and a ticket per thread.
_POOL = (
    ("done", "i4", 64),
    ("wake", "i4", 128), ("sleepers", "i4", 132), ("stop", "i4", 136), ("caller_waits", "i4", 140),
    ("entry", "u8", 192), ("scalars", "u8", 200), ("syscall", "u8", 208), ("futex", "i8", 216),
    ("yield", "u8", 224), ("threads", "i4", 232), ("spins", "i4", 236), ("serial_ticks", "i8", 240),
    ("wake_ticks", "i8", 248), ("chunk_ticks", "i8", 256), ("scratch", "u8", 264),
    ("tickets", "u8", 320),
)  # fmt: skip
POOL_OFFSETS = {name: offset for name, _, offset in _POOL}
POOL_DTYPE = np.dtype(
    {
        "names": list(POOL_OFFSETS),
        "formats": [form for _, form, _ in _POOL],
        "offsets": list(POOL_OFFSETS.values()),
        "itemsize": 384,
    }
)

_PAUSE = {
    "x86_64": ("llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "aarch64": ("llvm.aarch64.isb(i32 15)", "declare void @llvm.aarch64.isb(i32)"),
}
_CLOCK = {"x86_64": "llvm.readcyclecounter"}


def source(arch: str) -> str:
    """The LLVM IR of the runtime for one architecture ("x86_64", "aarch64", ...).

    Functions: weft_run(pool, table, steps, scalars), weft_worker(pool, scratch, number) -> i32 (0
    when told to stop, 1 when idle on a system without futex), weft_copy and weft_fill (entries
    with the signature of a kernel), weft_clock() -> ticks.
    """
    pause = _PAUSE.get(arch)
    text = (RUN + PARTS).replace("@CLOCK", "@" + _CLOCK.get(arch, "llvm.readsteadycounter"))
    text = text.replace("  PAUSE\n", f"  call void @{pause[0]}\n" if pause else "")
    for name, offset in POOL_OFFSETS.items():
        text = text.replace(f"FIELD {name}\n", f"getelementptr i8, ptr %pool, i64 {offset}\n")
    return text + (pause[1] + "\n" if pause else "")
