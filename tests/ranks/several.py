"""Starts the functions of a test file as ranks under mpiexec."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 240  # seconds; each rank shows where it stands before they are over
MPIEXEC = Path(sys.executable).parent / "mpiexec"

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(),
    reason="mpi4py or its mpiexec is not installed beside this Python: pip install '.[mpi]'",
)


def environment(**more: str) -> dict[str, str]:
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    one = {"OMP_NUM_THREADS": "1", "WEFT_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **one, "PYTHONPATH": path, **more}


def started(count: int, *words: str, **env: str) -> subprocess.Popen[str]:
    """`count` ranks of a Python command line."""
    line = [str(MPIEXEC), "-n", str(count), sys.executable, *words]
    return subprocess.Popen(
        line, env=environment(**env), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def together(count: int, file: str, case: str, **env: str) -> tuple[int, str, str]:
    """Calls `case` of a test file on each of `count` ranks: exit status, stdout, stderr."""
    code = (
        f"import faulthandler; faulthandler.dump_traceback_later({PATIENCE - 20}); "
        f"import importlib.util as u; s = u.spec_from_file_location('cases', {file!r}); "
        f"m = u.module_from_spec(s); s.loader.exec_module(m); m.{case}()"
    )
    process = started(count, "-c", code, **env)
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()  # mpiexec ends its ranks
        out, err = process.communicate(timeout=60)
        pytest.fail(f"{case} did not end in {PATIENCE} s; its ranks said: {out}{err}")
    return process.returncode, out, err


def followers(named: Path) -> list[int]:
    """The processes of rank 1 whose command line has this path."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
            env = (entry / "environ").read_bytes() if entry.name.isdecimal() else b""
        except OSError:
            continue
        if b"\0launch\0" not in line and str(named).encode() in line and b"PMI_RANK=1\0" in env:
            found.append(int(entry.name))
    return found


FILE = """
[model]
hidden = 16
layers = 1
heads = 2
[data]
paths = ["{text}"]
holdout = 0.2
[tokenizer]
vocab = 300
[train]
steps = {steps}
batch = 2
accumulate = 2
context = 16
device = "cpu"
[output]
folder = "{run}"
eval_every = 0
sample_every = 0
checkpoint_every = 10
"""


def written(folder: Path, text: Path, steps: int) -> Path:
    """A config of a tiny model, whose run is `folder`/run."""
    file = folder / "c.toml"
    file.write_text(FILE.format(text=text, run=folder / "run", steps=steps))
    return file
