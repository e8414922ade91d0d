"""The sessions of a compiled function on one device, and the buffers that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.backends import registry
from weft.core.errors import DeviceError
from weft.program.arena import Arena
from weft.program.array import DeviceArray
from weft.program.device import Device
from weft.program.parted import PartedSession
from weft.program.session import Session
from weft.program.values import program_array
from weft.tensor.core import Tensor
from weft.tensor.device import StateArray
from weft.tensor.entries import CompiledSignature
from weft.tensor.operands import content, readable, settle


class Binder:
    """Binds the Programs of the function `name` to `device`. They share one arena, the homes of
    states, and the buffers that weights were made into."""

    def __init__(self, device: Device, name: str) -> None:
        self.device, self._name = device, name
        self._arena = Arena(device)
        # buffer -> (what it was made of and when that was last written, the buffer)
        self._shared: dict[str, tuple[dict[str, tuple[Any, int]], Any]] = {}

    def held(self, captured: Mapping[str, Tensor]) -> int:
        """Bytes of the device that a Program over `captured` would find taken for it already."""
        values = [content(t) for t in captured.values()]
        there = [v.buffer for v in values if isinstance(v, DeviceArray) and v.device is self.device]
        there += [made for _, made in self._shared.values() if made.device is self.device]
        return self._arena.nbytes + sum({id(b): b.nbytes for b in there}.values())

    def bind(self, entry: CompiledSignature) -> None:
        """Makes the session of an entry, over what its tensors hold now. Raises DeviceError for a
        tensor on another device."""
        # If the code below raises, the next call must not run the old session.
        entry.session = None
        device, tensors, parts = self.device, entry.captured, entry.parted.parts
        host = device if all(p.side == "device" for p in parts) else registry.host()
        weights: dict[str, Any] = {}
        state: dict[str, Any] = {}
        for name, role, side in entry.parted.bound():
            home = host if side == "host" else device
            if name in entry.states:
                settle(tensors[name], home, name)
            value = entry.bound[name] = content(tensors[name])
            if not readable(value, home, device):
                raise DeviceError(
                    f"{self._name} runs on {home.info.id}, but tensor {name!r} that it reads "
                    f'is on {value.device.info.id}; move it with .to("{home.info.id}")'
                )
            if role == "state":
                state[name] = value
            else:
                array = isinstance(value, np.ndarray)
                weights[name] = program_array(value, f"tensor {name!r}") if array else value
        for buffer, (values, held) in self._shared.items():
            now = ((entry.bound.get(name), stamp) for name, stamp in values.items())
            if all(value is was and _version(value) == version for value, (was, version) in now):
                weights[buffer] = held
        if host is device and len(parts) == 1:
            entry.session = Session(parts[0].program, device, weights, state, self._arena)
        else:
            entry.session = PartedSession(entry.parted, device, host, weights, state, self._arena)
        homes = (tensors[name]._home for name in entry.states if name in tensors)
        entry.written = [home for home in homes if home is not None]
        for name, made in entry.session.weights.items():
            sources = {n: entry.bound[n] for n in entry.parted.sources(name)}
            self._shared[name] = {n: (v, _version(v)) for n, v in sources.items()}, made
        if entry.graph.meta.get("frozen"):
            read = [v for n, v in entry.bound.items() if n not in entry.states]
            entry.derived = [(v, v.version) for v in read if isinstance(v, StateArray)]


def _version(value: Any) -> int:
    """The number of writes to a state that other functions write too; 0 for other values."""
    return getattr(value, "version", 0)
