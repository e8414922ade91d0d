"""Kernels → native addresses: look in the memory and disk caches, else render and compile; link."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from weft.backends.cpu import link, runtime
from weft.backends.cpu.host import Host, effort
from weft.backends.cpu.improve import HEAVY, Improvement, Improver, KernelCode
from weft.core import versions
from weft.core.caps import Caps
from weft.core.errors import WeftError
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
_improving: dict[str, Improvement] = {}  # by key: kernels whose linked code is a first version
_lock = lock_of(sys.modules[__name__])


class _Source(NamedTuple):
    """The name of a module, an identity of its code, a function that returns its text, and the
    symbols that it defines."""

    name: str
    identity: str
    text: Callable[[], str]
    symbols: tuple[str, ...] = (ENTRY,)


class _Object(NamedTuple):
    """An object, and a function that renders its module again if it is a first version."""

    data: bytes
    again: Callable[[], str] | None = None


class _Begun(NamedTuple):
    """A kernel that is being compiled, its text, and whether that is to be a first version."""

    made: Future[bytes]
    text: str
    first: bool

    def object(self) -> _Object:
        """Waits for it. Raises CompileError."""
        return _Object(self.made.result(), partial(str, self.text) if self.first else None)


class Early:
    """Kernels that are being compiled before they are asked for, by key."""

    def __init__(self, host: Host, threads: int) -> None:
        from weft.backends.cpu.jit import Compiling

        self.pid = os.getpid()  # a forked child lacks the threads
        self.begun: dict[str, _Begun] = {}
        self._compiling = Compiling(host, threads)

    def add(self, key: str, name: str, text: str, first: bool) -> None:
        """Compiles a module, unless it is being compiled."""
        if key not in self.begun:
            made = self._compiling.add(name, text, first or effort() == "quick")
            self.begun[key] = _Begun(made, text, first)


class Loader:
    """Compiles (on that many threads) and links for one host. Identical kernels of any number of
    Programs share their code, which stays loaded while one of their addresses is held."""

    def __init__(self, host: Host, cache: DiskCache, threads: int = 1) -> None:
        self.host = host
        self.threads = threads
        self.cache = cache
        self.compiled = 0  # how many modules LLVM has compiled here (the rest were cached)
        self._early: Early | None = None
        self._improver: Improver | None = None
        self._lock = lock_of(self)
        self._salt = (
            f"{versions.stamp('cpu code')}|{host.triple}|{host.cpu}|{host.features}|{host.version}|"
        )

    def code(self, kernels: Sequence[Kernel], caps: Caps) -> KernelCode:
        """Returns the entry address of each kernel, and loads the runtime with them. Large kernels
        that are not cached have first versions, which get better while they run. If a kernel has a
        `digest` (its kernel_hash, stored with it) and its code is cached, its body is not read.
        Raises CompileError naming the kernel."""
        sources = [self._runtime(), *(self._source(kernel, caps) for kernel in kernels)]
        with _lock:
            code = KernelCode([symbols[ENTRY] for symbols in self._load(sources)[1:]])
            for source in sources:
                found = _improving.get(self._key(source.identity))
                if found is None:
                    continue
                found.serve(code)
                if found.pid != os.getpid():  # a fork has left its thread behind
                    found.pid = os.getpid()
                    self._improves().add(found)
            return code

    def settle(self) -> None:
        """Waits until no code is a first version any more."""
        if self._improver is not None and self._improver.pid == os.getpid():
            self._improver.settle()

    def begin(self, kernel: Kernel, caps: Caps) -> None:
        """Starts compiling a kernel that `kernels` will be asked for, on other threads. An error
        shows when it is asked for."""
        if self.threads < 2:
            return
        if self._improver is not None:
            self._improver.hold()
        source = self._source(kernel, caps)
        key = self._key(source.identity)
        if key in _linked or self._kept(key, source):
            return
        with suppress(WeftError):
            text = source.text()
            with self._lock:
                if self._early is None or self._early.pid != os.getpid():
                    self._early = Early(self.host, self.threads)
                self._early.add(key, source.name, text, self._twice(source, text))

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
                    alike = {k: o.data for k, o in objects.items() if missing[k].symbols == wanted}
                    self._link(alike, wanted)
                for key, made in objects.items():
                    if made.again is not None:
                        self._improve(key, missing[key].name, made.again)
            found = [_linked[key] for key in keys]
            for key in keys:
                _linked.move_to_end(key)
            while len(_linked) > KEPT:
                _linked.popitem(last=False)
            return found

    def _key(self, identity: str, first: bool = False) -> str:
        passes = "quick|" if first or effort() == "quick" else ""
        return "cpu:" + hashlib.sha256((self._salt + passes + identity).encode()).hexdigest()

    def _in_steps(self, source: _Source) -> bool:
        """True if a module may have few passes first and then, on another thread, all."""
        return self.threads > 1 and effort() == "" and source.symbols == (ENTRY,)

    def _twice(self, source: _Source, text: str) -> bool:
        return self._in_steps(source) and len(text) >= HEAVY

    def _objects(self, sources: dict[str, _Source]) -> dict[str, _Object]:
        with self._lock:
            early, self._early = self._early, None
        begun = {} if early is None or early.pid != os.getpid() else early.begun
        found = {key: self._kept(key, one) for key, one in sources.items() if key not in begun}
        made = self._compile({key: sources[key] for key, one in found.items() if one is None})
        for key, one in begun.items():  # of other threads too: they find those on the disk
            if key in sources or one.made.exception() is None:
                made[key] = one.object()
        for key, new in made.items():
            self.compiled += 1
            if new.again is None:
                self.cache.put(key, new.data)
            elif key in sources:
                self.cache.put(self._key(sources[key].identity, first=True), new.data)
        return {key: one for key, one in (found | made).items() if one and key in sources}

    def _kept(self, key: str, source: _Source) -> _Object | None:
        """The object of a module from the disk: that of all passes, else a first version."""
        if (data := self.cache.get(key)) is not None:
            return _Object(data)
        if not self._in_steps(source):
            return None
        data = self.cache.get(self._key(source.identity, first=True))
        return None if data is None else _Object(data, source.text)

    def _compile(self, sources: dict[str, _Source]) -> dict[str, _Object]:
        if not sources:
            return {}
        from weft.backends.cpu import jit

        texts = {key: source.text() for key, source in sources.items()}
        again = {
            key: partial(str, text) if self._twice(sources[key], text) else None
            for key, text in texts.items()
        }
        quick = effort() == "quick"
        asked = [(sources[k].name, partial(str, texts[k]), quick or bool(again[k])) for k in texts]
        made = jit.compile_objects(asked, self.host, self.threads)
        return {key: _Object(data, again[key]) for key, data in zip(texts, made)}

    def _improve(self, key: str, name: str, text: Callable[[], str]) -> None:
        """Has a thread compile a kernel with all passes and link that instead."""

        def finish() -> int:
            from weft.backends.cpu import jit

            data = jit.compile_object(text(), self.host, name)
            self.compiled += 1
            self.cache.put(key, data)
            with _lock:
                _improving.pop(key, None)
                self._link({key: data}, (ENTRY,))
                return _linked[key][ENTRY]

        _improving[key] = Improvement(_linked[key][ENTRY], finish)
        self._improves().add(_improving[key])

    def _improves(self) -> Improver:
        """The thread of this process."""
        if self._improver is None or self._improver.pid != os.getpid():
            self._improver = Improver()
        self._improver.hold()
        return self._improver

    def _link(self, objects: dict[str, bytes], wanted: tuple[str, ...]) -> None:
        found: Sequence[Mapping[str, int]]
        try:
            found = link.link(list(objects.values()), wanted)
        except link.NeedsLinker:
            from weft.backends.cpu import jit

            found = [jit.link_by_llvm(self.host, data, wanted) for data in objects.values()]
        _linked.update(zip(objects, found))
