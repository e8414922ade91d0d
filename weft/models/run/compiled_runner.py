"""The runner of compiled Programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from weft.core.errors import OutOfMemoryError
from weft.core.order import stream_rows
from weft.host.clock import compiling
from weft.host.collector import uncollected
from weft.host.progress import progress
from weft.models.arch.config import DecoderConfig
from weft.models.arch.stages import roles_of
from weft.models.arch.weights import Weights
from weft.models.run.placed import Placed
from weft.models.run.runner import OF_ONE, PICTURED, PREFILL, STEP, Runner, kind_of

if TYPE_CHECKING:
    from weft.core.caps import Caps
    from weft.graph.ir import Graph
    from weft.program.device import Buffer, Device
    from weft.program.program import Program
    from weft.program.session import Session


class CompiledRunner(Runner):
    """A runner of compiled Programs, made on first use. They share caches, and weights with the
    model's other runners."""

    scores = True

    def __init__(
        self, config: DecoderConfig, placed: Placed, context: int, slots: int, pages: int
    ) -> None:
        super().__init__(config, context, slots, pages, placed.adapters)
        self._placed, self._device = placed, placed.target
        wants = roles_of(config)
        self._avals = {role: aval for role, aval in placed.avals.items() if wants(role)}
        self._state: dict[str, Buffer] = {}
        self._sessions: dict[str, Session] = {}
        self.pause: Callable[[], None] | None = None  # called within prefills (`engine.Pausing`)

    @property
    def weight_buffers(self) -> dict[str, Buffer]:
        """The weights on the device, by the names of Programs' buffers."""
        return self._placed.buffers

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return step_sizes(self._device.caps)

    def session(self, kind: str) -> Session:
        """Returns the Session of one kind of step, compiled on first use."""
        made = self._sessions.get(kind)
        if made is None:
            text = f"compiling {kind} for {self._device.info.id}"
            with progress(text), compiling.running(), uncollected():
                made = self._sessions[kind] = self._compile(kind)
        return made

    def _shape(self, kind: str) -> tuple[int, int, int, int, bool, bool, str]:
        run, name = self.config.run, f"{self.config.family}.{kind}"
        last = kind in (PREFILL, PICTURED) and (run is None or run.end == self.config.layers)
        return self.room(kind), self.slots, self.pages, self.context, kind in OF_ONE, last, name

    @property
    def weights(self) -> Weights:
        """The arrays by name, including rotary tables."""
        return self._placed.weights

    def what(self, kind: str) -> object:
        """Returns the key of `graph(kind)` (see `program_for`)."""
        return self.config, sorted(self._avals.items()), self._shape(kind)

    def graph(self, kind: str) -> Graph:
        """Returns the graph of one kind of step, before compilation."""
        from weft.models.arch.decoder import decoder_graph

        pictured = kind == PICTURED
        return decoder_graph(self.config, self._avals, *self._shape(kind), pictured=pictured)

    def program(self, kind: str, caps: Caps, device: Device | None = None) -> Program:
        """Returns one kind of step as a Program for `caps`: from weft's cache, or compiled while
        its `device` prepares the kernels."""
        from weft.tensor.program_cache import program_for

        return program_for(self.what(kind), model_caps(caps), lambda: self.graph(kind), device)

    def _compile(self, kind: str) -> Session:
        return self._open(
            self.program(kind, self._device.caps, self._device),
            kind in (PREFILL, PICTURED) and self._device.pauses,
        )

    def _open(self, program: Program, alone: bool = False) -> Session:
        """Opens a Program over the shared weights and states; `alone`: with an arena that no other
        uses, so that others may run while it pauses. Raises OutOfMemoryError."""
        held = [b.nbytes for b in (*self.weight_buffers.values(), *self._state.values())]
        free = self._device.free_memory()
        try:
            session = self._placed.session(program, self._state, alone)
        except OutOfMemoryError as error:
            from weft.models.run.fit import too_large

            free += sum(held) if free else 0
            needs = too_large(program, self.context, self.slots, free, self._fixed)
            raise OutOfMemoryError(f"{needs}. {error}") from None
        self._state |= session.state
        return session

    @property
    def _fixed(self) -> int:
        """The bytes of the cache of layers that keep only their window."""
        kept = self._planes_of((), window=True).values()
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in kept)

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        """Does Runner.step; a part of a model takes and returns that part's inputs and outputs."""
        return self.outputs(kind, rows, n)[0]

    def outputs(self, kind: str, rows: dict[str, np.ndarray], n: int) -> list[np.ndarray]:
        """Runs a step; returns everything that its Program computes, valid until the next."""
        session = self.session(kind)
        given = {name: rows[name] for name in session.input_names}
        pause = self.pause if kind in (PREFILL, PICTURED) else None
        found = session.run(given, {"n": n}, pause)
        self._placed.keep()
        return found

    # -- pages on the host

    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray:
        (groups, _, *rest), dtype = self._planes[name]
        out = np.empty((groups, len(pages), *rest), dtype.numpy)
        for part, at in self._parts(name, pages):
            shape = out[part].shape
            out[part] = self._device.read(self._state[name], shape, dtype, at)
        return out

    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None:
        for part, at in self._parts(name, pages):
            self._device.write(self._state[name], np.ascontiguousarray(value[part]), at)

    def _parts(self, name: str, pages: Sequence[int]) -> Iterator[tuple[tuple[int, slice], int]]:
        """Yields the parts [head, pages] of a plane that are contiguous, each with its place in
        bytes."""
        if not self._state:
            self.session(kind_of(self.sizes[0]))
        (groups, count, *rest), dtype = self._planes[name]
        size = int(np.prod(rest)) * dtype.itemsize
        steps = [i for i in range(1, len(pages)) if pages[i] != pages[i - 1] + 1]
        for begin, end in zip([0, *steps], [*steps, len(pages)]):
            for head in range(groups if end > begin else 0):
                yield (head, slice(begin, end)), (head * count + pages[begin]) * size


def step_sizes(caps: Caps) -> tuple[int, ...]:
    """Returns the numbers of rows of Programs: one, the streaming maximum, a whole step."""
    return tuple(sorted({1, stream_rows(caps, bounded=True), STEP}))


def model_caps(caps: Caps) -> Caps:
    """Returns the caps that models are compiled for, without vendors' products, whose sums may be
    cut differently for other numbers of rows. So a result does not depend on its batch."""
    return caps.without("gemm_library")
