"""Kernels → native addresses: render, look in the memory and disk caches, compile, link."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.backends.cache import DiskCache
from weft.backends.cpu import link, runtime
from weft.backends.cpu.host import Host
from weft.backends.llvm.dialect import ENTRY, render
from weft.backends.llvm.target import cpu_target
from weft.core.caps import Caps
from weft.kernel.ir import Kernel

if TYPE_CHECKING:
    from weft.backends.cpu.jit import Engine

# Changes whenever the way that text becomes code changes (pass pipeline, target options).
_PIPELINE = "1"
_RUNTIME = ("weft_run", "weft_worker", "weft_copy", "weft_fill", "weft_clock")


class Loader:
    """Compiles and links for one host. The code stays loaded for the life of the process, so
    identical kernels of any number of Programs share it."""

    def __init__(self, host: Host, cache: DiskCache) -> None:
        self.host = host
        self.cache = cache
        self.target = cpu_target(host.triple, host.enabled)
        self.compiled = 0  # how many modules LLVM has compiled here (the rest were cached)
        self._salt = f"{_PIPELINE}|{host.triple}|{host.cpu}|{host.features}|{host.version}|"
        self._addresses: dict[str, dict[str, int]] = {}
        self._engines: list[Engine] = []
        self._lock = threading.RLock()

    def kernels(self, kernels: Sequence[Kernel], caps: Caps) -> list[int]:
        """The entry address of each kernel. Raises CompileError naming the kernel."""
        texts = [render(kernel, caps, self.target) for kernel in kernels]
        found = self._load(texts, [kernel.name for kernel in kernels], (ENTRY,))
        return [symbols[ENTRY] for symbols in found]

    def runtime(self) -> dict[str, int]:
        """The addresses of the runtime's functions."""
        text = "; weft runtime\n" + runtime.source(self.host.arch)
        return self._load([text], ["weft runtime"], _RUNTIME)[0]

    def _load(
        self, texts: Sequence[str], names: Sequence[str], wanted: tuple[str, ...]
    ) -> list[dict[str, int]]:
        keys = [self._key(text) for text in texts]
        with self._lock:
            missing = {}
            for key, text, name in zip(keys, texts, names):
                if key not in self._addresses and key not in missing:
                    missing[key] = self._object(key, text, name)
            if missing:
                self._link(missing, wanted)
            return [self._addresses[key] for key in keys]

    def _key(self, text: str) -> str:
        code = text.split("\n", 1)[1]  # without the comment that names the kernel
        return "cpu:" + hashlib.sha256((self._salt + code).encode()).hexdigest()

    def _object(self, key: str, text: str, name: str) -> bytes:
        data = self.cache.get(key)
        if data is None:
            from weft.backends.cpu import jit

            data = jit.compile_object(text, self.host, name)
            self.compiled += 1
            self.cache.put(key, data)
        return data

    def _link(self, objects: dict[str, bytes], wanted: tuple[str, ...]) -> None:
        try:
            found = link.link(list(objects.values()), wanted)
        except link.Unsupported:
            from weft.backends.cpu.jit import Engine

            found = []
            for data in objects.values():
                engine = Engine(self.host, data)
                self._engines.append(engine)
                found.append({name: engine.address(name) for name in wanted})
        self._addresses.update(zip(objects, found))
