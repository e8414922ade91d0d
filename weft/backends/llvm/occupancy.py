"""The number of groups of a kernel that one core of a GPU holds at a time.

Sources: NVIDIA "CUDA C++ Programming Guide", "Technical Specifications per Compute Capability", and
the occupancy calculator of Nsight Compute; LLVM "User Guide for AMDGPU Backend", "Kernel
Descriptor" (granules of registers); AMD "CDNA3 Instruction Set Architecture" and "RDNA3 Instruction
Set Architecture" (waves of a SIMD, LDS).
"""

from __future__ import annotations

from weft.backends.llvm.resources import Resources
from weft.core.errors import UsageError
from weft.core.records import dataclass


@dataclass(frozen=True)
class Core:
    """The limits of one core (multiprocessor; compute unit; workgroup processor), which has four
    schedulers: `waves` of `width` threads and `groups` in all, `shared` bytes, of which a group
    takes `reserved` more than it asks for. A scheduler's `registers` are given to a wave
    `granule` at a time, counted for one thread."""

    width: int
    waves: int
    groups: int
    shared: int
    registers: int
    granule: int
    reserved: int = 0


_KIB = 1 << 10
CORES = {
    "sm_80": Core(32, 64, 32, 164 * _KIB, 512, 8, _KIB),
    "sm_90": Core(32, 64, 32, 228 * _KIB, 512, 8, _KIB),
    "sm_120": Core(32, 48, 24, 100 * _KIB, 512, 8, _KIB),
    "gfx90a": Core(64, 32, 16, 64 * _KIB, 512, 8),
    "gfx942": Core(64, 32, 16, 64 * _KIB, 512, 8),
    "gfx1100": Core(32, 64, 32, 128 * _KIB, 1536, 24),
}
_SCHEDULERS = 4


def groups(found: Resources, arch: str) -> int:
    """Returns the number of groups of this kernel that a core holds. Raises UsageError for an
    architecture whose limits are not known."""
    core = _core(arch)
    waves = -(-found.threads // core.width)
    each = -(-max(found.registers, 1) // core.granule) * core.granule
    by_registers = core.registers // each * _SCHEDULERS // waves
    shared = found.shared + found.dynamic + core.reserved
    by_shared = core.shared // shared if shared else core.groups
    return min(core.groups, core.waves // waves, by_registers, by_shared)


def occupancy(found: Resources, arch: str) -> float:
    """Returns the share of a core's waves that this kernel fills."""
    core = _core(arch)
    return groups(found, arch) * -(-found.threads // core.width) / core.waves


def _core(arch: str) -> Core:
    if arch not in CORES:
        raise UsageError(f"the limits of {arch} are not known; those of {', '.join(CORES)} are")
    return CORES[arch]
