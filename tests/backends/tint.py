"""Tint, the WGSL compiler of Chromium, from npm's `webgpu` (Dawn for Node): no GPU is needed."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("wgsl_tint.cjs")
HOME = Path(sys.prefix) / "node"  # where scripts/setup installs it


@functools.cache
def _command():
    """node and the environment in which it finds `webgpu`, or None."""
    node = shutil.which("node")
    places = [os.environ.get("NODE_PATH", ""), str(HOME / "node_modules")]
    env = {**os.environ, "NODE_PATH": os.pathsep.join(filter(None, places))}
    probe = [node, "-e", "require.resolve('webgpu')"]
    if node is None or subprocess.run(probe, env=env, capture_output=True).returncode:
        return None
    return node, env


def refused(texts):
    """What Tint says against each WGSL module of `texts` (by name) that it refuses, in one process.
    Skips the test where there is no Tint."""
    if _command() is None:
        pytest.skip(f"node with the npm package webgpu was not found (npm install --prefix {HOME})")
    node, env = _command()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / f"{name}.wgsl").write_text(text)
        done = subprocess.run(
            [node, str(SCRIPT), folder], env=env, capture_output=True, text=True, timeout=600
        )
    *said, last = done.stdout.splitlines() or [""]
    assert last == "done" and not done.returncode, done.stdout + done.stderr
    return said
