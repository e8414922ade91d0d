"""What the tests of the page share: a folder on a server that counts, a browser that is driven."""

from __future__ import annotations

import functools
import json
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weft.backends.llvm import optimise
from weft.web import export, programs, selftest, server, targets

MODULES = Path(sys.prefix) / "node" / "node_modules"  # where scripts/setup installs
PATIENCE = 500  # seconds that an answer may take, on a machine with other work
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
}  # fmt: skip
# the page's worker; its others are threads
WORKER = "page.workers().find((w) => w.url().includes('/worker.js'))"
BLANK = b"<!doctype html><title>blank</title><link rel=icon href=icon.svg>"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
    "style-src 'self'; img-src 'self' data:; media-src blob:; connect-src 'self'"
)

# Put before the worker's own code: what it asks of WebGPU, and a gate before a decoder's steps. A
# page that says {steps} lets so many pass, and hears {held} where the next one waits. `dies` comes
# when a device is lost.
COUNTED = """
import { Decoder as Held } from "./decoder.js";
const { step: real } = Held.prototype;
let [most, passed, go] = [Infinity, 0, () => {}];
Held.prototype.step = async function (...args) {
  if (passed === most) {
    self.postMessage({ held: passed });
    await new Promise((done) => (go = done));
  }
  passed++;
  return real.apply(this, args);
};
self.addEventListener("message", ({ data: { steps } }) => {
  if (steps === undefined) return;
  [most, passed] = [steps, 0];
  go();
});
self.seen = { pipelines: 0, live: 0, most: 0 };
if (self.GPUDevice) {
  const gpu = GPUDevice.prototype;
  for (const name of ["createComputePipeline", "createComputePipelineAsync"]) {
    const make = gpu[name];
    gpu[name] = function (...args) { seen.pipelines++; return make.apply(this, args); };
  }
  const [make, end] = [gpu.createBuffer, GPUBuffer.prototype.destroy];
  gpu.createBuffer = function (about) {
    seen.live += about.size;
    seen.most = Math.max(seen.most, seen.live);
    return make.call(this, about);
  };
  GPUBuffer.prototype.destroy = function () { seen.live -= this.size; end.call(this); };
  const ask = GPUAdapter.prototype.requestDevice;
  self.dies = new Promise((done) => {
    GPUAdapter.prototype.requestDevice = async function (...how) {
      const device = await ask.apply(this, how);
      device.lost.then(() => done());
      return device;
    };
  });
}
"""


@dataclass(frozen=True)
class Page:
    """A folder, and the model on the CPU that it was written from."""

    folder: Path
    model: Any
    manifest: dict[str, Any]


Pages = Callable[..., Page]


@contextmanager
def light() -> Iterator[None]:
    """Has export_web write what is quick to write and to compile. The shaders are those for a GPU
    with expensive barriers (lavapipe): WebGPU in software compiles them in 4 seconds instead of 25,
    for they hold no tiles in shared memory. WebAssembly has one module under both names, compiled
    as WEFT_LLVM=quick compiles the CPU's kernels, and ?selftest has nothing to test."""
    gpu = replace(targets.WEBGPU, cheap_barrier=False)
    variants = {f: replace(v, cheap_barrier=False) for f, v in targets.VARIANTS.items()}
    whole, (plain, *others) = programs.webassembly, programs.MODULES
    quick = functools.partial(optimise.optimised, passes=optimise.QUICK)

    def one_module(made: Any, caps: Any) -> Any:
        meta, code = whole(made, caps, {plain: programs.MODULES[plain]})
        for name in others:
            meta["modules"][name], code[name] = meta["modules"][plain], code[plain]
        return meta, code

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WEBGPU", gpu)
        patch.setattr(targets, "VARIANTS", variants)
        patch.setattr(export, "TARGETS", (gpu, targets.WASM))
        patch.setattr(programs, "webassembly", one_module)
        patch.setattr(programs.wasm, "optimised", quick)
        patch.setattr(selftest, "references", lambda *given: {"kernels": [], "untested": []})
        yield


