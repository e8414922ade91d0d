"""Programs cut between a device and the host, and the Session that runs them in order.

Only values move between the two, each at most once per run and direction, and every move is
counted: device memory to host memory (`Device.read`), host memory to device memory
(`Device.write`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np

from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.program.arena import Arena
from weft.program.array import DeviceArray
from weft.program.device import Buffer, Device
from weft.program.placing import Value
from weft.program.program import BufferRole, BufferSpec, Program
from weft.program.session import Session

Side = Literal["device", "host"]


@dataclass(frozen=True)
class ProgramPart:
    """One Program of several; `gives` names its outputs for later parts."""

    side: Side
    program: Program
    gives: tuple[str, ...]


@dataclass(frozen=True)
class PartedProgram:
    """Programs in the order they run. Their inputs are inputs of the whole, or what earlier parts
    give; `outputs` are given by parts. `meta["report"]` says why each value is where it is."""

    name: str
    parts: tuple[ProgramPart, ...]
    outputs: tuple[str, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self) -> list[str]:
        """The names of the inputs that some part reads."""
        given = {name for part in self.parts for name in part.gives}
        return [n for n in dict.fromkeys(_input_names(self.parts)) if n not in given]

    def roles(self) -> list[str]:
        """The role of the buffer behind each output."""
        found = {
            name: p.program.buffers[i].role
            for p in self.parts
            for name, i in zip(p.gives, p.program.outputs)
        }
        return [found[name] for name in self.outputs]

    def sources(self, buffer: str) -> tuple[str, ...]:
        """Returns the weights that make up the weight buffer of this name."""
        found = (p.program.sources(buffer) for p in self.parts)
        return next((names for names in found if names != (buffer,)), (buffer,))

    def bound(self) -> list[tuple[str, BufferRole, Side]]:
        """Each weight and state with its role, once per side that uses it."""
        found = [
            (name, b.role, part.side)
            for part in self.parts
            for b in part.program.buffers
            if b.role in ("weight", "state")
            for name in part.program.sources(b.name)
        ]
        return list(dict.fromkeys(found))


def _input_names(parts: tuple[ProgramPart, ...]) -> list[str]:
    return [p.program.buffers[i].name for p in parts for i in p.program.inputs]


class PartedSession:
    """A PartedProgram on `device` and `host` (a device whose memory is host memory).

    `weights` and `state` as for Session; each part takes what it uses, and a weight that both
    sides use is copied once. `transfers` and `moved` count what crossed between the two so far:
    values and bytes. Raises as Session does.
    """

    def __init__(
        self,
        parted: PartedProgram,
        device: Device,
        host: Device,
        weights: Mapping[str, Value] | None = None,
        state: Mapping[str, Value] | None = None,
        arena: Arena | None = None,
    ):
        self.parted = parted
        self.transfers = 0
        self.moved = 0  # bytes
        self.weights: dict[str, Buffer] = {}  # on the device
        self._on: dict[Side, Device] = {"device": device, "host": host}
        self._landing: dict[str, DeviceArray] = {}  # destinations of values from the host
        arenas = {"device": arena or Arena(device), "host": Arena(host)}
        held: dict[Side, dict[str, Value]] = {"device": {}, "host": {}}
        self.sessions: list[Session] = []
        for part in parted.parts:
            mine = held[part.side]
            for b in part.program.buffers:
                if b.role == "weight" and b.name not in mine:
                    for name in part.program.sources(b.name):
                        if name in (weights or {}) and name not in mine:
                            mine[name] = self._local(b, (weights or {})[name], part.side)
                elif b.name not in mine and b.name in (state or {}) and b.role == "state":
                    mine[b.name] = (state or {})[b.name]
            session = Session(part.program, self._on[part.side], mine, mine, arenas[part.side])
            mine |= {**session.weights, **session.state}  # later parts use the same buffers
            self.sessions.append(session)
            if part.side == "device":
                self.weights |= session.weights

    def _local(self, spec: BufferSpec, value: Value, side: Side) -> Value:
        """A weight as a Session on `side` takes it: host memory, unless it is there already."""
        buffer = value.buffer if isinstance(value, DeviceArray) else value
        if not isinstance(buffer, Buffer) or buffer.device is self._on[side]:
            return value
        if isinstance(value, DeviceArray):  # a recipe may change such a value
            return value.numpy()
        return buffer.device.read(buffer, spec.shape, spec.dtype)

    def run_device(
        self,
        inputs: Mapping[str, Value] | None = None,
        scalars: Mapping[str, int] | None = None,
    ) -> list[DeviceArray]:
        """Runs every part once. An output stays where the part that gives it ran."""
        given: dict[str, Value] = dict(inputs or {})
        for name in self.parted.inputs():
            if name not in given:
                raise UsageError(f"{self.parted.name} misses input {name!r}")
        there: dict[tuple[str, Side], Value] = {}
        for part, session in zip(self.parted.parts, self.sessions):
            program = part.program
            names = [program.buffers[i].name for i in program.inputs]
            taken = {n: self._fetch(n, part.side, given, there) for n in names}
            known = {n: v for n, v in (scalars or {}).items() if n in program.scalars}
            for name, array in zip(part.gives, session.run_device(taken, known)):
                given[name] = array
        found = [given[name] for name in self.parted.outputs]
        return [x for x in found if isinstance(x, DeviceArray)]

    def read_state(self, name: str) -> np.ndarray:
        """A host copy of a state's content. Raises UsageError for an unknown one."""
        for session in self.sessions:
            if name in session.state:
                return session.read_state(name)
        raise UsageError(f"no state {name!r} in {self.parted.name}")

    # -- transfers --------------------------------------------------------------------------------

    def _fetch(
        self,
        name: str,
        side: Side,
        given: Mapping[str, Value],
        there: dict[tuple[str, Side], Value],
    ) -> Value:
        """Returns a value on `side`; moves it from the other side if needed, once per run."""
        value = given[name]
        if not isinstance(value, DeviceArray) or value.device is self._on[side]:
            return value
        if (name, side) not in there:
            self.transfers += 1
            self.moved += value.nbytes
            there[name, side] = value.numpy() if side == "host" else self._land(name, value)
        return there[name, side]

    def _land(self, name: str, value: DeviceArray) -> DeviceArray:
        """A value of the host in a buffer of the device that is kept for it."""
        device = self._on["device"]
        if name not in self._landing:
            self._landing[name] = DeviceArray(device.alloc(value.nbytes), value.shape, value.dtype)
        landed = self._landing[name]
        if value.nbytes:
            device.write(landed.buffer, value.view())
        return landed
