"""NVIDIA's assembler, where it is installed: checks PTX and says what each kernel takes."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weft.backends.llvm.resources import Resources
from weft.core.errors import CompileError

MISSING = "ptxas was not found; pip install nvidia-cuda-nvcc-cu12, or put a toolkit's ptxas in PATH"
_FOLDERS = ("/usr/local/cuda",)
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_THREADS = re.compile(r"\.entry (\w+)\(.*?\.reqntid (\d+), (\d+), (\d+)", re.DOTALL)


def find() -> str | None:
    """The path of ptxas: in PATH, in a CUDA toolkit's folder (CUDA_HOME, /usr/local/cuda), or in
    one of NVIDIA's wheels."""
    found = shutil.which("ptxas")
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    folders: list[str | Path] = [*filter(None, named), *_FOLDERS, *_wheels()]
    for folder in folders:
        found = found or shutil.which("ptxas", path=str(Path(folder, "bin")))
    return found


def _wheels() -> list[Path]:
    """The folders in which NVIDIA's wheels of the compiler (of CUDA 12; of 13) put their tools."""
    spec = importlib.util.find_spec("nvidia")
    places: list[str] = list((spec and spec.submodule_search_locations) or ())
    return [Path(p, name) for p in places for name in ("cuda_nvcc", "cu13")]


def join(modules: Sequence[str]) -> str:
    """Several PTX modules for one architecture as one; their kernels' names must differ."""
    heads = (".version", ".target", ".address_size", "//")
    rest = [
        "\n".join(line for line in text.splitlines() if not line.startswith(heads))
        for text in modules[1:]
    ]
    return "\n".join([*modules[:1], *rest])


def assemble(ptx: str, arch: str) -> tuple[bytes, dict[str, Resources]]:
    """(cubin, what each kernel takes by its function's name). Raises CompileError with the
    assembler's first message."""
    tool = find()
    if tool is None:
        raise CompileError(MISSING)
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(ptx)
        done = subprocess.run(
            [tool, "-v", "--gpu-name", arch, "-o", str(out), str(source)],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        said = done.stdout + done.stderr
        if done.returncode:
            raise CompileError(f"ptxas refuses the code for {arch}: {said.strip()[:500]}")
        return out.read_bytes(), _parse(said, ptx)


def _parse(said: str, ptx: str) -> dict[str, Resources]:
    threads = {n: int(x) * int(y) * int(z) for n, x, y, z in _THREADS.findall(ptx)}
    found = {}
    for part in said.split("ptxas info    : Compiling")[1:]:
        name = _ENTRY.search("Compiling" + part)
        stack, used, shared = _STACK.search(part), _USED.search(part), _SHARED.search(part)
        if name and used:
            frame, stores = (int(stack[1]), int(stack[2])) if stack else (0, 0)
            count = int(shared[1]) if shared else 0
            registers = int(used[1])
            kernel = name[1]
            found[kernel] = Resources(threads.get(kernel, 0), registers, count, frame, stores)
    return found
