"""The threads of a GPU's group as fibers of one thread of the host: see gpu_emulator.

At a barrier a thread hands over to the next one, in a circle: when it goes on, all others have come
to the barrier too. That is the C library's swapcontext (glibc), some hundred nanoseconds, where a
POSIX barrier costs every thread a turn of the scheduler. The circle may go either way round: what
one order hides, a missing barrier, the other shows.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

# %s holds at place 0 what follows, as i64, and at place 1 the contexts of all threads and the host.
CURRENT, STEP, COUNT, DONE, TORN, X, Y, Z, SYNCS = range(9)  # SYNCS: one for each thread
_CONTEXT = 8192  # bytes, more than a ucontext_t on x86-64 (968) or AArch64 (4560)
_STACK = 1 << 19
_PLACES = {"link": 8, "stack": 16, "size": 32}  # in a ucontext_t

TEXT = f"""
declare i32 @swapcontext(ptr, ptr)
define internal void @emu_to(ptr %s, i64 %to) noinline {{
  %state = load ptr, ptr %s
  %from = load i64, ptr %state
  store i64 %to, ptr %state
  %at = getelementptr ptr, ptr %s, i64 1
  %all = load ptr, ptr %at
  %a = mul i64 %from, {_CONTEXT}
  %b = mul i64 %to, {_CONTEXT}
  %here = getelementptr i8, ptr %all, i64 %a
  %there = getelementptr i8, ptr %all, i64 %b
  %ignored = call i32 @swapcontext(ptr %here, ptr %there)
  ret void
}}
define internal i64 @emu_next(ptr %state) {{
  %me = load i64, ptr %state
  %step.at = getelementptr i64, ptr %state, i64 {STEP}
  %step = load i64, ptr %step.at
  %count.at = getelementptr i64, ptr %state, i64 {COUNT}
  %count = load i64, ptr %count.at
  %sum = add i64 %me, %step
  %next = urem i64 %sum, %count
  ret i64 %next
}}
define internal void @emu_sync(ptr %s) noinline convergent {{
  %state = load ptr, ptr %s
  %me = load i64, ptr %state
  %place = add i64 %me, {SYNCS}
  %mine = getelementptr i64, ptr %state, i64 %place
  %so.far = load i64, ptr %mine
  %more = add i64 %so.far, 1
  store i64 %more, ptr %mine
  %done.at = getelementptr i64, ptr %state, i64 {DONE}
  %done = load i64, ptr %done.at
  %alone = icmp ne i64 %done, 0
  br i1 %alone, label %torn, label %on
torn:
  %torn.at = getelementptr i64, ptr %state, i64 {TORN}
  store i64 1, ptr %torn.at
  %count.at = getelementptr i64, ptr %state, i64 {COUNT}
  %host = load i64, ptr %count.at
  call void @emu_to(ptr %s, i64 %host)
  ret void
on:
  %next = call i64 @emu_next(ptr %state)
  call void @emu_to(ptr %s, i64 %next)
  ret void
}}
define void @emu_thread(i64 %me, ptr %s) {{
  %state = load ptr, ptr %s
  %x.at = getelementptr i64, ptr %state, i64 {X}
  %y.at = getelementptr i64, ptr %state, i64 {Y}
  %z.at = getelementptr i64, ptr %state, i64 {Z}
  %x = load i32, ptr %x.at
  %y = load i32, ptr %y.at
  %z = load i32, ptr %z.at
  %bufs.at = getelementptr ptr, ptr %s, i64 8
  %bufs = load ptr, ptr %bufs.at
  %scalars.at = getelementptr ptr, ptr %s, i64 9
  %scalars = load ptr addrspace(1), ptr %scalars.at
  %short = trunc i64 %me to i32
  call void @run(ptr %bufs, ptr addrspace(1) %scalars, i32 %short, i32 %x, i32 %y, i32 %z, ptr %s)
  %done.at = getelementptr i64, ptr %state, i64 {DONE}
  %done = load i64, ptr %done.at
  %now = add i64 %done, 1
  store i64 %now, ptr %done.at
  %count.at = getelementptr i64, ptr %state, i64 {COUNT}
  %count = load i64, ptr %count.at
  %all = icmp eq i64 %now, %count
  %next = call i64 @emu_next(ptr %state)
  %to = select i1 %all, i64 %count, i64 %next
  call void @emu_to(ptr %s, i64 %to)
  unreachable
}}
define void @emu_start(ptr %s, i64 %first) {{
  call void @emu_to(ptr %s, i64 %first)
  ret void
}}
"""

_START = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
_stacks = mmap.mmap(-1, 1024 * _STACK, flags=_private)  # of the largest group; pages come when used


class Fibers:
    """`count` threads that take `grid`; `state` and `contexts` are places 0 and 1 of %s."""

    def __init__(self, count: int, grid: tuple[int, int, int], backwards: bool) -> None:
        self.count, self.first = count, count - 1 if backwards else 0
        self.state = np.zeros(SYNCS + count + 1, np.int64)
        self.state[:SYNCS] = count, count - 1 if backwards else 1, count, 0, 0, *grid
        self.contexts = np.zeros((count + 1, _CONTEXT), np.uint8)

    def run(self, engine: Any, places: int) -> None:
        """Plays all threads to their end; `places` is %s. AssertionError where not all came to the
        same number of barriers."""
        libc = ctypes.CDLL(None)
        entry = ctypes.c_void_p(engine.get_function_address("emu_thread"))
        stacks = ctypes.addressof(ctypes.c_char.from_buffer(_stacks))
        for me in range(self.count):
            context = ctypes.c_void_p(self.contexts[me].ctypes.data)
            libc.getcontext(context)
            for name, value in (("link", 0), ("stack", stacks + me * _STACK), ("size", _STACK)):
                at = _PLACES[name]
                self.contexts[me, at : at + 8].view(np.int64)[0] = value
            libc.makecontext(context, entry, 2, ctypes.c_long(me), ctypes.c_void_p(places))
        _START(engine.get_function_address("emu_start"))(places, self.first)
        came = self.state[SYNCS : SYNCS + self.count]
        assert not self.state[TORN] and (came == came[0]).all(), "not all threads came to a barrier"
