"""Kernels → native addresses: look in the memory and disk caches, else render and compile; link."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from weft.backends.cpu import link, runtime
from weft.backends.cpu.host import Host, quickly
from weft.core import versions
from weft.core.caps import Caps
from weft.core.errors import OutOfMemoryError, WeftError
from weft.host import memory
from weft.host.cache import DiskCache
from weft.host.forks import lock_of
from weft.kernel.digest import digest
from weft.kernel.ir import Kernel

ENTRY = "weft_kernel"  # the name in llvm.dialect, which is imported only to compile
_RUNTIME = (
    "weft_run", "weft_alone", "weft_worker", "weft_copy", "weft_fill", "weft_clock", "weft_call",
)  # fmt: skip


COMPILING = 32 << 20  # bytes that LLVM and the kernels in it take at least
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


class Early:
    """Kernels that are being compiled before they are asked for, by key."""

    def __init__(self, host: Host, threads: int) -> None:
        from weft.backends.cpu.jit import Compiling

        self.pid = os.getpid()  # a forked child lacks the threads
        self.begun: dict[str, Future[bytes]] = {}
        self._compiling = Compiling(host, threads)

    def add(self, key: str, name: str, text: str) -> None:
        """Compiles a module, unless it is being compiled."""
        if key not in self.begun:
            self.begun[key] = self._compiling.add(name, text)


class Loader:
    """Compiles (on that many threads) and links for one host. Identical kernels of any number of
    Programs share their code, which stays loaded while one of their addresses is held."""

    def __init__(self, host: Host, cache: DiskCache, threads: int = 1) -> None:
        self.host = host
        self.threads = threads
        self.cache = cache
        self.compiled = 0  # how many modules LLVM has compiled here (the rest were cached)
        self._early: Early | None = None
        self._lock = lock_of(self)
        self._salt = (
            f"{versions.stamp('cpu code')}|{host.triple}|{host.cpu}|{host.features}|{host.version}|"
        )

    def kernels(self, kernels: Sequence[Kernel], caps: Caps) -> list[int]:
        """Returns the entry address of each kernel, and loads the runtime with them. If a kernel
        has a `digest` (its kernel_hash, stored with it) and its code is cached, its body is not
        read. Raises CompileError naming the kernel."""
        sources = [self._runtime(), *(self._source(kernel, caps) for kernel in kernels)]
        return [symbols[ENTRY] for symbols in self._load(sources)[1:]]

    def begin(self, kernel: Kernel, caps: Caps) -> None:
        """Starts compiling a kernel that `kernels` will be asked for, on other threads. An error
        shows when it is asked for."""
        if self.threads < 2:
            return
        source = self._source(kernel, caps)
        key = self._key(source.identity)
        if key in _linked or self.cache.get(key) is not None:
            return
        with suppress(WeftError):
            _check_room(1)
            text = source.text()
            with self._lock:
                if self._early is None or self._early.pid != os.getpid():
                    self._early = Early(self.host, self.threads)
                self._early.add(key, source.name, text)

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
        with self._lock:
            early, self._early = self._early, None
        begun = {} if early is None or early.pid != os.getpid() else early.begun
        found = {key: self.cache.get(key) for key in sources if key not in begun}
        absent = [key for key, data in found.items() if data is None]
        made: dict[str, bytes] = {}
        if absent:
            _check_room(len(absent))
            from weft.backends.cpu import jit

            asked = [(sources[key].name, sources[key].text) for key in absent]
            made = dict(zip(absent, jit.compile_objects(asked, self.host, self.threads)))
        for key, one in begun.items():  # of other threads too: they find those on the disk
            if key in sources or one.exception() is None:
                made[key] = one.result()
        for key, data in made.items():
            self.compiled += 1
            self.cache.put(key, data)
        return {key: data for key, data in (found | made).items() if data and key in sources}

    def _link(self, objects: dict[str, bytes], wanted: tuple[str, ...]) -> None:
        found: Sequence[Mapping[str, int]]
        try:
            found = link.link(list(objects.values()), wanted)
        except link.NeedsLinker:
            from weft.backends.cpu import jit

            found = [jit.link_by_llvm(self.host, data, wanted) for data in objects.values()]
        _linked.update(zip(objects, found))


def _check_room(kernels: int) -> None:
    """Raises OutOfMemoryError where the system would end the process while it compiles."""
    free = memory.available()
    if free and free < COMPILING:
        raise OutOfMemoryError(
            f"cpu: compiling {kernels} kernel{'s' if kernels > 1 else ''} takes at least "
            f"{COMPILING >> 20} MiB of memory, and {free >> 20} MiB are free; raise the limit, or "
            "compile once with more memory and the same cache directory (WEFT_CACHE)"
        )
