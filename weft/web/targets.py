"""The targets of a page, as Caps: WebGPU at its default limits, and WebAssembly with SIMD."""

from __future__ import annotations

from dataclasses import replace

from weft.core.caps import PRESETS

WEBGPU = replace(PRESETS["webgpu"], features=frozenset({"enable-subgroups"}))
WASM = replace(
    PRESETS["cpu-neon"], name="wasm", registers=16, cores=4, features=frozenset({"dot2_int16"})
)

# Features of WebGPU -> Caps: the same Programs, in a WGSL that fewer devices take.
VARIANTS = {"shader-f16": replace(WEBGPU, features=WEBGPU.features | {"shader-f16"})}
