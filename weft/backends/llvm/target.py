"""The differences between LLVM targets, as data: intrinsics, attributes, instruction features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from weft.core.records import dataclass


@dataclass(frozen=True)
class LlvmTarget:
    """One LLVM target.

    `kernel_attributes` go on every function.

    Products. `dot2` and `dot4` (unsigned x signed bytes) map a lane count of the accumulator to the
    intrinsic that computes it (empty: the portable expansion is used). `dot4_signed` maps to those
    for signed x signed bytes. `pairs` maps to three intrinsics: sums of two products of unsigned x
    signed bytes in 16 bits ("": bytes are widened), of 16-bit numbers in 32 (`dot2_int16` too), and
    a byte with another's sign. `seven` is the intrinsic of sums of two products, in 16 bits, of
    signed bytes with bytes below 128. If `dot4_features` is not "", the intrinsics of dot4 take
    bytes as words. Kernels with a dot4 are then compiled with these LLVM features, and other
    kernels without.
    `fused` and `min_max` say that the target has instructions for a sum with a product in one
    rounding and for minNum. Elsewhere LLVM would call a C function for each lane. So product and
    sum are rounded separately, or `madd` is the intrinsic that adds a product on four lanes, and
    minNum is compared. `tiles` says that the target has AMX (else tiles are expanded). `outer` is
    not 0 where a unit adds outer products (Arm's SME) to four registers of that many rows and
    columns of 32 bits.

    Floats and lanes. `permute` maps a lane count to the intrinsic that takes lanes of a float
    vector by index. `bf16_round` says that `fptrunc` to bfloat is one instruction (x86's takes
    subnormals for 0, so it is not used). `f16_convert` says that conversions of half are
    instructions (else both are computed on the bits). `to_zero` says that an instruction rounds
    vectors of floats toward zero (else they are rounded to the nearest, and corrected).

    Memory. `register_bytes` are those of the widest register. `store_fence` is the intrinsic that
    orders non-temporal stores before later accesses (empty: it is not needed). `hide_masks` keeps
    the masks of stores of 8- and 16-bit elements from becoming constants: LLVM 22's x86 back end
    stores the untruncated 32 bits when it narrows such a store to a single lane. `index` is the
    type in which addresses are computed. `buffer_space` and `stack_space` are the address spaces of
    buffers and of locals. Memory starts at multiples of `base_align` bytes (1: any address).
    `nontemporal` and `prefetch` say if these hints are passed on. `swap` says that the machine is
    big-endian. Its buffers are still little-endian, so loads and stores reverse bytes.
    """

    name: str
    kernel_attributes: str = "noinline nounwind"
    bf16_round: bool = False
    f16_convert: bool = True
    dot2: Mapping[int, str] = field(default_factory=dict)
    dot4: Mapping[int, str] = field(default_factory=dict)
    dot4_signed: Mapping[int, str] = field(default_factory=dict)
    pairs: Mapping[int, tuple[str, str, str]] = field(default_factory=dict)
    permute: Mapping[int, str] = field(default_factory=dict)
    register_bytes: int = 64
    store_fence: str = ""
    hide_masks: bool = False
    tiles: bool = False
    outer: int = 0
    index: str = "i64"
    buffer_space: int = 0
    stack_space: int = 0
    base_align: int = 1
    nontemporal: bool = True
    prefetch: bool = True
    fused: bool = True
    madd: str = ""
    seven: str = ""
    min_max: bool = True
    to_zero: bool = True
    dot4_features: str = ""
    swap: bool = False


_BITS = {16: "512", 8: "256", 4: "128"}  # of a vector of so many 32-bit lanes
_PAIRS = {
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx2.psign.b"),
    4: (
        "llvm.x86.ssse3.pmadd.ub.sw.128",
        "llvm.x86.sse2.pmadd.wd",
        "llvm.x86.ssse3.psign.b.128",
    ),
}


def neon(name: str, attributes: str, features: frozenset[str]) -> LlvmTarget:
    """The table of an AArch64 processor with these of LLVM's features."""
    signed, mixed = "dotprod" in features, {"dotprod", "i8mm"} <= features
    return LlvmTarget(
        name,
        attributes,
        dot4={4: "llvm.aarch64.neon.usdot.v4i32.v16i8"} if mixed else {},
        dot4_signed={4: "llvm.aarch64.neon.sdot.v4i32.v16i8"} if signed else {},
    )


def cpu_target(triple: str, features: frozenset[str]) -> LlvmTarget:
    """The table of a CPU, from its LLVM triple and the LLVM names of its enabled features."""
    attributes = 'noinline nounwind "prefer-vector-width"="512"'
    arch = triple.split("-")[0]
    if arch in ("aarch64", "arm64"):
        return neon("cpu", attributes, features)
    if arch not in ("x86_64", "amd64"):
        return LlvmTarget("cpu", attributes)
    wide = {"avx512f", "avx512vl"} <= features
    dot2, dot4, pairs = {}, {}, {}
    if wide and "avx512bf16" in features:
        dot2 = {n: f"llvm.x86.avx512bf16.dpbf16ps.{bits}" for n, bits in _BITS.items()}
    if wide and "avx512vnni" in features:
        dot4 = {n: f"llvm.x86.avx512.vpdpbusd.{bits}" for n, bits in _BITS.items()}
    elif "avxvnni" in features:
        dot4 = {n: f"llvm.x86.avx512.vpdpbusd.{_BITS[n]}" for n in (8, 4)}
    elif "avx2" in features:
        pairs = {n: _PAIRS[n] for n in (8, 4)}
    permute = {8: "llvm.x86.avx2.permps"} if "avx2" in features else {}
    permute |= {16: "llvm.x86.avx512.permvar.sf.512"} if wide else {}
    return LlvmTarget(
        "cpu",
        attributes,
        permute=permute,
        f16_convert="f16c" in features,
        dot2=dot2,
        dot4=dot4,
        pairs=pairs,
        register_bytes=64 if wide else 32 if "avx" in features else 16,
        store_fence="llvm.x86.sse.sfence",
        hide_masks=True,
        tiles={"amx-tile", "amx-bf16", "amx-int8"} <= features,
    )