@contextmanager
def bare() -> Iterator[None]:
    """Has export_web write empty shaders and modules, for tests of what is beside them."""
    empty = SimpleNamespace(code=b"", constants=0, flags=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs.wgsl, "render", lambda *given: "")
        patch.setattr(programs.wasm, "compile_module", lambda *given: empty)
        patch.setattr(selftest, "references", lambda *given: {"kernels": [], "untested": []})
        yield


def export_light(model: Any, folder: Path, **more: Any) -> dict[str, Any]:
    """Returns the manifest of a light page."""
    with light():
        return export.export_web(model, folder, **more)


def need(*packages: str) -> None:
    """Skips the test where Node or one of npm's `packages` is missing."""
    if shutil.which("node") is None:
        pytest.skip("node was not found")
    for name in packages:
        if not (MODULES / name).is_dir():
            pytest.skip(f"no npm package {name}: sh scripts/setup test installs it where npm is")


class Site:
    """A folder on localhost. `files` counts the bytes of each that was asked for, `sent` those that
    went out (not where the browser's copy is still right); `worker` goes before
    the code of worker.js. The policy that index.html names is every file's."""

    def __init__(self, folder: Path, worker: str = COUNTED) -> None:
        site, self.folder, self.files = self, folder, dict[str, int]()
        if not (folder / "decoder.js").exists():
            worker = worker.replace(COUNTED, "")  # it counts a decoder's steps
        self.sent: dict[str, int] = {}

        class Handler(server.Handler):
            def end_headers(self) -> None:
                self.send_header("Content-Security-Policy", POLICY)
                super().end_headers()

            def do_GET(self) -> None:
                name = self.path.split("?")[0].removeprefix("/")
                if name == "blank.html":
                    return self.answer(BLANK, "text/html")
                path = folder / (name or "index.html")
                size = path.stat().st_size if path.is_file() else 0
                site.files[name] = site.files.get(name, 0) + size
                if name == "worker.js":
                    return self.answer(worker.encode() + path.read_bytes(), "text/javascript")
                super().do_GET()

            def copyfile(self, source: Any, outputfile: Any) -> None:
                name = self.path.split("?")[0].removeprefix("/") or "index.html"
                super().copyfile(source, outputfile)
                site.sent[name] = site.sent.get(name, 0) + source.tell()

            def answer(self, data: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        make = functools.partial(Handler, directory=str(folder))
        self._server = server.ThreadingHTTPServer(("127.0.0.1", 0), make)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Browser:
    """Chromium, driven by browser.mjs, from the first call of `run` on. That call skips the test
    where a program or a package is missing."""

    program, package, script = "chromium", "playwright-core", "browser.mjs"

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._node: subprocess.Popen[str] | None = None

    def _started(self) -> subprocess.Popen[str]:
        need(self.package)
        node, program = shutil.which("node"), shutil.which(self.program)
        if program is None:
            pytest.skip(f"{self.program} was not found")
        script, pipe = Path(__file__).with_name(self.script), subprocess.PIPE
        command = [str(node), str(script), str(MODULES), program, str(PATIENCE - 50), *self._flags]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def run(self, who: str | None, code: str, given: Any = None, patience: float = PATIENCE) -> Any:
        """Runs `code`, the body of an async function that knows `page` and `given`, for the
        visitor `who`: each has a browser profile of their own. Returns what it returns."""
        node = self._node = self._node or self._started()
        assert node.stdin and node.stdout
        node.stdin.write(json.dumps({"who": who, "code": code, "given": given}) + "\n")
        node.stdin.flush()
        answers = select.select([node.stdout], [], [], patience)[0]
        line = node.stdout.readline() if answers else ""
        if not line:
            node.kill()
            self._node = None
        assert line, f"the browser ended or hangs on: {code}"
        answer: Mapping[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def leave(self) -> None:
        """All visitors go, with their profiles."""
        if self._node is not None:
            self.run(None, "")

    def close(self) -> None:
        node, self._node = self._node, None
        if node is None:
            return
        assert node.stdin
        node.stdin.close()
        try:
            node.wait(60)
        except subprocess.TimeoutExpired:
            node.kill()


class Firefox(Browser):
    """Firefox, driven by firefox.mjs. It has WebAssembly; on Linux it has no WebGPU yet."""

    program, package, script = "firefox", "puppeteer-core", "firefox.mjs"
