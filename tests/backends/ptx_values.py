"""What PTX instructions compute, on NumPy vectors of one value per thread.

Written from NVIDIA's "PTX ISA" alone ("Instruction Set", each instruction's semantics), for the
instructions that LLVM prints for the project's kernels; any other is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

TYPES = {
    "b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "u8": np.uint8,
    "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "s8": np.int8, "s16": np.int16,
    "s32": np.int32, "s64": np.int64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
    "bf16": ml_dtypes.bfloat16, "pred": np.bool_, "f16x2": np.uint32, "bf16x2": np.uint32,
    "f32x2": np.uint64,
}  # fmt: skip
Values = list[np.ndarray]


def typed(x: np.ndarray, name: str) -> np.ndarray:
    """A register's content as a type of its size, or cut down to a smaller one."""
    goal = np.dtype(TYPES[name])
    if x.dtype == goal:
        return x
    if x.dtype.itemsize > goal.itemsize:
        x = x.astype(f"u{goal.itemsize}")
    return x.view(goal)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded once: the product is exact in float64, and a sum whose rounding
    to float64 lost something is made odd, so that rounding again is right."""
    x, z = a.astype(np.float64) * b, c.astype(np.float64)
    s = x + z
    t = s - x
    lost = (x - (s - t)) + (z - t)
    bits = s.view(np.int64)
    away = (lost > 0) == (s > 0)
    step = np.where((lost != 0) & np.isfinite(lost) & (bits & 1 == 0), np.where(away, 1, -1), 0)
    return (bits + step).view(np.float64).astype(np.float32)


def _whole(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = [x.astype(np.int64 if a.dtype.itemsize < 8 else a.dtype) for x in (a, b)]
    quotient = np.abs(wide[0]) // np.where(wide[1] == 0, 1, np.abs(wide[1]))
    quotient = np.where((wide[0] < 0) != (wide[1] < 0), -quotient, quotient)
    return (quotient if op == "div" else wide[0] - quotient * wide[1]).astype(a.dtype)


def _shift(op: str, a: np.ndarray, n: np.ndarray) -> np.ndarray:
    width = a.dtype.itemsize * 8
    n = typed(n, "u32").astype(a.dtype)
    last = a.dtype.type(width - 1)
    if op == "shl":
        return np.where(n > last, a.dtype.type(0), a << np.minimum(n, last))
    gone = a.dtype.type(0) if a.dtype.kind == "u" else a >> last
    return np.where(n > last, gone, a >> np.minimum(n, last))


_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


def compare(kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """setp: for floats ne is ordered, the names that end in u hold for NaN too."""
    if a.dtype.kind in "iu":
        return _COMPARE[kind](a, b)
    nan = np.isnan(a) | np.isnan(b)
    if kind in ("nan", "num"):
        return nan if kind == "nan" else ~nan
    found = _COMPARE[kind.removesuffix("u")](a, b)
    return found | nan if kind.endswith("u") else found & ~nan


def convert(op: list[str], x: Values) -> np.ndarray:
    """cvt.how.to.from."""
    to, source, how = op[-2], op[-1], set(op[1:-2])
    assert how <= {"rn", "rni", "rzi", "rmi", "rpi"}, op
    if to.endswith("x2"):
        half = np.dtype(TYPES[to.removesuffix("x2")])
        parts = [v.astype(half).view(np.uint16).astype(np.uint32) for v in x]
        return parts[0] << 16 | parts[1]
    a, goal = x[0], np.dtype(TYPES[to])
    if source.startswith(("f", "bf")):
        rounds = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
        for name in how & set(rounds):
            a = rounds[name](a)
        if goal.kind in "iu":
            limits = np.iinfo(goal)
            a = np.clip(np.where(np.isnan(a), 0, a.astype(np.float64)), limits.min, limits.max)
    return a.astype(goal)


def _permuted(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    found = np.zeros_like(a)
    for k in range(4):
        pick = selector >> np.uint32(4 * k) & np.uint32(15)
        byte = (both >> (pick.astype(np.uint64) & np.uint64(7)) * np.uint64(8)) & np.uint64(255)
        sign = np.where(byte > 127, 255, 0)
        found |= np.where(pick > 7, sign, byte).astype(np.uint32) << np.uint32(8 * k)
    return found


def _field(a: np.ndarray, at: np.ndarray, count: np.ndarray) -> np.ndarray:
    """bfe, where the field lies within the register."""
    at, count = (typed(x, "u32").astype(np.int64) for x in (at, count))
    assert ((count > 0) & (at + count <= 32)).all()
    moved = typed(a, "u32").astype(np.int64) >> at & (1 << count) - 1
    sign = moved >> (count - 1) & 1
    return (moved - (sign << count) if a.dtype.kind == "i" else moved).astype(a.dtype)


def compute(op: str, x: Values) -> np.ndarray:
    """The result of an instruction without effects; operands have the types that it names."""
    parts = op.split(".")
    root, last = parts[0], parts[-1]
    if root == "cvt":
        return convert(parts, x)
    if last.endswith("x2"):
        halves = [v.view(TYPES[last.removesuffix("x2")]) for v in x]
        return compute(op.removesuffix("x2"), halves).view(TYPES[last])
    if parts[-2] == "f32" and last in ("f16", "bf16"):
        return compute(op.removesuffix(f".{last}"), [v.astype(np.float32) for v in x])
    real = x[0].dtype.kind not in "iub"
    if root == "mul" and "wide" in parts:
        wide = x[0].dtype.kind + str(2 * x[0].dtype.itemsize)
        return x[0].astype(wide) * x[1].astype(wide)
    if root == "mul" and "hi" in parts:
        wide = x[0].dtype.kind + str(2 * x[0].dtype.itemsize)
        product = x[0].astype(wide) * x[1].astype(wide)
        return (product >> wide_bits(x[0])).astype(x[0].dtype)
    if root in _BINARY:
        return _BINARY[root](x[0], x[1])
    if root in ("min", "max"):
        exact = (np.fmin, np.fmax) if real else (np.minimum, np.maximum)
        return exact[root == "max"](x[0], x[1])
    if root in ("div", "rem"):
        return x[0] / x[1] if real else _whole(root, x[0], x[1])
    if root == "fma":
        return fused(*x)
    if root == "mad":
        return x[0] * x[1] + x[2]
    if root in ("shl", "shr"):
        return _shift(root, x[0], x[1])
    if root == "selp":
        return np.where(x[2], x[0], x[1])
    if op == "shf.l.wrap.b32":
        both = x[1].astype(np.uint64) << np.uint64(32) | x[0]
        return (both << (x[2] & np.uint32(31)).astype(np.uint64) >> np.uint64(32)).astype(np.uint32)
    if root == "bfe":
        return _field(*x)
    if op == "bfi.b32":
        mask = ((np.uint64(1) << x[3].astype(np.uint64)) - np.uint64(1)).astype(np.uint32) << x[2]
        return x[1] & ~mask | x[0] << x[2] & mask
    if op == "prmt.b32":
        return _permuted(*x)
    one = {
        "not": np.invert, "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "rcp": np.reciprocal
    }  # fmt: skip
    assert root in one, f"{op} is not known"
    return one[root](x[0])


def wide_bits(x: np.ndarray) -> int:
    """The bits of an element."""
    return x.dtype.itemsize * 8
