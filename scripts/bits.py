"""How far the targets of the LLVM dialect give equal bits: a whole model in f32.

    python scripts/bits.py [--family llama] [--rows 12]

The same tiny model of random weights runs on this CPU, on this CPU as an older one would (AVX2),
in the interpreter with the Caps of each preset, and as the code written for GPUs, executed by the
tests' emulator (tests/backends/gpu_emulator.py; Linux only). Printed per target: how many logits
are equal, and by how much the others differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft
from weft.backends import registry
from weft.backends.cpu.device import CpuDevice
from weft.backends.llvm import gpu_target
from weft.conform.models import CONFIGS
from weft.models import random_folder

TARGETS = ("interp:cpu-avx512", "interp:cpu-avx2", "interp:cpu-neon", "interp:cuda",
           "interp:hip-wave32", "interp:hip-wave64", "interp:webgpu", "vulkan")  # fmt: skip
EMULATED = ("sm_80", "gfx90a", "gfx1100")


def older_cpu() -> CpuDevice:
    """This machine's CPU without AVX-512 and what came with it."""
    cpu: Any = registry.get("cpu")
    host = cpu.host
    kept = [f for f in host.features.split(",") if "avx512" not in f and "amx" not in f]
    return CpuDevice(target=replace(host, cpu="haswell", features=",".join(kept)))


def targets() -> Iterator[tuple[str, Any]]:
    """Name and device of each."""
    yield "cpu without AVX-512", older_cpu()
    yield from ((name, name) for name in TARGETS)
    if sys.platform == "linux":
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "backends"))
        from gpu_emulator import Emulated

        for arch in EMULATED:
            yield f"emulated {arch}", Emulated(gpu_target(arch))


def run(folder: Path, device: Any, ids: list[int]) -> np.ndarray:
    """Logits after a prefill and two decoded tokens."""
    model: Any = weft.load(folder, device=device, context=32, max_batch=1)
    runner = model.runner()
    rows = [runner.prefill(0, ids).copy()]
    for i, token in enumerate((3, 5)):
        rows.append(runner.rows([token], [0], [len(ids) + i])[0].copy())
    return np.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="llama", choices=sorted(CONFIGS))
    parser.add_argument("--rows", type=int, default=12)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = {**CONFIGS[given.family], "dtype": "float32"}
        folder = random_folder(Path(name) / "model", config, 3, 0.2)
        ids = np.random.default_rng(1).integers(0, 120, given.rows).tolist()
        want = run(folder, "cpu", ids)
        table = Table("target", "logits equal", "largest difference")
        for target, device in targets():
            got = run(folder, device, ids)
            table.add_row(target, f"{(got == want).mean():.1%}", f"{abs(got - want).max():.1e}")
        Console().print(table)


if __name__ == "__main__":
    main()
