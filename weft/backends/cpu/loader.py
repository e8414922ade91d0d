"""Kernels → native addresses: look in the memory and disk caches, else render and compile; link."""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from weft.backends.cpu import link, runtime
from weft.backends.cpu.host import Host, quickly
from weft.core import versions
from weft.core.caps import Caps
from weft.host.cache import DiskCache
from weft.host.forks import lock_of
from weft.kernel.digest import digest
from weft.kernel.ir import Kernel

ENTRY = "weft_kernel"  # the name in llvm.dialect, which is imported only to compile
_RUNTIME = (
    "weft_run", "weft_alone", "weft_worker", "weft_copy", "weft_fill", "weft_clock", "weft_call",
)  # fmt: skip


KEPT = 2048  # modules whose code stays loaded after the last Program that uses it
# Addresses by key, for the whole process; least recently used first.
_linked: OrderedDict[str, Mapping[str, int]] = OrderedDict()
_runtime: list[Mapping[str, int]] = []  # workers run its code until the process ends
_lock = lock_of(sys.modules[__name__])


class _Source(NamedTuple):
    """The name of a module, an identity of its code, a function that returns its text, and the
    symbols that it defines."""

    name: str
    identity: str
    text: Callable[[], str]
    symbols: tuple[str, ...] = (ENTRY,)


class Loader:
    """Compiles (on that many threads) and links for one host. Identical kernels of any number of
    Programs share their code, which stays loaded while one of their addresses is held."""

    def __init__(self, host: Host, cache: DiskCache, threads: int = 1) -> None:
        self.host = host
        self.threads = threads
        self.cache = cache
        self.compiled = 0  # how many modules LLVM has compiled here (the rest were cached)
        self._salt = (
            f"{versions.stamp('cpu code')}|{host.triple}|{host.cpu}|{host.features}|{host.version}|"
        )

    def kernels(self, kernels: Sequence[Kernel], caps: Caps) -> list[int]:
        """Returns the entry address of each kernel, and loads the runtime with them. If a kernel
        has a `digest` (its kernel_hash, stored with it) and its code is cached, its body is not
        read. Raises CompileError naming the kernel."""
        sources = [self._runtime(), *(self._source(kernel, caps) for kernel in kernels)]
        return [symbols[ENTRY] for symbols in self._load(sources)[1:]]

    def runtime(self) -> Mapping[str, int]:
        """The addresses of the runtime's functions."""
        found = self._load([self._runtime()])[0]
        _runtime.append(found)
        return found

    def _runtime(self) -> _Source:
        text = runtime.source(self.host.arch)
        return _Source("weft runtime", text, lambda: text, _RUNTIME)

    def _source(self, kernel: Kernel, caps: Caps) -> _Source:
        identity = f"{digest(kernel)}|{caps.scratch_bytes}"
        return _Source(kernel.name, identity, lambda: self.render(kernel, caps))

    def render(self, kernel: Kernel, caps: Caps) -> str:
        """The LLVM IR of a kernel for this host."""
        from weft.backends.llvm import cpu_target, render

        return render(kernel, caps, cpu_target(self.host.triple, self.host.enabled))

    def _load(self, sources: Sequence[_Source]) -> list[Mapping[str, int]]:
        keys = [self._key(source.identity) for source in sources]
        with _lock:
            missing = {k: source for k, source in zip(keys, sources) if k not in _linked}
            if missing:
                objects = self._objects(missing)
                for wanted in {source.symbols for source in missing.values()}:
                    alike = {k: v for k, v in objects.items() if missing[k].symbols == wanted}
                    self._link(alike, wanted)
            found = [_linked[key] for key in keys]
            for key in keys:
                _linked.move_to_end(key)
            while len(_linked) > KEPT:
                _linked.popitem(last=False)
            return found

    def _key(self, identity: str) -> str:
        effort = "quick|" if quickly() else ""
        return "cpu:" + hashlib.sha256((self._salt + effort + identity).encode()).hexdigest()

    def _objects(self, sources: dict[str, _Source]) -> dict[str, bytes]:
        found = {key: self.cache.get(key) for key in sources}
        absent = [key for key, data in found.items() if data is None]
        if absent:
            from weft.backends.cpu import jit

            asked = [(sources[key].name, sources[key].text) for key in absent]
            for key, data in zip(absent, jit.compile_objects(asked, self.host, self.threads)):
                found[key] = data
                self.compiled += 1
                self.cache.put(key, data)
        return {key: data for key, data in found.items() if data is not None}

    def _link(self, objects: dict[str, bytes], wanted: tuple[str, ...]) -> None:
        found: Sequence[Mapping[str, int]]
        try:
            found = link.link(list(objects.values()), wanted)
        except link.NeedsLinker:
            from weft.backends.cpu import jit

            found = [jit.link_by_llvm(self.host, data, wanted) for data in objects.values()]
        _linked.update(zip(objects, found))
