"""A Program resolved on a wgpu device: pipelines and bind groups made once, one pass per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends import wgsl
from weft.backends.wgpu.memory import ALIGN, WgpuBuffer
from weft.core.errors import DeviceError
from weft.kernel import ir
from weft.kernel.grid import groups
from weft.program.device import Bound, Buffer
from weft.program.program import BufferRef, Copy, Dispatch, Fill, Program

if TYPE_CHECKING:
    from weft.backends.wgpu.device import Pipeline, WgpuDevice

KEPT_GROUPS = 4  # bind groups kept per dispatch, for buffers that alternate
FILL_BYTES = 1 << 16


class BoundDispatch:
    """One Dispatch: its pipeline, bind group and group counts."""

    def __init__(self, number: int, kernel: ir.Kernel, args: tuple[BufferRef, ...]) -> None:
        self.number, self.kernel, self.args = number, kernel, args
        # By the identity of the wgpu buffers, which are kept alive so that none is recycled.
        self.groups: dict[tuple[int, ...], tuple[Pipeline, Any, list[Any]]] = {}
        self.now: tuple[Any, Any] | None = None  # native pipeline and bind group
        self.fixed = all(isinstance(g, ir.Const) for g in kernel.grid)
        self.fold = False  # see wgsl.Layout
        self.grid: tuple[int, int, int] | None = None


class WgpuBound(Bound):
    """See Bound. Bind groups are rebuilt only for dispatches that use a rebound buffer."""

    def __init__(self, device: WgpuDevice, program: Program, buffers: list[WgpuBuffer]) -> None:
        self.device, self.program, self.buffers = device, program, buffers
        usage = device.wgpu.BufferUsage.UNIFORM | device.wgpu.BufferUsage.COPY_DST
        size = max(-(-len(program.scalars) // 4), 1) * 16
        self.scalars = device.raw.create_buffer(size=size, usage=usage)
        self._values: list[int] | None = None
        self._scratch: WgpuBuffer | None = None  # copies within one buffer go through it
        self._patterns: dict[int, WgpuBuffer] = {}
        self._pipelines: dict[tuple[int, frozenset[int]], Pipeline] = {}
        self.items: list[list[BoundDispatch] | Copy | Fill] = []
        self._users: dict[int, list[BoundDispatch]] = {}
        for step in program.steps:
            self._add(step)
        self._flat: dict[int, list[tuple[Any, ...]]] = {}
        for item in self.items:
            for call in item if isinstance(item, list) else ():
                self._resolve(call)

    def _add(self, step: Dispatch | Copy | Fill) -> None:
        if not isinstance(step, Dispatch):
            self._prepare(step)
            self.items.append(step)
            return
        call = BoundDispatch(step.kernel, self.program.kernels[step.kernel], step.args)
        if not self.items or not isinstance(self.items[-1], list):
            self.items.append([])
        calls = self.items[-1]
        assert isinstance(calls, list)
        calls.append(call)
        for index in {ref.buffer for ref in step.args}:
            self._users.setdefault(index, []).append(call)

    def rebind(self, index: int, buffer: Buffer) -> None:
        self.buffers[index] = self.device.fitting(self.program, index, buffer)
        for call in self._users.get(index, ()):
            call.now = None
        self._flat.clear()

    # -- dispatches -----------------------------------------------------------------------------

    def _resolve(self, call: BoundDispatch) -> None:
        """Finds or makes the pipeline and bind group for the buffers bound now."""
        raws = [self.buffers[ref.buffer].raw for ref in call.args]
        key = tuple(map(id, raws))
        found = call.groups.get(key)
        if found is None:
            if len(call.groups) >= KEPT_GROUPS:
                call.groups.pop(next(iter(call.groups)))
            found = call.groups[key] = (*self._group(call, raws), raws)
        pipeline, group, _ = found
        call.now = (pipeline.raw._internal, group._internal)
        call.fold = pipeline.layout.fold

    def _group(self, call: BoundDispatch, raws: list[Any]) -> tuple[Pipeline, Any]:
        access = [b.access for b in call.kernel.buffers]
        written = {id(raw) for raw, a in zip(raws, access, strict=True) if a != "r"}
        shared = frozenset(
            n for n, raw in enumerate(raws) if access[n] == "r" and id(raw) in written
        )
        pipeline = self._pipelines.get((call.number, shared))
        if pipeline is None:
            pipeline = self.device.pipeline(call.kernel, shared)
            self._pipelines[call.number, shared] = pipeline
        entries = []
        for number, b in enumerate(pipeline.layout.bindings):
            where = self._scalar_range() if b.buffer < 0 else self._range(call, b)
            entries.append({"binding": number, "resource": where})
        group = self.device.raw.create_bind_group(layout=pipeline.group_layout, entries=entries)
        return pipeline, group

    def _scalar_range(self) -> dict[str, Any]:
        return {"buffer": self.scalars, "offset": 0, "size": self.scalars.size}

    def _range(self, call: BoundDispatch, b: wgsl.Binding) -> dict[str, Any]:
        ref = call.args[b.buffer]
        buffer, offset = self.buffers[ref.buffer], ref.offset + b.offset
        if offset % self.device.offset_alignment:
            raise DeviceError(
                f"{self.program.name}, kernel {call.kernel.name}: byte offset {offset} is not a "
                f"multiple of {self.device.offset_alignment}, as {self.device.info.id} needs"
            )
        size = min(b.nbytes, buffer.size - offset)
        return {"buffer": buffer.raw, "offset": offset, "size": size}

    def _grid(self, call: BoundDispatch, scalars: Sequence[int]) -> tuple[int, int, int]:
        x, y, z = groups(call.kernel, scalars)
        if not x * y * z:
            return 0, 0, 0
        return wgsl.fold_grid((x, y, z), call.fold, self.device.caps, call.kernel.name)

    def _flatten(self, calls: list[BoundDispatch], scalars: Sequence[int]) -> list[tuple[Any, ...]]:
        flat = []
        for call in calls:
            if call.now is None:
                self._resolve(call)
            if call.grid is None or not call.fixed:
                call.grid = self._grid(call, scalars)
            if call.grid[0]:
                assert call.now is not None
                flat.append((*call.now, *call.grid))
        return flat

    # -- running --------------------------------------------------------------------------------

    def run(self, scalars: Sequence[int]) -> None:
        """Records and submits every step. Called with the device's lock held."""
        values = [int(s) for s in scalars]
        queue = self.device.raw.queue
        if values != self._values:
            if len(values) < len(self.program.scalars):
                raise DeviceError(
                    f"{self.program.name} takes {len(self.program.scalars)} scalars, "
                    f"got {len(values)}"
                )
            if values:
                data = np.asarray(values[: self.scalars.size // 4], np.int32)
                queue.write_buffer(self.scalars, 0, data)
            self._values = values
            self._flat.clear()
        encoder = self.device.raw.create_command_encoder()
        for n, item in enumerate(self.items):
            if isinstance(item, list):
                flat = self._flat.get(n)
                if flat is None:
                    flat = self._flat[n] = self._flatten(item, values)
                if flat:
                    self._pass(encoder, flat)
            elif isinstance(item, Copy):
                self._copy(encoder, item.src, item.dst)
            else:
                self._fill(encoder, item)
        queue.submit([encoder.finish()])

    def _pass(self, encoder: Any, flat: list[tuple[Any, ...]]) -> None:
        """One compute pass. The native calls are made directly: wgpu-py's own methods spend most
        of their time checking, and an error inside a pass surfaces at finish() either way."""
        lib, null = self.device.native
        compute = encoder.begin_compute_pass()
        inner = compute._internal
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_group = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        last = None
        for pipeline, group, x, y, z in flat:
            if pipeline != last:
                set_pipeline(inner, pipeline)
                last = pipeline
            set_group(inner, 0, group, 0, null)
            dispatch(inner, x, y, z)
        compute.end()

    # -- copies and fills -----------------------------------------------------------------------

    def _prepare(self, step: Copy | Fill) -> None:
        """Makes the additional buffers of a copy or fill, once."""
        refs = (step.src, step.dst) if isinstance(step, Copy) else (step.dst,)
        for ref in refs:
            spec = self.program.buffers[ref.buffer]
            ends = ref.offset + ref.nbytes
            if ref.offset % 4 or (ref.nbytes % 4 and ends != spec.nbytes and spec.role != "arena"):
                raise DeviceError(
                    f"{self.program.name}: bytes {ref.offset}..{ends} of {spec.name!r}: "
                    f"{self.device.info.id} copies and fills whole words of 4 bytes"
                )
        memory = self.device.memory
        if isinstance(step, Fill):
            if step.byte and step.byte not in self._patterns:
                pattern = self._patterns[step.byte] = memory.alloc(FILL_BYTES)
                memory.write(pattern, np.full(FILL_BYTES, step.byte, np.uint8), 0)
        elif self._scratch is None or self._scratch.nbytes < step.src.nbytes:
            same = self.buffers[step.src.buffer].raw is self.buffers[step.dst.buffer].raw
            if same:
                self._scratch = memory.alloc(-(-step.src.nbytes // ALIGN) * ALIGN)

    def _copy(self, encoder: Any, src: BufferRef, dst: BufferRef) -> None:
        a, b = self.buffers[src.buffer], self.buffers[dst.buffer]
        size = -(-src.nbytes // 4) * 4
        if not size:
            return
        if a.raw is not b.raw:
            encoder.copy_buffer_to_buffer(a.raw, src.offset, b.raw, dst.offset, size)
            return
        if self._scratch is None or self._scratch.nbytes < size:  # rebound to one buffer
            self._scratch = self.device.memory.alloc(size)
        between = self._scratch.raw  # WebGPU does not copy within a buffer
        encoder.copy_buffer_to_buffer(a.raw, src.offset, between, 0, size)
        encoder.copy_buffer_to_buffer(between, 0, b.raw, dst.offset, size)

    def _fill(self, encoder: Any, step: Fill) -> None:
        raw, start = self.buffers[step.dst.buffer].raw, step.dst.offset
        size = -(-step.dst.nbytes // 4) * 4
        if not size:
            return
        if not step.byte:
            encoder.clear_buffer(raw, start, size)
            return
        pattern = self._patterns[step.byte].raw
        for at in range(0, size, FILL_BYTES):
            piece = min(FILL_BYTES, size - at)
            encoder.copy_buffer_to_buffer(pattern, 0, raw, start + at, piece)
