"""Packed weights in the order that a Program reads, stored in weft's cache and mapped from there.

A GGUF file's blocks are taken apart for weft's products, and rows are interleaved for a CPU's
lanes. A process does that before its first token, unless an earlier one has stored the result. The
key is the system's marks of the file (see content.py) and the source that makes the order, so a
changed file, or another weft, has its weights made again. The result is written in the background,
after the first step.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.versions import stamp
from weft.host.mapped import MappedFile, mapped_files
from weft.models.arch.weights import Weights
from weft.models.weights.content import FileIdentity, marks_of, unchanged
from weft.models.weights.kept_tensors import PACKED

if TYPE_CHECKING:
    from weft.program.device import Buffer, Device
    from weft.program.program import BufferSpec, Program

LEAST = 16 << 20  # bytes of weights that are worth a file
MOST = PACKED.limit // 4


class KeptOrder(NamedTuple):
    """The weight buffers of a Program that packed files determine."""

    specs: Mapping[str, BufferSpec]
    note: Mapping[str, str]
    key: str

    @classmethod
    def of(
        cls, program: Program, weights: Weights, placed: Mapping[str, Buffer], device: Device
    ) -> KeptOrder | None:
        """Returns those that are not `placed` yet; None where they are not worth a file, the
        device does not read a file in place, or a change of the file might not show."""
        if not device.is_host or not hasattr(device, "wrap"):
            return None
        origins = weights.origins
        specs = {
            b.name: b for b in program.buffers
            if b.role == "weight" and b.name not in placed and b.name not in program.formulas
            and program.sources(b.name)[0] in origins
        }  # fmt: skip
        if not LEAST <= sum(b.nbytes for b in specs.values()) <= MOST:
            return None
        files = {id(f): f for f in (origins[program.sources(name)[0]] for name in specs)}
        if not all(FileIdentity.of(f.status).settled for f in files.values()):
            return None
        recipes = {name: program.recipes.get(name) for name in specs}
        lanes = max((r.lanes for r in recipes.values() if r), default=1)
        shapes = [[n, b.dtype.name, b.shape, recipes[n]] for n, b in sorted(specs.items())]
        paths, of = [str(f.path.resolve()) for f in files.values()], marks_of(files.values())
        note = {"source": min(paths), "scheme": f"lanes{lanes}", "of": of}
        return cls(specs, note, json.dumps([stamp("packed order"), of, shapes]))

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
            for name, b in sorted(self.specs.items(), key=lambda item: item[1].nbytes % 64)
        }
        PACKED.save(self.key, arrays, self.note, valid=lambda: unchanged(self.note["of"]))


def _wait(writer: threading.Thread) -> None:
    with suppress(KeyboardInterrupt):
        writer.join()
