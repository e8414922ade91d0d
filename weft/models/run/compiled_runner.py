"""The runner that plays compiled Programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import OutOfMemoryError
from weft.core.order import stream_rows
from weft.host.clock import compiling
from weft.host.progress import progress
from weft.models.arch.config import DecoderConfig
from weft.models.arch.matrices import Lent, joined
from weft.models.run.runner import OF_ONE, PREFILL, STEP, Runner, kind_of

if TYPE_CHECKING:
    from weft.core.caps import Caps
    from weft.graph.ir import Graph
    from weft.program.arena import Arena
    from weft.program.device import Buffer, Device
    from weft.program.program import Program
    from weft.program.session import Session


class CompiledRunner(Runner):
    """A runner of compiled Programs, made on first use; they share weights and caches.

    `placed` are the `weight_buffers` of another runner on the same device, which are reused. The
    device then has the only copy of packed weights (`matrices.Parts`).
    """

    scores = True

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Any],
        avals: Mapping[str, tuple[tuple[int, ...], Any]],
        context: int,
        slots: int,
        pages: int,
        device: Device,
        arena: Arena,
        placed: dict[str, Buffer] | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        super().__init__(config, context, slots, pages, adapters)
        self._weights = weights
        self._placed = {} if placed is None else placed
        self._avals = avals
        self._state: dict[str, Buffer] = {}
        self._device, self.arena = device, arena
        self._sessions: dict[str, Session] = {}

    @property
    def weight_buffers(self) -> dict[str, Buffer]:
        """The weights in the Sessions; passing these on avoids another copy."""
        return self._placed

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return step_sizes(self._device.caps)

    def session(self, kind: str) -> Session:
        """Returns the Session of one kind of step, compiled on first use."""
        made = self._sessions.get(kind)
        if made is None:
            text = f"compiling {kind} for {self._device.info.id}"
            with progress(text), compiling.running():
                made = self._sessions[kind] = self._compile(kind)
        return made

    def _shape(self, kind: str) -> tuple[int, int, int, int, bool, bool, str]:
        run, name = self.config.run, f"{self.config.family}.{kind}"
        last = kind == PREFILL and (run is None or run.end == self.config.layers)
        return self.room(kind), self.slots, self.pages, self.context, kind in OF_ONE, last, name

    @property
    def weights(self) -> Mapping[str, Any]:
        """Roles to arrays, including rotary tables."""
        return self._weights

    def what(self, kind: str) -> object:
        """Returns the key of `graph(kind)` (see `program_for`)."""
        return self.config, sorted(self._avals.items()), self._shape(kind)

    def graph(self, kind: str) -> Graph:
        """Returns the graph of one kind of step, before compilation."""
        from weft.models.arch.decoder import decoder_graph

        return decoder_graph(self.config, self._avals, *self._shape(kind))

    def program(self, kind: str, caps: Caps) -> Program:
        """Returns one kind of step as a Program for `caps`: from weft's cache, or compiled."""
        from weft.compile.programs import program_for

        return program_for(self.what(kind), model_caps(caps), lambda: self.graph(kind))

    def _compile(self, kind: str) -> Session:
        return self._open(self.program(kind, self._device.caps))

    def _open(self, program: Program) -> Session:
        """Opens a Program over the shared weights and states. Raises OutOfMemoryError."""
        from weft.program.session import Session

        held = [b.nbytes for b in (*self._placed.values(), *self._state.values())]
        free = self._device.free_memory()
        given = given_weights(program, self._placed, self._weights)
        try:
            session = Session(
                program, self._device, given, self._state, self.arena, reuse_outputs=True
            )
        except OutOfMemoryError as error:
            from weft.models.run.fit import too_large

            free += sum(held) if free else 0
            needs = too_large(program, self.context, self.slots, free)
            raise OutOfMemoryError(f"{needs}. {error}") from None
        self._placed |= session.weights
        self._state |= session.state
        return session

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        """Does Runner.step; a part of a model takes and returns that part's inputs and outputs."""
        session = self.session(kind)
        return session.run({name: rows[name] for name in session.input_names}, {"n": n})[0]

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


def given_weights(
    program: Program, placed: Mapping[str, Buffer], weights: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Returns the sources of the Program's weights: placed buffers, and the model's arrays."""
    names = [b.name for b in program.buffers if b.role == "weight"]
    there = {name: placed[name] for name in names if name in placed}
    uses = Counter(source for n in names if n not in there for source in program.sources(n))
    return joined(there, Lent(weights, uses))


def weight_avals(weights: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Returns role -> (shape, DType)."""
    return {k: (v.shape, as_dtype(v.dtype)) for k, v in weights.items()}


def model_caps(caps: Caps) -> Caps:
    """Returns the caps that models are compiled for, without vendors' products, whose sums may be
    cut differently for other numbers of rows. So a result does not depend on its batch."""
    return caps.without("gemm_library")
