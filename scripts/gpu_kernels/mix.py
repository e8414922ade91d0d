"""The instructions of a kernel by kind, read from LLVM's assembly."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LABEL = re.compile(r"^([$.]L[\w$]+):")
_JUMP = re.compile(r"^\s.*\b(?:bra|s_c?branch)\S*\s+.*?([$.]L[\w$]+)")
_LINE = re.compile(r"^\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*)")
_KINDS = (
    ("matrix", re.compile(r"mma\.sync|v_mfma|v_wmma")),
    ("dots", re.compile(r"dp4a|v_dot\d")),
    ("memory", re.compile(r"(ld|st)\.global|cp\.async\.[cb]|(global|flat|buffer|s)_(load|store)")),
    ("shared", re.compile(r"(ld|st)\.shared|ldmatrix|ds_(read|write|load|store)")),
    ("floats", re.compile(
        r"(?!ld|st|mov|cvt|selp).*\.(f32|f16|bf16)|v_(?!mov|cvt|cndmask).*_f(32|16)\b"
    )),
)  # fmt: skip
_LEFT_OUT = re.compile(r"mov\.|\.|s_nop|s_delay|s_waitcnt|bar\.|s_barrier|s_code|v_mov")
_TURNS = 8  # that a loop is taken to make
_NVIDIA = re.compile(r"\b(?:ld|st)\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)")
_ASYNC = re.compile(r"cp\.async\.\w+\.shared\.global\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(\d+)")
_AMD = re.compile(r"\bglobal_(?:load|store)_(\w+)")
_AMD_BYTES = (("x4", 16), ("128", 16), ("x3", 12), ("96", 12), ("x2", 8), ("64", 8),
              ("short", 2), ("16", 2), ("byte", 1), ("8", 1))  # fmt: skip


def mix(text: str) -> tuple[dict[str, float], float]:
    """Returns the share of each kind of instruction, and the mean bytes of a thread's access to
    memory. An instruction counts `_TURNS` times for each loop around it; moves, waits and barriers
    do not count."""
    found = dict.fromkeys([*(name for name, _ in _KINDS), "others"], 0)
    accesses = nbytes = 0
    for line, depth in _depths(text.splitlines()):
        match, times = _LINE.match(line), _TURNS**depth
        if match and not _LEFT_OUT.match(match[1]):
            kinds = (name for name, kind in _KINDS if kind.match(match[1]))
            found[next(kinds, "others")] += times
        if size := _bytes(line):
            accesses, nbytes = accesses + times, nbytes + times * size
    total = max(sum(found.values()), 1)
    shares = {name: round(count / total, 3) for name, count in found.items()}
    return shares, round(nbytes / max(accesses, 1), 1)


def _depths(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Each line with the number of loops around it: a jump to a label above ends one."""
    labels: dict[str, int] = {}
    ends: dict[int, int] = {}  # of the loops, by their beginnings
    for i, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = i
        elif (jump := _JUMP.match(line)) and jump[1] in labels:
            ends[labels[jump[1]]] = i
    around: list[int] = []
    for i, line in enumerate(lines):
        around = [end for end in around if end >= i] + ([ends[i]] if i in ends else [])
        yield line, len(around)


def _bytes(line: str) -> int:
    """The bytes of a thread's access to memory; 0 of another instruction."""
    if found := _NVIDIA.search(line):
        return int(found[1] or 1) * int(found[2]) // 8
    if found := _ASYNC.search(line):
        return int(found[1])
    if found := _AMD.search(line):
        return next((n for name, n in _AMD_BYTES if name in found[1]), 4)
    return 0
