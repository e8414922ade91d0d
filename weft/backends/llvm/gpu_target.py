"""The GPUs that LLVM compiles for, each a table: NVIDIA through PTX, AMD through code objects.

Sources: LLVM's "User Guide for NVPTX Back-end" and "User Guide for AMDGPU Backend"; NVIDIA's PTX
ISA, "Release notes" (which PTX version knows which architecture).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from weft.backends.llvm.launch import ALIGN
from weft.backends.llvm.target import LlvmTarget
from weft.backends.llvm.writer import LlvmWriter
from weft.core.caps import PRESETS, Caps
from weft.core.errors import UsageError
from weft.core.records import dataclass

Call = tuple[str, tuple[tuple[str, str], ...]]  # intrinsic and its (type, operand) pattern


@dataclass(frozen=True)
class GpuTarget(LlvmTarget):
    """One GPU architecture. `code` is what LLVM makes of a kernel: "ptx" or an ELF "object".

    `thread` and `group` name the intrinsics that give an index along an axis ({} is x, y or z).
    `attributes` go on a kernel, with {x} {y} {z} and {n} for its threads per axis and in all
    and {resident} for the groups that a core should hold.
    `shuffle` moves an i32 by lane ^ {k} within `swizzle` lanes. `reduce` maps a subgroup's integer
    reductions to one intrinsic; `dot4_word` a dtype to the product of four bytes in a word. `unit`
    is the kind of matrix unit (see matrix_units); `copies` says that memory is copied to shared
    memory without threads (see gpu_copies).
    `axis_threads` limits how many threads run along one axis of a grid. Code may declare
    `static_shared` bytes of shared memory; more is dynamic (see launch.py).
    """

    arch: str = ""
    triple: str = ""
    features: str = ""
    code: str = "ptx"
    convention: str = ""
    thread: str = ""
    group: str = ""
    attributes: str = ""
    module_flags: str = ""
    barrier: tuple[str, ...] = ()
    wave: int = 32
    swizzle: int = 32
    shuffle: Call = ("", ())
    reduce: Mapping[tuple[str, str], str] = field(default_factory=dict)
    dot4_word: Mapping[str, Call] = field(default_factory=dict)
    unit: str = ""
    copies: bool = False
    axis_threads: int | None = None
    static_shared: int = 48 << 10
    caps: Caps = PRESETS["cuda"]


# The least PTX version that knows an architecture: an older driver refuses a newer version.
_PTX = {"sm_80": 71, "sm_86": 71, "sm_87": 74, "sm_89": 78, "sm_90": 78, "sm_100": 86, "sm_120": 87}
# KiB of shared memory that a group may ask for: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability".
_SHARED = {
    "sm_80": 163, "sm_86": 99, "sm_87": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99
}  # fmt: skip
_WORD = (("i32", "{a}"), ("i32", "{b}"), ("i32", "{c}"))


def nvptx_target(arch: str, ptx: int | None = None) -> GpuTarget:
    """The table of an NVIDIA architecture ("sm_80" and newer). `ptx` is the PTX version to write
    (78 is 7.8); by default the oldest that knows the architecture. Raises UsageError."""
    if arch not in _PTX:
        raise UsageError(f"no NVIDIA architecture {arch!r}; weft knows {', '.join(_PTX)}")
    if ptx is not None and ptx < _PTX[arch]:
        raise UsageError(f"PTX {ptx} does not know {arch}, which needs {_PTX[arch]} at least")
    sync = "llvm.nvvm.redux.sync"
    return GpuTarget(
        "nvptx",
        bf16_round=True,
        index="i32",
        buffer_space=1,
        base_align=ALIGN,
        nontemporal=False,
        prefetch=False,
        arch=arch,
        triple="nvptx64-nvidia-cuda",
        features=f"+ptx{ptx or _PTX[arch]}",
        convention="ptx_kernel",
        thread="llvm.nvvm.read.ptx.sreg.tid.{}",
        group="llvm.nvvm.read.ptx.sreg.ctaid.{}",
        # Given the threads alone, ptxas keeps registers few and spills some without need.
        attributes='nounwind convergent "nvvm.reqntid"="{x},{y},{z}" "nvvm.minctasm"="{resident}"',
        barrier=("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",),
        shuffle=(
            "llvm.nvvm.shfl.sync.bfly.i32",
            (("i32", "-1"), ("i32", "{v}"), ("i32", "{k}"), ("i32", "31")),
        ),
        reduce={
            ("add", "int"): f"{sync}.add",
            ("add", "uint"): f"{sync}.add",
            ("max", "int"): f"{sync}.max",
            ("max", "uint"): f"{sync}.umax",
        },
        dot4_word={
            "int8": ("llvm.nvvm.idp4a.s.s", _WORD),
            "uint8": ("llvm.nvvm.idp4a.u.s", _WORD),
        },
        unit="mma",
        copies=True,
        caps=replace(PRESETS["cuda"], name=arch, shared_bytes=_SHARED[arch] << 10),
    )


def nvidia_arch(major: int, minor: int) -> str:
    """The newest known architecture that code for a GPU of this compute capability may name. Raises
    UsageError for a GPU that is too old."""
    own = 10 * major + minor
    known = [int(arch.removeprefix("sm_")) for arch in _PTX]
    fitting = [n for n in known if n <= own]
    if not fitting:
        raise UsageError(f"compute capability {major}.{minor}; weft needs 8.0 or newer")
    return f"sm_{max(fitting)}"


_AMD = ("gfx90a", "gfx942", "gfx1100")
_FALSE = (("i1", "false"),)


def amdgcn_target(arch: str) -> GpuTarget:
    """The table of an AMD architecture: gfx90a, gfx942 (waves of 64), gfx1100 (of 32). Raises
    UsageError."""
    if arch not in _AMD:
        raise UsageError(f"no AMD architecture {arch!r}; weft knows {', '.join(_AMD)}")
    wave = 32 if arch.startswith("gfx11") else 64
    signed = (("i1", "true"), _WORD[0], ("i1", "true"), _WORD[1], _WORD[2], *_FALSE)
    mixed = (("i1", "false"), *signed[1:])
    dot4: dict[str, Call] = {"int8": ("llvm.amdgcn.sdot4", (*_WORD, *_FALSE))}
    if wave == 32:
        dot4 = {"int8": ("llvm.amdgcn.sudot4", signed), "uint8": ("llvm.amdgcn.sudot4", mixed)}
    return GpuTarget(
        "amdgcn",
        index="i32",
        buffer_space=1,
        stack_space=5,
        base_align=ALIGN,
        nontemporal=False,
        prefetch=False,
        arch=arch,
        triple="amdgcn-amd-amdhsa",
        code="object",
        convention="amdgpu_kernel",
        thread="llvm.amdgcn.workitem.id.{}",
        group="llvm.amdgcn.workgroup.id.{}",
        attributes=(
            'nounwind convergent "amdgpu-flat-work-group-size"="{n},{n}" '
            '"uniform-work-group-size"="true"'
        ),
        module_flags="amdhsa_code_object_version",
        barrier=(
            'fence syncscope("workgroup") release',
            "call void @llvm.amdgcn.s.barrier()",
            'fence syncscope("workgroup") acquire',
        ),
        wave=wave,
        shuffle=("llvm.amdgcn.ds.swizzle", (("i32", "{v}"), ("i32", "{pattern}"))),
        dot4_word=dot4,
        unit={"gfx90a": "mfma", "gfx942": "mfma3"}.get(arch, "wmma"),
        axis_threads=(1 << 32) - 1,
        static_shared=64 << 10,
        caps=replace(PRESETS[f"hip-wave{wave}"], name=arch),
    )


def amd_arch(name: str) -> str:
    """Returns the architecture in HIP's name of a GPU ("gfx90a:sramecc+:xnack-"; weft's code suits
    every setting of its features). Raises UsageError for an architecture without weft code."""
    arch = name.partition(":")[0]
    if arch not in _AMD:
        raise UsageError(f"architecture {arch[:60]}; weft compiles for {', '.join(_AMD)}")
    return arch


def gpu_target(arch: str) -> GpuTarget:
    """The table of "sm_..." or "gfx...". Raises UsageError naming those that weft knows."""
    if arch in _PTX:
        return nvptx_target(arch)
    if arch in _AMD:
        return amdgcn_target(arch)
    raise UsageError(f"no GPU architecture {arch[:60]!r}; weft knows {', '.join((*_PTX, *_AMD))}")


def gpu_of(w: LlvmWriter) -> GpuTarget:
    """The GPU that a writer writes for."""
    assert isinstance(w.target, GpuTarget)
    return w.target
