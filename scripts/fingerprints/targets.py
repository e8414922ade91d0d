"""The targets of cases: Caps by name, and a renderer for each."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from weft.backends import wgsl
from weft.backends.emulated.machines import MACHINES
from weft.backends.llvm import LlvmTarget, cpu_target, gpu_target, render, render_gpu
from weft.backends.llvm.wasm import RELAXED, WASM
from weft.core.caps import PRESETS, Caps
from weft.kernel.ir import Kernel
from weft.web import targets as web

Render = Callable[[Kernel], str]
EMULATED = "emulated-"

_AVX2 = frozenset({"avx2", "f16c"})
_WIDE = _AVX2 | {"avx512f", "avx512vl", "avx512bf16", "avx512vnni"}
_CPUS: dict[str, dict[str, LlvmTarget]] = {
    "cpu-avx512": {"x86-64-avx512": cpu_target("x86_64-linux", _WIDE)},
    "cpu-amx": {"x86-64-amx": cpu_target("x86_64-linux", _WIDE | {"amx-tile", "amx-bf16"})},
    "cpu-avx2": {"x86-64-avx2": cpu_target("x86_64-linux", _AVX2)},
    "cpu-neon": {
        "aarch64": cpu_target("aarch64-linux", frozenset()),
        "aarch64-i8mm": cpu_target("aarch64-linux", frozenset({"dotprod", "i8mm"})),
    },
    "wasm": {"wasm": WASM, "wasm-relaxed": RELAXED},
}
_GPUS = {"cuda": ("sm_90",), "hip-wave64": ("gfx90a",), "hip-wave32": ("gfx1100",)}

# A page's targets and the emulated machines have their own Caps, besides the presets.
CAPS: dict[str, Caps] = {
    **PRESETS,
    "wasm": web.WASM,
    "page": replace(web.VARIANTS["shader-f16"], name="page"),
    **{f"{EMULATED}{name}": machine.caps for name, machine in MACHINES.items()},
}
_CHOICES = [
    [name for name, caps in CAPS.items() if caps.is_cpu and name in _CPUS],
    [name for name, caps in CAPS.items() if not caps.is_cpu and name not in _GPUS],
    list(_GPUS),
]


def renderers(name: str) -> dict[str, Render]:
    """By the target's name, what renders kernels that were made for CAPS[name]."""
    caps = CAPS[name]
    if name in _CPUS:
        return {t: partial(render, caps=caps, target=x) for t, x in _CPUS[name].items()}
    if name in _GPUS:
        return {arch: partial(render_gpu, target=gpu_target(arch)) for arch in _GPUS[name]}
    if caps.is_cpu:
        machine = MACHINES[name.removeprefix(EMULATED)]
        return {machine.name: partial(render, caps=caps, target=machine.target)}
    return {"wgsl": partial(wgsl.render, caps=caps)}


def chosen(case: str, count: int = 3) -> list[str]:
    """One CPU, one WebGPU device and one GPU of LLVM for a case, chosen by its name, or `count` of
    them. Enough cases of a kind cover all targets."""
    number = zlib.crc32(case.encode())
    picks = []
    for names in _CHOICES:
        number, pick = divmod(number, len(names))
        picks.append(names[pick])
    start = number % len(picks)
    return (picks * 2)[start : start + count]
