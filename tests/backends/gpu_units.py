"""What the matrix instructions of GPUs compute, from the registers of all lanes of a subgroup.

Written from the vendors' documents alone (element by element, as they state it), so that layouts
as weft.backends.llvm.matrix_units has them are checked, not repeated. Sources: NVIDIA PTX ISA,
"Matrix Fragments for mma.m16n8k16 with floating point type", "for mma.m16n8k32" and "ldmatrix"; AMD
CDNA3 ISA, "Matrix Arithmetic Instructions"; AMD RDNA3 ISA, "Wave Matrix Multiply Accumulate".
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import numpy as np

_NAMES = r"llvm\.(?:nvvm\.ldmatrix|nvvm\.mma|amdgcn\.mfma|amdgcn\.wmma)\."
SLOT = 192  # bytes of arguments, or of results, of one lane


def declared(text: str) -> dict[str, str]:
    """The matrix instructions of a module: the declaration of each by its name."""
    found = re.findall(rf"^(declare .*@({_NAMES}[\w.]*)\(.*\))$", text, flags=re.M)
    return {name: line for line, name in found}


def function(name: str, which: int, declared: str) -> str:
    """An LLVM function in the place of an intrinsic: leaves its arguments where `compute` finds
    them, meets the others twice, and gives back what `compute` found."""
    out, types = re.fullmatch(r"declare (.*) @\S+?\((.*)\)", declared).groups()  # type: ignore[union-attr]
    args = [t.strip() for t in types.split(",")]
    given = "".join(f", {t} %a{n}" for n, t in enumerate(args))
    lines = [
        f"define internal {out} @{name}(ptr %s, i32 %me{given}) noinline convergent {{",
        "  %p = getelementptr ptr, ptr %s, i64 3",
        "  %all = load ptr, ptr %p",
        f"  %mine = mul i32 %me, {2 * SLOT}",
        "  %slot = getelementptr i8, ptr %all, i32 %mine",
    ]
    at = 0
    for n, t in enumerate(args):
        lines.append(f"  %at{n} = getelementptr i8, ptr %slot, i32 {at}")
        lines.append(f"  store {t} %a{n}, ptr %at{n}, align 4")
        at += size(t)
    assert at <= SLOT
    lines += [
        "  call void @emu_sync(ptr %s)",
        "  %q = getelementptr ptr, ptr %s, i64 4",
        "  %compute = load ptr, ptr %q",
        f"  call void %compute(i32 {which}, i32 %me)",
        "  call void @emu_sync(ptr %s)",
        f"  %found = getelementptr i8, ptr %slot, i32 {SLOT}",
        f"  %r = load {out}, ptr %found, align 4",
        f"  ret {out} %r",
        "}",
    ]
    return "\n".join(lines)


def size(t: str) -> int:
    """Bytes of an LLVM type."""
    if t.startswith("ptr"):
        return 8
    vector = re.fullmatch(r"<(\d+) x (\w+)>", t)
    count, element = vector.groups() if vector else ("1", t)
    return int(count) * {"i32": 4, "float": 4, "half": 2, "i16": 2, "i64": 8, "i1": 4}[element]


def compute(name: str, slots: np.ndarray) -> None:
    """The intrinsic for one subgroup: `slots` is uint8[lanes, 2 * SLOT], arguments and results."""
    given, found = slots[:, :SLOT], slots[:, SLOT:]
    if "ldmatrix" in name:
        _ldmatrix(given, found, ".trans" in name)
        return
    kind = next(k for k in _UNITS if k in name)
    _UNITS[kind](given, found, "bf16" in name)


def _floats(raw: np.ndarray, bf16: bool) -> np.ndarray:
    """16-bit elements per lane, as float64[lanes, elements]."""
    raw = np.ascontiguousarray(raw)
    if not bf16:
        return raw.view(np.float16).astype(np.float64)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _sums(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view(np.float32)


def _bytes(raw: np.ndarray) -> np.ndarray:
    """int8 elements per lane, as int64[lanes, elements]."""
    return np.ascontiguousarray(raw).view(np.int8).astype(np.int64)


def _ints(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view(np.int32).astype(np.int64)


def _places(count: int, place: Callable[[int, int], tuple[int, int]]) -> tuple[np.ndarray, ...]:
    """(row, column) of item i of each of 32 lanes, as two arrays [32, count]."""
    found = [[place(lane, i) for i in range(count)] for lane in range(32)]
    return tuple(np.moveaxis(np.array(found), 2, 0))


def _mma_a(lane: int, i: int) -> tuple[int, int]:
    row = lane >> 2 if i in (0, 1, 4, 5) else (lane >> 2) + 8
    return row, lane % 4 * 2 + (i & 1) + (8 if i >= 4 else 0)


def _mma_b(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 2 + (i & 1) + (8 if i >= 2 else 0), lane >> 2


def _mma_c(lane: int, i: int) -> tuple[int, int]:
    return lane >> 2 if i < 2 else (lane >> 2) + 8, lane % 4 * 2 + (i & 1)


_A, _B, _C = _places(8, _mma_a), _places(4, _mma_b), _places(4, _mma_c)


def _mma(given: np.ndarray, found: np.ndarray, bf16: bool) -> None:
    """mma.sync.m16n8k16: a0..a7, b0..b3 in pairs, c0..c3."""
    assert len(given) == 32
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    a[_A], b[_B] = _floats(given[:, :16], bf16), _floats(given[:, 16:24], bf16)
    c[_C] = _sums(given[:, 24:40])
    d = (a @ b + c).astype(np.float32)
    found[:, :16] = np.ascontiguousarray(d[_C]).view(np.uint8)


def _mma_int_a(lane: int, i: int) -> tuple[int, int]:
    row = lane >> 2 if i < 4 or 8 <= i < 12 else (lane >> 2) + 8
    return row, lane % 4 * 4 + (i & 3) + (16 if i >= 8 else 0)


def _mma_int_b(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 4 + (i & 3) + (16 if i >= 4 else 0), lane >> 2


_IA, _IB = _places(16, _mma_int_a), _places(8, _mma_int_b)


def _mma_int(given: np.ndarray, found: np.ndarray, _: bool) -> None:
    """mma.sync.m16n8k32 of s8: a0..a15, b0..b7 in fours, c0..c3 of s32."""
    assert len(given) == 32
    a, b, c = (np.zeros(shape, np.int64) for shape in ((16, 32), (32, 8), (16, 8)))
    a[_IA], b[_IB], c[_C] = _bytes(given[:, :16]), _bytes(given[:, 16:24]), _ints(given[:, 24:40])
    found[:, :16] = np.ascontiguousarray((a @ b + c).astype(np.int32)[_C]).view(np.uint8)


# Item e of register j of a lane is element (lane / 4, lane % 4 * 2 + e) of matrix j.
_ROW, _ITEM = _places(8, lambda lane, i: (lane // 4, lane % 4 * 2 + i % 2))
_MATRIX = np.arange(8) // 2


def _ldmatrix(given: np.ndarray, found: np.ndarray, transposed: bool) -> None:
    """ldmatrix.x4.b16: lane 8 j + r points at row r of matrix j."""
    starts = np.ascontiguousarray(given[:, :8]).view(np.uint64)[:, 0]
    assert not (starts % 16).any(), "ldmatrix of a row that is not at a multiple of 16 bytes"
    rows = b"".join(ctypes.string_at(int(p), 16) for p in starts)
    matrices = np.frombuffer(rows, np.uint16).reshape(4, 8, 8)
    row, col = (_ITEM, _ROW) if transposed else (_ROW, _ITEM)
    found[:, :16] = np.ascontiguousarray(matrices[_MATRIX, row, col]).view(np.uint8)


def _mfma(given: np.ndarray, found: np.ndarray, bf16: bool) -> None:
    """v_mfma_f32_16x16x16: A[i][k] and B[k][j] are item k % 4 of lane i (or j) + 16 (k / 4), C and
    D[i][j] item i % 4 of lane j + 16 (i / 4)."""
    left, right, sums = (
        _floats(given[:, :8], bf16),
        _floats(given[:, 8:16], bf16),
        _sums(given[:, 16:32]),
    )
    assert len(given) == 64 and not given[:, 32:44].any()
    i, k = np.mgrid[:16, :16]
    a, b = left[i + 16 * (k // 4), k % 4], right[i + 16 * (k // 4), k % 4].T
    row, col = np.mgrid[:16, :16]
    lane, item = col + 16 * (row // 4), row % 4
    out = np.zeros((64, 4), np.float32)
    out[lane, item] = (a @ b + sums[lane, item]).astype(np.float32)
    found[:, :16] = out.view(np.uint8)


def _mfma_int(given: np.ndarray, found: np.ndarray, n: int) -> None:
    """v_mfma_i32_16x16x16i8 (n = 4 bytes to a lane) and 16x16x32_i8 (8): A[i][k] is item k % n of
    lane i + 16 (k / n); sums as those of floats."""
    left, right = _bytes(given[:, :n]), _bytes(given[:, n : 2 * n])
    sums = _ints(given[:, 2 * n : 2 * n + 16])
    i, k = np.mgrid[:16, : 4 * n]
    a, b = left[i + 16 * (k // n), k % n], right[i + 16 * (k // n), k % n].T
    row, col = np.mgrid[:16, :16]
    lane, item = col + 16 * (row // 4), row % 4
    out = np.zeros((64, 4), np.int32)
    out[lane, item] = (a @ b + sums[lane, item]).astype(np.int32)
    found[:, :16] = out.view(np.uint8)


def _wmma(given: np.ndarray, found: np.ndarray, bf16: bool) -> None:
    """v_wmma_f32_16x16x16, wave 32: lanes l and l + 16 both hold row l of A and column l of B, C
    and D[i][j] are item i / 2 of lane j + 16 (i % 2)."""
    left, right, sums = (
        _floats(given[:, :32], bf16),
        _floats(given[:, 32:64], bf16),
        _sums(given[:, 64:96]),
    )
    assert len(given) == 32
    for x in (left, right):
        assert np.array_equal(x[:16], x[16:], equal_nan=True), "lanes 16 to 31 differ"
    row, col = np.mgrid[:16, :16]
    lane, item = col + 16 * (row % 2), row // 2
    out = np.zeros((32, 8), np.float32)
    out[lane, item] = (left[:16] @ right[:16].T + sums[lane, item]).astype(np.float32)
    found[:, :32] = out.view(np.uint8)


def _wmma_int(given: np.ndarray, found: np.ndarray, _: bool) -> None:
    """v_wmma_i32_16x16x16_iu8, wave 32: as of floats, 16 bytes of a row or column to a lane. The
    flags say that both operands are signed and that sums wrap."""
    assert (given[:, [0, 20]] & 1).all() and not (given[:, 72] & 1).any()
    left, right, sums = _bytes(given[:, 4:20]), _bytes(given[:, 24:40]), _ints(given[:, 40:72])
    for x in (left, right):
        assert np.array_equal(x[:16], x[16:]), "lanes 16 to 31 differ"
    row, col = np.mgrid[:16, :16]
    lane, item = col + 16 * (row % 2), row // 2
    out = np.zeros((32, 8), np.int32)
    out[lane, item] = (left[:16] @ right[:16].T + sums[lane, item]).astype(np.int32)
    found[:, :32] = out.view(np.uint8)


_UNITS = {
    "nvvm.mma.m16n8k16": _mma,
    "nvvm.mma.m16n8k32": _mma_int,
    "amdgcn.mfma.f32.16x16x16": _mfma,
    "amdgcn.mfma.i32.16x16x16i8": lambda given, found, _: _mfma_int(given, found, 4),
    "amdgcn.mfma.i32.16x16x32.i8": lambda given, found, _: _mfma_int(given, found, 8),
    "amdgcn.wmma.f32.16x16x16": _wmma,
    "amdgcn.wmma.i32.16x16x16.iu8": _wmma_int,
}
