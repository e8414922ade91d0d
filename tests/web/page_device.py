"""A Device that is the page's own player, in Node: what `weft check` asks of devices, asked of it.

Memory is the host's; a run carries every buffer of the Program to the player and back.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from page_kit import MODULES

import weft.web
from weft.backends.interp import InterpBound, InterpDevice
from weft.core.errors import DeviceError
from weft.program.device import Bound, Buffer, DeviceInfo
from weft.program.program import BufferRef, Dispatch, Program
from weft.web import programs, targets

PLAYER = Path(weft.web.__file__).with_name("js")
SCRIPT = Path(__file__).with_name("player.mjs")
SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")


def environment() -> dict[str, str]:
    """What Node is run with: npm's packages, and a GPU in software for Dawn."""
    env = {**os.environ, "NODE_PATH": str(MODULES)}
    if SWIFTSHADER.exists():
        env.setdefault("VK_ICD_FILENAMES", str(SWIFTSHADER))
    return env


class PageDevice(InterpDevice):
    """`target` is "wasm" or "webgpu" (Dawn for Node on whichever adapter it finds); WebAssembly may
    use relaxed instructions, and threads. Raises DeviceError where Node, or Dawn, is missing."""

    def __init__(self, target: str, relaxed: bool = False, threads: int = 1) -> None:
        self.target = target
        self.module = "kernels-relaxed.wasm" if relaxed else "kernels.wasm"
        self.threads = threads
        super().__init__(targets.WASM if target == "wasm" else targets.WEBGPU)
        self.kind = f"page-{target}"
        self.info = DeviceInfo(self.kind, 0, f"the page's player on {target}", True)
        node = shutil.which("node")
        if node is None:
            raise DeviceError("node was not found")
        env = environment()
        script = SCRIPT
        if target == "webgpu":  # a module's imports do not look at NODE_PATH
            if not (MODULES / "webgpu").is_dir():
                raise DeviceError("npm's webgpu is not installed (scripts/setup test)")
            script = MODULES.parent / SCRIPT.name
            shutil.copyfile(SCRIPT, script)
        flags = ["--experimental-wasm-relaxed-simd"] if relaxed and _is_old(node) else []
        pipe = subprocess.PIPE
        self._node = subprocess.Popen(
            [node, *flags, str(script), str(PLAYER), target], env=env, stdin=pipe, stdout=pipe
        )
        atexit.register(self._node.kill)
        self._ids = itertools.count()

    def bind(self, program: Program, buffers: Sequence[Buffer]) -> PageBound:
        return PageBound(self, program, buffers, next(self._ids))

    def submit(self, bound: Bound, scalars: Sequence[int]) -> None:
        assert isinstance(bound, PageBound)
        specs = bound.program.buffers
        held = zip(bound.buffers, specs, strict=True)
        data = b"".join(b.data[: spec.nbytes].tobytes() for b, spec in held)
        _, out = self.call({"call": "run", "id": bound.id, "scalars": list(scalars)}, data)
        at = 0
        for buffer, spec in zip(bound.buffers, specs, strict=True):
            fresh = np.frombuffer(out, np.uint8, spec.nbytes, at)
            buffer.data[: spec.nbytes] = fresh
            at += spec.nbytes

    def call(self, head: dict[str, Any], data: bytes = b"") -> tuple[dict[str, Any], bytes]:
        text = json.dumps(head).encode()
        assert self._node.stdin and self._node.stdout
        self._node.stdin.write(struct.pack("<II", len(text), len(data)) + text + data)
        self._node.stdin.flush()
        sizes = self._node.stdout.read(8)
        if len(sizes) < 8:
            raise DeviceError(f"{self.kind}: the player ended")
        size, more = struct.unpack("<II", sizes)
        answer = json.loads(self._node.stdout.read(size))
        out = self._node.stdout.read(more)
        if "error" in answer:
            raise DeviceError(f"{self.kind}: {answer['error']}")
        return answer, out


def _is_old(node: str) -> bool:
    """Whether this Node has relaxed SIMD behind a flag."""
    found = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return int(found.stdout.lstrip("v").partition(".")[0]) < 21


def _arguments(program: Program) -> Iterator[tuple[BufferRef, str]]:
    for step in program.steps:
        if isinstance(step, Dispatch):
            buffers = program.kernels[step.kernel].buffers
            yield from ((ref, b.access) for ref, b in zip(step.args, buffers, strict=True))
        else:
            yield step.dst, "w"


class PageBound(InterpBound):
    def __init__(
        self, device: PageDevice, program: Program, buffers: Sequence[Buffer], number: int
    ) -> None:
        super().__init__(device, program, buffers)
        self.id = number
        head: dict[str, Any] = {"call": "bind", "id": number}
        code = b""
        if device.target == "wasm":
            only = {device.module: programs.MODULES[device.module]}
            made, modules = programs.webassembly({"it": program}, device.caps, only)
            code = modules[device.module]
            head["about"] = {k: made[k] for k in ("modules", "scratch")}
            head["about"] |= {"name": device.module, "threads": device.threads}
        else:
            made = programs.webgpu({"it": program}, device.caps)
            head["shaders"] = made["shaders"]
        head["program"] = made["programs"]["it"]
        for ref, access in _arguments(program):  # the checks of single kernels write to inputs
            if access != "r":
                head["program"]["buffers"][ref.buffer][1] = "state"
        roles = [b[1] for b in head["program"]["buffers"]]
        for role in ("input", "output"):
            named = head["program"][f"{role}s"]
            head["program"][f"{role}s"] = [i for i in named if roles[i] == role]
        head["program"]["rows"] = {}
        device.call(head, code)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.device.call({"call": "drop", "id": self.id})  # type: ignore[attr-defined]
