"""Weights in the order that a Program reads, stored in weft's cache and mapped from there.

A GGUF file's blocks are taken apart for weft's products, and rows, of floats too, are interleaved
for a CPU's lanes. A process does that before its first token, unless an earlier one has stored the
result: then the system maps what it holds already, and no memory is filled anew. The key is the
system's marks of the file (see content.py) and the source that makes the order, so a changed file,
or another weft, has its weights made again. The result is written in the background, after the
first step.

Where memory is too short for a copy in that order, the weights are written one by one before the
first step. The system then reads what it has room for.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.notices import say
from weft.core.versions import stamp
from weft.host import memory
from weft.host.mapped import MappedFile, mapped_files, release
from weft.models.arch.weights import Place, Weights
from weft.models.weights.content import FileIdentity, marks_of, unchanged
from weft.models.weights.kept_tensors import PACKED

if TYPE_CHECKING:
    from weft.program.device import Buffer, Device
    from weft.program.program import BufferSpec, Program

LEAST = 16 << 20  # bytes of weights that are worth a file
MOST = PACKED.limit // 4
SPARE = 128 << 20  # bytes that intermediate values and the compiler may take


class KeptOrder(NamedTuple):
    """The weight buffers of a Program that files determine; `short` says that memory is too short
    to make them there."""

    specs: Mapping[str, BufferSpec]
    note: Mapping[str, str]
    key: str
    short: bool

    @classmethod
    def of(
        cls,
        program: Program,
        weights: Weights,
        placed: Mapping[str, Buffer],
        device: Device,
        beside: int = 0,
    ) -> KeptOrder | None:
        """Returns those that are not `placed` yet; None where they are not worth a file, the
        device does not read a file in place, or a change of the file might not show. The states of
        the Program need `beside` more bytes."""
        if not device.is_host or not hasattr(device, "wrap"):
            return None
        copied = _copied(program, weights, placed)
        nbytes = sum(spec.nbytes for spec, _ in copied.values())
        short = _short(nbytes, beside)
        if nbytes < LEAST or (nbytes > MOST and not short):
            return None
        files = {id(place.file): place.file for _, place in copied.values()}
        if not all(FileIdentity.of(f.status).settled for f in files.values()):
            return None
        recipes = {name: program.recipes.get(name) for name in copied}
        lanes = max((r.lanes for r in recipes.values() if r), default=1)
        shapes = [
            [name, spec.dtype.name, spec.shape, recipes[name], place.start]
            for name, (spec, place) in sorted(copied.items())
        ]
        paths, of = [str(f.path.resolve()) for f in files.values()], marks_of(files.values())
        note = {"source": min(paths), "scheme": f"lanes{lanes}", "of": of}
        specs = {name: spec for name, (spec, _) in copied.items()}
        return cls(specs, note, json.dumps([stamp("packed order"), of, shapes]), short)

    def found(self, device: Device) -> tuple[dict[str, Buffer], list[MappedFile]]:
        """Returns the stored buffers and the mapped file that holds them; neither without one."""
        kept = PACKED.load(self.key)
        if kept is None or kept.keys() != self.specs.keys():
            return {}, []
        for name, spec in self.specs.items():
            if kept[name].shape != spec.shape or as_dtype(kept[name].dtype) is not spec.dtype:
                return {}, []
        wrap = device.wrap  # type: ignore[attr-defined]
        return {name: wrap(value) for name, value in kept.items()}, mapped_files(kept.values())

    def write(self, program: Program, weights: Weights) -> None:
        """Stores the weights before there are any buffers, one at a time."""
        nbytes = sum(spec.nbytes for spec in self.specs.values())
        say(
            f"{program.name}: its weights take {nbytes:,} bytes and {memory.available():,} are "
            "free; weft keeps them in a file in its cache and reads what it needs, which is slower"
        )
        made = _Arranged(program, weights, self.specs)
        PACKED.save(self.key, made, self.note, nbytes, valid=lambda: unchanged(self.note["of"]))

    def keep(self, buffers: Mapping[str, Buffer]) -> None:
        """Stores the buffers in the background. A process that ends waits for the writer, unless it
        is interrupted again."""
        held = {name: buffers[name] for name in self.specs}
        writer = threading.Thread(target=self._save, args=(held,), name="weft-keep", daemon=True)
        writer.start()
        atexit.register(_wait, writer)

    def _save(self, buffers: Mapping[str, Buffer]) -> None:
        from weft.program.array import DeviceArray

        with suppress(OSError, AttributeError):  # one thread's priority, where the system has it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        arrays: dict[str, np.ndarray] = {
            name: DeviceArray(buffers[name], b.shape, b.dtype).view()
            for name, b in _aligned(self.specs).items()
        }
        PACKED.save(self.key, arrays, self.note, valid=lambda: unchanged(self.note["of"]))


class _Arranged(Mapping[str, np.ndarray]):
    """The content of weight buffers, each made when it is looked up, from weights that are then
    let go."""

    def __init__(self, program: Program, weights: Weights, specs: Mapping[str, BufferSpec]) -> None:
        self._program, self._weights, self._specs = program, weights, _aligned(specs)

    def __getitem__(self, name: str) -> np.ndarray:
        from weft.program.weights import arranged

        spec, recipe = self._specs[name], self._program.recipes.get(name)
        value = self._weights.take(self._program.sources(name)[0])
        made = value if recipe is None else arranged(recipe, spec, value)
        release(value)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def _copied(
    program: Program, weights: Weights, placed: Mapping[str, Buffer]
) -> dict[str, tuple[BufferSpec, Place]]:
    """Returns the weight buffers that would be copies of what is in files, and the places there."""
    found = {}
    for b in program.buffers:
        if b.role != "weight" or b.name in placed or b.name in program.formulas:
            continue
        place, recipe = weights.place(program.sources(b.name)[0]), program.recipes.get(b.name)
        if place is not None and (place.start is None or (recipe and recipe.lanes > 1)):
            found[b.name] = b, place
    return found


def _short(nbytes: int, beside: int) -> bool:
    """Returns True if these bytes would leave too little memory for a model's other parts."""
    free = memory.available() if nbytes >= LEAST else 0
    return bool(free) and nbytes + beside + SPARE > free


def _aligned(specs: Mapping[str, BufferSpec]) -> dict[str, BufferSpec]:
    """Returns the buffers in an order in which most begin at multiples of 64 bytes."""
    return dict(sorted(specs.items(), key=lambda item: item[1].nbytes % 64))


def _wait(writer: threading.Thread) -> None:
    with suppress(KeyboardInterrupt):
        writer.join()
