"""What a GPU's thread asks to be copied by itself (cp.async), in the emulator: see gpu_emulator."""

from __future__ import annotations

import ctypes
import re


def with_copies(text: str) -> str:
    """cp.async as calls of `Copies.note`: the size and how much of it is read, or a group's end."""
    head = "call void @emu_copy(ptr %sync, i32 %me, "
    text = re.sub(
        r"call void @llvm\.nvvm\.cp\.async\.c[ag]\.shared\.global\.(\d+)(\.s)?\((.*)\)",
        lambda m: f"{head}i32 {m[1]}, {m[3]}{'' if m[2] else f', i32 {m[1]}'})",
        text,
    )
    nowhere = "ptr addrspace(3) null, ptr addrspace(1) null"
    text = re.sub(
        r"call void @llvm\.nvvm\.cp\.async\.commit\.group\(\)",
        f"{head}i32 -1, {nowhere}, i32 0)",
        text,
    )
    return re.sub(
        r"call void @llvm\.nvvm\.cp\.async\.wait\.group\(i32 (\d+)\)",
        rf"{head}i32 -2, {nowhere}, i32 \1)",
        text,
    )


class Copies:
    """What each thread asked to be copied and has not waited for: groups of (target, source, bytes,
    bytes that are read; the rest is 0)."""

    def __init__(self, threads: int) -> None:
        self.groups: list[list[list[tuple[int, int, int, int]]]] = [[[]] for _ in range(threads)]

    def note(self, me: int, size: int, target: int, source: int, count: int) -> None:
        groups = self.groups[me]
        if size == -1:
            groups.append([])
        elif size == -2:
            done = groups[: max(len(groups) - 1 - count, 0)]
            self.groups[me] = groups[len(done) :]
            for copy in (c for group in done for c in group):
                self._copy(*copy)
        else:
            assert target % size == source % size == 0, "a copy that is not aligned"
            groups[-1].append((target, source, size, count))

    def _copy(self, target: int, source: int, size: int, count: int) -> None:
        ctypes.memset(target, 0, size)
        ctypes.memmove(target, source, count)
