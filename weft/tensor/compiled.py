"""`weft.compile`: a function of tensors that runs as one Program per signature.

Weights and state are the tensors that the function reads without being passed them. A state tensor
(one that the function assigns to) gets a buffer on the device at the first call, its home. From
then on the tensor shows that buffer, and all Programs that use the tensor share it.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.backends import registry
from weft.core import dtypes as dt
from weft.core.errors import CallError, OutOfMemoryError, UsageError
from weft.core.trees import unflatten
from weft.graph.ir import Graph
from weft.host.clock import compiling
from weft.host.collector import uncollected
from weft.host.forks import lock_of
from weft.program.array import DeviceArray
from weft.program.parted import PartedSession
from weft.program.program import Program
from weft.program.session import Session
from weft.tensor import recheck, views
from weft.tensor.base import CURRENT, TensorBase
from weft.tensor.binding import Binder
from weft.tensor.core import Tensor
from weft.tensor.device import check_dtype
from weft.tensor.entries import CompiledSignature, ProgramCache
from weft.tensor.operands import (
    apart,
    argument_names,
    arguments,
    is_array,
    operand,
    result,
    shared_arguments,
)  # fmt: skip
from weft.tensor.program_cache import programs_of
from weft.tensor.tracing import Spec, Traced, trace_call

CACHE_SIZE = 128  # Programs that a compiled function keeps
SMALLER = "; a smaller batch or packed weights need less"
ELSEWHERE = ", and weft.compile(..., partition=True) runs on the CPU what does not fit"
OFTEN = 8  # Programs for the same arguments, from which on a warning says what keeps changing


class Compiled:
    """A function compiled on its first call with each signature (shapes and dtypes of the tensors
    and arrays among its arguments; everything else by value)."""

    def __init__(
        self,
        fn: Callable[..., Any],
        device: Any = None,
        partition: bool = False,
        cache_size: int = CACHE_SIZE,
        frozen: bool = False,
    ):
        if isinstance(cache_size, bool) or not isinstance(cache_size, int) or cache_size < 1:
            raise UsageError(f"cache_size is {cache_size!r}; expected a positive integer")
        self.fn = fn
        self._calls = itertools.count(1)
        self._wanted = device
        self._partition = partition
        self._frozen = bool(frozen)
        self._binder: Binder | None = None
        self.__name__ = getattr(fn, "__name__", "compiled").strip("<>") or "compiled"
        self._kept = ProgramCache(cache_size)
        self._rechecks = recheck.wanted()
        self._lock = lock_of(
            self,
            torn=f"{self.__name__}() ran in another thread when this process was forked, so its "
            "state is unknown here; compile it again in the child",
        )
        self.__doc__ = fn.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs on the device; returns what the function returns, as tensors on that device.

        Raises TraceError, CompileError, DeviceError or LimitError.
        """
        if CURRENT.trace is not None or CURRENT.transforms:
            # inside another trace, more of its graph; inside a derivative or a map, a part of it
            return self.fn(*args, **kwargs)
        if not kwargs and self._kept.direct and not self._rechecks:
            with self._lock:
                for entry, play in self._kept.direct:
                    if (made := play(args)) is not None:
                        entry.used = next(self._calls)
                        return made
        leaves: list[Any] = []
        shape: Any = len(args)
        if not kwargs and all(map(is_array, args)):  # the plain case costs a call the least
            leaves.extend(args)
        else:
            leaves, tree = arguments(args, kwargs, self.__name__)
            shape = tree.marks
        with self._lock:
            binder = self._place(leaves)
            device = binder.device
            values = [operand(x, device) for x in leaves]
            found = self._kept.find(self.__name__, shape, values)
            for entry in found.entries:
                if entry.serves(leaves):
                    if self._rechecks:
                        again, _ = self._trace((args, kwargs), found.operands, entry.shared)
                        recheck.check_same(self.__name__, entry, again)
                    break
            else:
                self._say_often(found.entries)
                with compiling.running(), uncollected():
                    entry = self._compile(binder, (args, kwargs), found.operands, leaves)
                self._kept.make_room()
                found.entries.append(entry)
            entry.used = next(self._calls)
            try:
                made = self._run(binder, entry, values)
            except OutOfMemoryError as error:
                known = device.free_memory() and not (self._partition or device.is_host)
                offer = ELSEWHERE if known else ""
                raise OutOfMemoryError(f"{error}{SMALLER}{offer}") from None
            if isinstance(shape, int):
                self._kept.shorten(entry, shape)
            return made

    def __repr__(self) -> str:
        place = "not run yet" if self._binder is None else self._binder.device.info.id
        count = len(self.programs())
        return f"Compiled({self.__name__}, {place}, {count} Program{'s' if count != 1 else ''})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CallError(
            f"{self.__name__}: a compiled function holds a device and its buffers, which neither "
            "pickle nor copy carries over; pass the function itself and compile it there"
        )

    def save(
        self, path: str | os.PathLike[str], device: str | None = None, beside: bool = False
    ) -> None:
        """Writes a file from which `weft.load` makes a function: what the latest call ran, with the
        current values of its tensors. `device` is a name that `weft compile` takes (None: the
        function's own). The loaded function returns flat results. Raises UsageError before a first
        call, and for a function that assigns to tensors."""
        from weft.backends.presets import caps_of
        from weft.tensor.storing import save_graph

        entry = max(self._kept.entries(), key=lambda e: e.used, default=None)
        if entry is None or self._binder is None:
            raise UsageError(
                f"{self.__name__} was not called yet: call the function once, then save"
            )
        here = self._binder.device
        name, caps = (here.info.id, here.caps) if device is None else (device, caps_of(device))
        save_graph(entry.graph, entry.captured, Path(path), name, caps, beside=beside)

    def sync(self) -> None:
        """Waits until every run so far is finished."""
        if self._binder is not None:
            self._binder.device.sync()

    def programs(self) -> list[Program]:
        """The Programs compiled so far, one per signature (of a partitioned one, each part)."""
        return [p.program for e in self._kept.entries() for p in e.parted.parts]

    def graphs(self) -> list[Graph]:
        """The traced Graphs, in the order of `programs`."""
        return [e.graph for e in self._kept.entries()]

    def report(self) -> str:
        """A report per signature: passes, memory and launches. A partitioned one lists its parts,
        the transfers between them, and why values are on the host."""
        shown = [e.parted.meta.get("report") for e in self._kept.entries()]
        for entry in self._kept.entries():
            for part in entry.parted.parts:
                shown.append(part.program.meta.get("report") or self._explained(entry))
        return "\n\n".join(r.text() for r in shown if r is not None)

    def _explained(self, entry: CompiledSignature) -> Any:
        """The report of a Program that came from the disk: its graph compiled once more."""
        from weft.compile import compile_graph

        assert self._binder is not None
        return compile_graph(entry.graph, self._binder.device.caps, self.__name__).meta["report"]

    def sessions(self) -> list[Session | PartedSession]:
        """The sessions of the Programs that ran so far, in the order of `programs`."""
        return [e.session for e in self._kept.entries() if e.session is not None]

    # -- one call

    def _place(self, leaves: list[Any]) -> Binder:
        """The device: the one asked for, else that of the first device tensor, else the default."""
        if self._binder is None:
            on = [
                x._value.device
                for x in leaves
                if isinstance(x, TensorBase) and isinstance(x._value, DeviceArray)
            ]
            chosen = on[0] if on and self._wanted is None else self._wanted
            self._binder = Binder(registry.get(chosen), self.__name__)
        return self._binder

    def _say_often(self, entries: list[CompiledSignature]) -> None:
        """Warns, once, where one attribute makes each call compile again."""
        if len(entries) != OFTEN or entries[-1].facts is None:
            return
        if (what := entries[-1].facts.difference()) is not None:
            warnings.warn(
                f"{self.__name__} was compiled {OFTEN} times for the same arguments, since {what} "
                "changed between the calls; keep it in a Tensor, or pass it as an argument",
                stacklevel=3,
            )

    def _trace(
        self, call: Any, operands: Any, shared: Sequence[tuple[int, Tensor]]
    ) -> tuple[Traced, list[Spec]]:
        """The trace of a call; the tensors in `shared` replace the arguments at those positions."""
        given, known = call
        _, tree = arguments(given, known, self.__name__)
        specs = [Spec(s, d, name) for (s, d), name in zip(operands, argument_names(tree, self.fn))]
        constant = self._frozen

        def rebuilt(tensors: list[Tensor]) -> Any:
            nonlocal constant
            constant = constant or getattr(self.fn, "evaluates", False) is True
            for i, tensor in shared:
                tensors[i] = tensor
            args, kwargs = unflatten(tree, tensors)
            return self.fn(*args, **kwargs)

        traced = trace_call(self.fn, specs, self.__name__, rebuilt, checked=True)
        if constant:
            frozen = replace(traced.graph, meta={**traced.graph.meta, "frozen": True})
            traced = replace(traced, graph=frozen)
        return traced, specs

    def _compile(
        self, binder: Binder, call: Any, operands: Any, leaves: list[Any]
    ) -> CompiledSignature:
        shared: list[tuple[int, Tensor]] = []
        while True:
            traced, specs = self._trace(call, operands, shared)
            kept = (*traced.captured.values(), *(t for _, t in shared))
            leaves_behind = traced.graph.assigns or traced.grads
            roots = frozenset(id(views.root(t)) for t in kept) if leaves_behind else frozenset()
            met = shared_arguments(leaves, roots, bool(traced.grads))
            if len(met) <= len(shared):
                break
            shared = met  # trace again, with these as the tensors that they are
        states = frozenset(n.attrs["name"] for n, _ in traced.graph.assigns)
        for n in traced.graph.inputs:
            if n.dtype not in dt.DEVICE:
                check_dtype(n.dtype, binder.device, f"{self.__name__}: {n.attrs['name']!r}: ")
        held = binder.held(traced.captured) if self._partition else None
        parted = programs_of(traced.graph, binder.device, self.__name__, held)
        taken = set(parted.inputs())
        wanted = [(i, s.name) for i, s in enumerate(specs) if s.name in taken]
        fed = [(name, t) for name, t in traced.fed if name in taken]
        roles = parted.roles()
        return CompiledSignature(
            traced.graph, parted, traced.tree, wanted, roles, traced.captured, states, {},
            fed, traced.grads, traced.guards, traced.facts, traced.checks, shared, roots,
        )  # fmt: skip

    def _run(self, binder: Binder, entry: CompiledSignature, values: list[Any]) -> Any:
        if not entry.current:
            self._kept.lengthen(entry)
            with uncollected():
                binder.bind(entry)
        session = entry.session
        assert session is not None
        inputs = {name: values[i] for i, name in entry.wanted}
        for name, tensor in entry.fed:
            inputs[name] = operand(tensor._grad, binder.device)
        if entry.states:
            written = [entry.captured[n] for n in entry.states if n in entry.captured]
            inputs = {n: apart(v, written) for n, v in inputs.items()}
        for home in entry.written:
            home.version += 1
        arrays = session.run_device(inputs)
        for name in entry.states:
            if name in entry.captured and entry.captured[name]._views:
                views.push(entry.captured[name])
        results = [result(a, role) for a, role in zip(arrays, entry.roles)]
        for tensor, gradient in entry.grads:
            tensor._grad = gradient
        made = unflatten(entry.tree, results)
        if entry.checks:
            made, found = made
            for refuse, flags in zip(entry.checks, found):
                refuse(flags)
        return made
