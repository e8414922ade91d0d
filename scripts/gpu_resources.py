"""Records what the kernels of whole models take of GPUs that are not here, as their compilers say.

    python scripts/gpu_resources.py box=weft/box minilm=FOLDER --out docs/results/gpu-resources.json
    python scripts/gpu_resources.py --kinds [TEXT] --out docs/results/gpu-kernels.json

Compiles every Program of each model for every architecture (NVIDIA's through ptxas), writes each
kernel's registers, shared memory and spills, and prints the table that docs/devices.md shows. With
--kinds the same for kernels of every kind (those of cases whose names hold TEXT), and what a core
holds of them, what they ask of memory, and their instructions: the tables of
docs/performance-gpu.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from gpu_kernels import judge

import weft
from weft.backends.llvm import gpu_target, offline, resources
from weft.compile.passes import compile_graph
from weft.core.text import markdown
from weft.host.files import write_text
from weft.kernel.ir import Kernel
from weft.models.run.compiled_runner import model_caps
from weft.models.weights.random_weights import random_folder

ARCHITECTURES = ("sm_80", "sm_90", "sm_120", "gfx90a", "gfx942", "gfx1100")
GPT2 = {  # the shape of GPT-2, with random weights
    "model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_positions": 1024, "dtype": "bfloat16",
}  # fmt: skip


def record(folder: Path, arch: str) -> dict[str, dict[str, int]]:
    """Kernel -> what it takes, over all Programs of the model."""
    target = gpu_target(arch)
    kernels: dict[str, Kernel] = {}
    for graph in weft.load(folder, device="cpu").graphs().values():
        program = compile_graph(graph, model_caps(target.caps), graph.name)
        kernels |= {k.name: k for k in program.kernels}
    return resources.data(offline.resources(list(kernels.values()), target))


def row(model: str, arch: str, found: dict[str, dict[str, int]]) -> list[Any]:
    def most(key: str) -> int:
        return max(k[key] for k in found.values())

    shared = max(k["shared"] + k["dynamic"] for k in found.values())
    spilled = sum(k["spills"] > 0 for k in found.values())
    return [model, arch, len(found), most("registers"), f"{shared:,}", most("stack"), spilled]


def kinds(only: str, out: Path) -> None:
    found = []
    for arch in ARCHITECTURES:
        found += judge.figures(arch, only)
        print(arch, len(found), flush=True)
    lines = ",\n".join(json.dumps(one) for one in judge.data(found))
    write_text(out, f"[\n{lines}\n]\n")
    print(judge.summary(found), judge.worst(found), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--kinds", nargs="?", const="", metavar="TEXT")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.kinds is not None:
        kinds(given.kinds, given.out)
        return
    written: dict[str, Any] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        models = {name: Path(at) for name, _, at in (m.partition("=") for m in given.models)}
        models["gpt2-124m-bf16"] = random_folder(Path(folder), GPT2)
        for name, path in models.items():
            for arch in ARCHITECTURES:
                found = written.setdefault(name, {})[arch] = record(path, arch)
                rows.append(row(name, arch, found))
                print(*rows[-1], flush=True)
    write_text(given.out, json.dumps(written, indent=1) + "\n")
    head = ["model", "GPU", "kernels", "registers", "shared bytes", "stack", "kernels that spill"]
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
