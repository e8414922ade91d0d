"""The features of an AArch64 processor, as the system reports them.

LLVM reads /proc/cpuinfo on Linux, which containers and emulators may hide or fill with another
machine's, and detects nothing on macOS.

Sources: Linux, Documentation/arch/arm64/elf_hwcaps.rst (numbers of bits: asm/hwcap.h); Apple,
"Determining instruction set characteristics"; Microsoft, IsProcessorFeaturePresent.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

_AT_HWCAP, _AT_HWCAP2 = 16, 26
# LLVM's name of a feature -> (entry of the auxiliary vector, bit)
_LINUX = {
    "fullfp16": (_AT_HWCAP, 10), "dotprod": (_AT_HWCAP, 20), "sve": (_AT_HWCAP, 22),
    "lse": (_AT_HWCAP, 8), "sve2": (_AT_HWCAP2, 1), "i8mm": (_AT_HWCAP2, 13),
    "bf16": (_AT_HWCAP2, 14), "sme": (_AT_HWCAP2, 23),
}  # fmt: skip
_MACOS = {
    "fullfp16": "FEAT_FP16", "dotprod": "FEAT_DotProd", "lse": "FEAT_LSE", "i8mm": "FEAT_I8MM",
    "bf16": "FEAT_BF16", "sme": "FEAT_SME",
}  # fmt: skip
_WINDOWS = {"lse": 34, "dotprod": 43}  # PF_ARM_V81_ATOMIC_.., PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE


def is_arm() -> bool:
    """True if this process runs on AArch64."""
    return platform.machine().lower() in ("aarch64", "arm64")


def features() -> frozenset[str] | None:
    """Returns LLVM's names of the features above that this processor has, or None where the system
    does not report them (or is not AArch64)."""
    if not is_arm():
        return None
    try:
        if sys.platform == "darwin":
            return frozenset(f for f, name in _MACOS.items() if _sysctl(f"hw.optional.arm.{name}"))
        if sys.platform == "win32":
            return frozenset(f for f, number in _WINDOWS.items() if _windows(number))
        words = {entry: _auxiliary(entry) for entry in (_AT_HWCAP, _AT_HWCAP2)}
    except (AttributeError, OSError):
        return None
    return frozenset(f for f, (entry, bit) in _LINUX.items() if words[entry] >> bit & 1)


def merged(flags: str, found: frozenset[str] | None) -> str:
    """LLVM's feature string `flags` with what the system `found` in place of LLVM's own view."""
    if found is None:
        return flags
    kept = [f for f in flags.split(",") if f and f[1:] not in _LINUX]
    return ",".join([*kept, *(f"+{f}" for f in sorted(found))])


def _auxiliary(entry: int) -> int:
    ask = ctypes.CDLL(None).getauxval
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return int(ask(entry))


def _sysctl(name: str) -> int:
    """An integer that macOS keeps; 0 where it has none of that name."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    ask = ctypes.CDLL(None).sysctlbyname
    failed = ask(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return 0 if failed else value.value


def _windows(number: int) -> int:
    kernel: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    return int(kernel.IsProcessorFeaturePresent(number))
