"""Tint, the WGSL compiler of Chromium, from npm's `webgpu` (Dawn for Node): no GPU is needed."""

import atexit
import functools
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("wgsl_tint.cjs")
HOME = Path(sys.prefix) / "node"  # where scripts/setup installs it


@functools.cache
def _process():
    """One process that answers for the whole run; None where node or `webgpu` is missing."""
    node = shutil.which("node")
    places = [os.environ.get("NODE_PATH", ""), str(HOME / "node_modules")]
    env = {**os.environ, "NODE_PATH": os.pathsep.join(filter(None, places))}
    probe = [str(node), "-e", "require.resolve('webgpu')"]
    if node is None or subprocess.run(probe, env=env, capture_output=True).returncode:
        return None
    pipe = subprocess.PIPE
    process = subprocess.Popen([node, str(SCRIPT)], env=env, stdin=pipe, stdout=pipe, text=True)
    mine = os.getpid()
    atexit.register(lambda: process.kill() if os.getpid() == mine else None)  # not a fork's
    return process


def present():
    """Whether there is a Tint to ask."""
    return _process() is not None


@functools.lru_cache(maxsize=1 << 14)
def refusal(text):
    """What Tint says against a WGSL module, or None. Skips the test where there is no Tint."""
    process = _process()
    if process is None:
        pytest.skip("no npm package webgpu: sh scripts/setup test installs it where there is npm")
    process.stdin.write(json.dumps(text) + "\n")
    process.stdin.flush()
    silent = not select.select([process.stdout], [], [], 60)[0]
    answer = "" if silent else process.stdout.readline()
    assert answer, f"Tint ended ({process.poll()}) or hangs on\n{text}"
    return json.loads(answer)
