"""WGSL through a second compiler: Tint, inside npm's `webgpu` (Dawn for Node), without a GPU.

Skipped unless node and that package are found: `npm install webgpu` in a folder, and that folder's
node_modules in NODE_PATH.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

import weft
from weft.backends import wgsl
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel.ir import Kernel
from weft.tensor.trace import Spec, trace

F32 = dt.float32
SCRIPT = Path(__file__).with_name("wgsl_tint.cjs")


def has_tint():
    node = shutil.which("node")
    if node is None:
        return False
    probe = [node, "-e", "require.resolve('webgpu')"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def kernels() -> list[Kernel]:
    """Kernels of many templates, compiled for a browser's Caps."""
    f, f16 = weft.functional, dt.float16
    cases = [
        (lambda x, w, b: f.layer_norm(f.gelu(x @ w), b, b),
         [((33, 64), F32), ((64, 48), F32), ((48,), F32)]),
        (lambda x: f.softmax(x), [((40, 300), F32)]),
        (lambda x: f.silu(x) * 2, [((7, 31), f16)]),
        (lambda x: (x * 2).sum(axis=1) + x.max(axis=1), [((17, 90), F32)]),
        (lambda q, k, v: f.attention(q, k, v, causal=True),
         [((1, 4, 9, 32), F32), ((1, 2, 20, 32), F32), ((1, 2, 20, 32), F32)]),
    ]  # fmt: skip
    programs = [
        compile_graph(trace(fn, [Spec(*s) for s in specs]), PRESETS["webgpu"])
        for fn, specs in cases
    ]
    return [kernel for program in programs for kernel in program.kernels]


@pytest.mark.skipif(not has_tint(), reason="node with the npm package webgpu was not found")
def test_tint_accepts_what_naga_accepts(tmp_path):
    for n, kernel in enumerate(kernels()):
        (tmp_path / f"{n}_{kernel.name}.wgsl").write_text(wgsl.render(kernel, PRESETS["webgpu"]))
    done = subprocess.run(
        ["node", str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "done\n", done.stdout + done.stderr
