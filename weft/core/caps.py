"""The capabilities of a target, as data: templates choose variants from these numbers alone."""

from __future__ import annotations

from dataclasses import field, replace

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.records import dataclass


@dataclass(frozen=True)
class Caps:
    """Capabilities of one target. `max_threads == 1` means CPU style: one thread per group, with
    explicit vectors of `lanes` f32 values; otherwise GPU style: scalar code in many threads.

    Sizes are in bytes. `subgroup` is the fixed subgroup (wave, warp) width, 0 where there is none
    or where it is not known before the kernel runs.
    """

    name: str
    max_threads: int = 256
    lanes: int = 4  # widest useful vector of f32 (loads on a GPU, arithmetic on a CPU)
    registers: int = 32  # vector registers (CPU) that a register tile may fill
    subgroup: int = 0
    shared_bytes: int = 16384
    cheap_barrier: bool = True
    max_bindings: int = 8  # storage buffers one kernel may use
    max_binding_bytes: int = 128 << 20
    max_buffer_bytes: int = 256 << 20
    # Limits one value in memory, and one index over elements that are never stored: indices have 32
    # bits, and threads of the last group count beyond the end.
    max_elements: int = (1 << 31) - (1 << 20)
    max_groups: int = 65535  # per grid axis; dialects fold longer grids
    # iterations of all loops of a thread, on targets that stop them; 0: no limit
    max_turns: int = 0
    exclusive_buffers: bool = False  # one dispatch may not both read and write one buffer (WebGPU)
    scratch_bytes: int = 0  # private scratch per CPU worker for large private arrays
    cores: int = 1
    dtypes: frozenset[DType] = field(default=frozenset(dt.DEVICE))  # storable
    # "dot2_bf16", "gather", "nontemporal", "dot2_fast" (a dot2 costs no more than one fma),
    # "lookup" (kernel.ir.Vec, in vectors of `lanes`),
    # "dot4" (an instruction of its own), "dot4_mixed" (it takes unsigned x signed bytes only),
    # "dot2_int16" (an instruction for it, and none for dot4),
    # "mma_bf16" (tiles of 16 x 32 bf16 and 16 x 16 f32, eight of them; see kernel.ir.TileOp),
    # "mma_int8" (in the same registers: tiles of 16 x 64 bytes and 16 x 16 i32),
    # "outer16_f32" (four tiles of 16 x 16 f32 to which outer products are added, mma_tn),
    # "mma16_bf16", "mma16_f16" (a GPU's: tiles of 16 x 16 elements and 16 x 16 f32, per subgroup),
    # "mma16_int8" (tiles of 16 x 32 bytes and 16 x 16 i32),
    # "async_copy" (no thread waits for an ir.AsyncCopy),
    # "gemm_library" (its maker has a library of matrix products, which may be there or not)
    features: frozenset[str] = frozenset()
    model: str = ""  # the hardware's own name: the key of tuning tables; templates never read it

    def text(self) -> str:
        """Every field, sets in a fixed order (a set's own order differs between processes)."""
        parts = []
        for name in sorted(self.__dataclass_fields__):
            value = getattr(self, name)
            parts.append((name, sorted(map(str, value)) if isinstance(value, frozenset) else value))
        return repr(parts)

    @property
    def is_cpu(self) -> bool:
        return self.max_threads == 1

    def without(self, feature: str) -> Caps:
        """The same target, as if it lacked a feature."""
        return replace(self, features=self.features - {feature})

    def lacks(self, needed: Caps) -> str:
        """Returns the first requirement of code compiled for `needed` that this target lacks, or
        ""."""
        if self.is_cpu != needed.is_cpu:
            return "one thread with vectors" if needed.is_cpu else "groups of threads"
        if needed.subgroup not in (0, self.subgroup):
            return f"subgroups of {needed.subgroup}"
        for what in ("max_threads", "shared_bytes", "scratch_bytes"):
            if getattr(self, what) < getattr(needed, what):
                return f"{what} of {getattr(needed, what):,}"
        missing = [d.name for d in needed.dtypes - self.dtypes] + [*needed.features - self.features]
        return min(missing, default="")

    @property
    def part_bytes(self) -> int:
        """The part of a buffer too large for one binding: the largest power of two that fits."""
        return 1 << (max(self.max_binding_bytes, 256).bit_length() - 1)

    def bindings(self, nbytes: int) -> int:
        """Returns the number of bindings that a buffer of `nbytes` takes."""
        return 1 if nbytes <= self.max_binding_bytes else -(-nbytes // self.part_bytes)


ALL_DTYPES = frozenset(dt.DEVICE)

_HUGE = 1 << 40  # bytes: a limit that only memory itself sets
CPU = Caps(  # the limits that all CPUs share
    "cpu",
    max_threads=1,
    shared_bytes=0,
    cheap_barrier=False,
    max_bindings=64,
    max_binding_bytes=_HUGE,
    max_buffer_bytes=_HUGE,
    max_groups=1 << 31,
    scratch_bytes=4 << 20,
    cores=2,
)
_GPU = Caps(
    "gpu",
    max_threads=1024,
    max_bindings=64,
    max_binding_bytes=_HUGE,
    max_buffer_bytes=_HUGE,
    max_groups=(1 << 31) - 1,
)
_WEBGPU = Caps("webgpu", exclusive_buffers=True)
_VECTOR = frozenset({"gather", "nontemporal", "lookup"})
_VNNI = ("dot4", "dot4_mixed")
_MAKERS = frozenset({"mma16_bf16", "mma16_f16", "mma16_int8", "gemm_library"})

# Shapes of real targets, for the interpreter and for compiling without a device.
PRESETS: dict[str, Caps] = {
    caps.name: caps
    for caps in (
        replace(
            CPU,
            name="cpu-avx512",
            lanes=16,
            features=_VECTOR | {"dot2_bf16", "dot2_fast", *_VNNI},
        ),
        replace(
            CPU,
            name="cpu-amx",
            lanes=16,
            features=_VECTOR | {"dot2_bf16", "mma_bf16", "mma_int8", *_VNNI},
        ),
        replace(CPU, name="cpu-avx2", lanes=8, registers=16, features=_VECTOR | {"dot2_int16"}),
        replace(CPU, name="cpu-neon", lanes=4),
        _WEBGPU,
        replace(_WEBGPU, name="webgpu-small", max_threads=64, max_binding_bytes=1 << 16),
        replace(
            _WEBGPU,
            name="lavapipe",
            cheap_barrier=False,
            max_bindings=32,
            shared_bytes=32768,
            max_turns=65535,
        ),
        replace(
            _GPU,
            name="cuda",
            subgroup=32,
            shared_bytes=99 << 10,
            features=_MAKERS | {"async_copy"},
        ),
        replace(_GPU, name="hip-wave64", subgroup=64, shared_bytes=65536, features=_MAKERS),
        replace(_GPU, name="hip-wave32", subgroup=32, shared_bytes=65536, features=_MAKERS),
    )
}
