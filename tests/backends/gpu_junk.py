"""Junk in all that a kernel has not written: it must not show in what the kernel leaves.

A kernel in the emulator runs once for each kind of junk. The kind fills private arrays, tiles and
the undefined parts of vectors (the registers of a GPU), the shared memory of each group, buffers
that the kernel only writes, and what no one has written in those that it reads. Afterwards every
byte is the same for all kinds, or still holds its junk: then nobody wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

KINDS = ("zeros", "ones", "nan", "large", "random")
_SIZES = {"float": 4, "half": 2, "bfloat": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
_SHARED = re.compile(r"^@(\w+) = addrspace\(3\) global \[(\d+) x (\w+)\]", re.M)
_ALLOCA = re.compile(r"  (%\w+) = alloca ([^,]+)(, align \d+)?")
_UNDEFINED = re.compile(r"(<\d+ x (?:float|half|bfloat|i8|i16|i32|i64)>) poison")
_COPY = "llvm.memcpy.p0.p0.i64"


def junk(kind: str, nbytes: int, dtype: np.dtype) -> np.ndarray:
    """uint8[nbytes]; NaN and large numbers are those of the dtype."""
    if kind in ("zeros", "ones"):
        return np.full(nbytes, 0 if kind == "zeros" else 0xFF, np.uint8)
    if kind == "random":
        return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    one = _number(kind, dtype)
    return np.resize(np.frombuffer(one.tobytes(), np.uint8), nbytes)


def _number(kind: str, dtype: np.dtype) -> np.ndarray:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array(limits.max if kind == "large" else limits.max // 3, dtype)
    if dtype.kind == "b":
        return np.array(kind == "large")
    return np.array(3e38 if dtype.itemsize == 4 else 6e4, np.float64).astype(dtype) * (
        np.array(np.nan, dtype) if kind == "nan" else np.array(1, dtype)
    )


def shared_arrays(text: str) -> dict[str, int]:
    """The bytes of each shared array of a module."""
    return {name: int(n) * _SIZES[t] for name, n, t in _SHARED.findall(text)}


def with_junk(text: str) -> str:
    """The same module, whose function @body takes the junk of registers and of the stack from the
    pointer that %sync holds at place 6."""
    head, body = text.split("entry:\n", 1)
    body, rest = body.split("\n}\n", 1)
    lines = ["  %junk.at = getelementptr ptr, ptr %sync, i64 6", "  %junk = load ptr, ptr %junk.at"]
    for n, line in enumerate(body.split("\n")):
        for k, type_ in enumerate(_UNDEFINED.findall(line)):
            lines.append(f"  %junk.{n}.{k} = load {type_}, ptr %junk, align 1")
            line = line.replace(f"{type_} poison", f"{type_} %junk.{n}.{k}", 1)
        lines.append(line)
        if slot := _ALLOCA.fullmatch(line):
            size = f"ptrtoint (ptr getelementptr ({slot[2]}, ptr null, i32 1) to i64)"
            lines.append(f"  call void @{_COPY}(ptr {slot[1]}, ptr %junk, i64 {size}, i1 false)")
    declared = f"declare void @{_COPY}(ptr, ptr, i64, i1)\n"
    return f"{head}entry:\n" + "\n".join(lines) + "\n}\n" + declared + rest


class Fills:
    """What the buffers of one launch hold before it, for each kind. `known` marks the bytes of each
    buffer that were written once (None: all); `writes` the buffers that are only written."""

    def __init__(
        self,
        arrays: Sequence[np.ndarray],
        known: Sequence[np.ndarray | None],
        writes: Sequence[bool],
    ) -> None:
        self.before = [a.view(np.uint8) for a in arrays]
        self.types = [a.dtype for a in arrays]
        self.known = known
        self.free = [
            np.full(a.size, w) if k is None else ~k | w
            for a, k, w in zip(self.before, known, writes, strict=True)
        ]

    def fill(self, kind: str) -> list[np.ndarray]:
        found = []
        for a, dtype, free in zip(self.before, self.types, self.free):
            filled = np.where(free, junk(kind, a.size, dtype), a)
            found.append(filled.view(dtype))
        return found

    def settle(self, name: str, found: dict[str, list[np.ndarray]]) -> None:
        """Takes over what all kinds agree on; raises AssertionError for a byte that they do not and
        that does not hold its junk still."""
        for i, (before, dtype, free) in enumerate(zip(self.before, self.types, self.free)):
            results = {kind: arrays[i].view(np.uint8) for kind, arrays in found.items()}
            first, *others = results.values()
            same = np.logical_and.reduce([first == other for other in others] or [first == first])
            left = free.copy()
            for kind, result in results.items():
                left &= result == junk(kind, before.size, dtype)
            wrong = np.nonzero(~same & ~left)[0] // dtype.itemsize
            assert not wrong.size, (
                f"kernel {name}: elements {sorted(set(wrong.tolist()))[:8]} of buffer {i} depend "
                f"on what memory or registers held before"
            )
            np.copyto(before, first, where=same)
            if self.known[i] is not None:
                self.known[i][:] |= same  # type: ignore[index]
