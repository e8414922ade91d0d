"""The capabilities of this machine's CPU, read without loading LLVM once they are known."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import re
import sys
from dataclasses import astuple, replace

from weft.backends.cpu import arm
from weft.core.caps import CPU, Caps
from weft.core.errors import DeviceError, UsageError
from weft.core.records import dataclass
from weft.host.cache import DiskCache

SCRATCH_BYTES = 4 << 20  # per worker, for large private arrays
AMX = frozenset({"amx-tile", "amx-bf16", "amx-int8"})  # all that have one have the others
# Linux x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA); Documentation/arch/x86/xstate.
_ARCH_PRCTL, _REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


@dataclass(frozen=True)
class Host:
    """LLVM's view of the CPU: target triple, CPU name, feature string, LLVM version."""

    triple: str
    cpu: str
    features: str
    version: str

    @property
    def arch(self) -> str:
        """ "x86_64", "aarch64", ..."""
        arch = self.triple.split("-")[0]
        return {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)

    @property
    def enabled(self) -> frozenset[str]:
        """The LLVM names of the enabled features."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))


def detect(cache: DiskCache) -> Host:
    """The host, from the cache when CPU and llvmlite are the ones that were seen before. Raises
    DeviceError when llvmlite is missing."""
    key = f"host3:{_fingerprint()}"
    known = cache.get(key)
    if known is not None:
        host = Host(*known.decode().split("\n"))
    else:
        from weft.backends.cpu import jit

        host = jit.ask_llvm()
        cache.put(key, "\n".join(astuple(host)).encode())
    return host if not host.enabled & AMX or tiles_allowed() else without_tiles(host)


def without_tiles(host: Host) -> Host:
    """The host as if it had no AMX."""
    kept = (f for f in host.features.split(",") if not f.startswith("+amx"))
    return replace(host, features=",".join(kept))


@functools.cache
def tiles_allowed() -> bool:
    """True if this process may use the AMX tile registers: asks Linux for it, once. Permission
    holds for every thread and for children after a fork."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    long = ctypes.c_long
    status: int = libc.syscall(long(_ARCH_PRCTL), long(_REQ_XCOMP_PERM), long(_XTILEDATA))
    return status == 0


def _fingerprint() -> str:
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise DeviceError("the cpu device needs llvmlite, which is missing: pip install llvmlite")
    status = os.stat(spec.origin)
    times = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    parts = [spec.origin, str(times), sys.platform, platform.machine(), cpu_name()]
    parts += sorted(arm.features() or ())
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            lines = f.read().split("\n\n", 1)[0].splitlines()
        wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
        parts += [line for line in lines if line.startswith(wanted)]
    except OSError:
        parts.append(platform.processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def cpu_name() -> str:
    """The CPU's marketing name where the system tells it, else the architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.machine()


def thread_count(threads: int | None = None) -> int:
    """Returns the number of threads to run on: the CPUs this process may use, limited by
    WEFT_NUM_THREADS and by `threads` if given. Raises UsageError for a count that is not a positive
    integer."""
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    limits = [available]
    setting = os.environ.get("WEFT_NUM_THREADS")
    if setting:
        if not re.fullmatch("0*[1-9][0-9]{0,5}", setting):
            raise UsageError(f"WEFT_NUM_THREADS={setting[:40]!r}: give a number of threads above 0")
        limits.append(int(setting))
    if threads is not None:
        if threads < 1:
            raise UsageError(f"threads={threads}: give a positive number of threads")
        limits.append(threads)
    return min(limits)


def quickly() -> bool:
    """True if WEFT_LLVM=quick asks for kernels that LLVM compiles in a fifth of the time: slower
    code with the same bits. Raises UsageError for another value."""
    setting = os.environ.get("WEFT_LLVM", "")
    if setting not in ("", "quick"):
        raise UsageError(f"WEFT_LLVM={setting[:40]!r}: give quick, or leave it out")
    return bool(setting)


def caps_of(host: Host, cores: int) -> Caps:
    """Caps of the CPU device: vector width, registers and features."""
    on = host.enabled
    features = set()
    lanes, registers = 4, 32
    if host.arch == "x86_64":
        lanes, registers = (8, 16) if "avx2" in on else (4, 16)
        if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= on:
            lanes, registers = 16, 32
            features |= {"dot2_bf16"} if "avx512bf16" in on else set()
            # vdpbf16ps issues every cycle on Zen, every other (half an fma's rate) on Intel
            features |= {"dot2_fast"} if host.cpu.startswith("znver") else set()
            features |= {"mma_bf16", "mma_int8"} if on >= AMX else set()
        vnni = "avx512vnni" in on if lanes == 16 else "avxvnni" in on
        features |= {"dot4", "dot4_mixed"} if vnni else {"dot2_int16"} if "avx2" in on else set()
        features |= {"nontemporal"} | ({"gather", "lookup"} if "avx2" in on else set())
    elif "dotprod" in on:
        features |= {"dot4"}
    return replace(
        CPU,
        lanes=lanes,
        registers=registers,
        max_groups=(1 << 31) - 1,
        scratch_bytes=SCRATCH_BYTES,
        cores=cores,
        features=frozenset(features),
    )
