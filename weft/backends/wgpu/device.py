"""WgpuDevice: runs Programs through wgpu on Vulkan, Metal, DX12 or its preferred API."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.backends import wgsl
from weft.backends.wgpu import adapters, faults
from weft.backends.wgpu.bound import WgpuBound
from weft.backends.wgpu.memory import WgpuBuffer, WgpuMemory
from weft.core.dtypes import DType
from weft.core.errors import CompileError, DeviceError
from weft.host.forks import lock_of
from weft.kernel.ir import Kernel
from weft.program.device import Bound, Buffer, Device
from weft.program.program import Program

_KINDS = {None: "uniform", True: "storage", False: "read-only-storage"}
KEPT = 256  # pipelines kept after their last Program; each takes at least 0.3 MB of lavapipe


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A compiled kernel: its bindings, their layout object and the pipeline."""

    layout: wgsl.BindingLayout
    group_layout: Any
    raw: Any


_devices: weakref.WeakSet[WgpuDevice] = weakref.WeakSet()


def _after_fork() -> None:
    """The driver's threads are not in the child: it only says so, and touches nothing of theirs."""
    for device in list(_devices):
        device._lost = adapters.FORKED
        device.memory.limit = 1 << 62  # freed memory stays here
    if adapters.opened:  # the deletion of wgpu's objects waits for the driver's threads
        base = getattr(sys.modules.get("wgpu._classes"), "GPUObjectBase", None)
        if base is not None:
            base.__del__ = lambda self: None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class WgpuDevice(Device):
    """Adapter number `index` of `kind` ("vulkan", "metal", "dx12", "webgpu").

    `limits` overrides fields of Caps downward, for tests of small devices. Raises DeviceError
    when there is no such adapter, saying what to install.
    """

    def __init__(self, kind: str = "webgpu", index: int = 0, **limits: Any) -> None:
        self.kind, self.wgpu = kind, adapters.library()
        self._trap, self._lost = faults.trap(), ""
        self._lock = lock_of(self)
        _devices.add(self)
        adapter = adapters.pick(kind, index)
        self.info = adapters.info(kind, index, adapter)
        asked = adapters.features(adapter)
        with self.guarded("opening"):
            self.raw = adapter.request_device_sync(
                label="weft", required_features=asked, required_limits=dict(adapter.limits)
            )
        self._trap.take()  # messages of drivers during the search are not about this device
        caps = adapters.caps_of(kind, self.raw.limits, asked, self.info.software)
        self.caps = replace(caps, **{"max_turns": adapters.max_turns(adapter), **limits})
        self.offset_alignment = int(self.raw.limits["min-storage-buffer-offset-alignment"])
        self.native = adapters.native()
        self.memory = WgpuMemory(self)
        self._group_layouts: dict[tuple[bool | None, ...], tuple[Any, Any]] = {}
        # By text, least recently used first: group layout, pipeline.
        self._compiled: OrderedDict[str, tuple[Any, Any]] = OrderedDict()

    # -- errors ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """A block whose wgpu errors come out as weft's; a lost device is remembered."""
        try:
            with faults.guarded(self.wgpu, self.info.id, doing):
                yield
        except DeviceError as error:
            if "device is lost" in str(error):
                self._lost = self._lost or "lost while " + doing
            raise

    def check(self) -> None:
        """Raises DeviceError for errors that wgpu reported outside a call, and for good once the
        device is lost."""
        for message in self._trap.take():
            if "lost" in message.lower():
                self._lost = self._lost or faults.first_line(message)
            else:
                raise DeviceError(f"{self.info.id}: {faults.first_line(message)}")
        if self._lost == adapters.FORKED:
            raise DeviceError(f"{self.info.id}: {self._lost}")
        if self._lost:
            raise DeviceError(f"{self.info.id} is gone ({self._lost}); open it again")

    @property
    def lost(self) -> bool:
        """True if the device is gone for good; the registry then opens another in its place."""
        return bool(self._lost)

    # -- memory ---------------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> WgpuBuffer:
        with self._lock:
            self.check()
            return self.memory.alloc(nbytes)

    def write(self, buffer: Buffer, data: np.ndarray, offset: int = 0) -> None:
        own = self.own(buffer)
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        own.check(offset, raw.size)
        if raw.size:
            with self._lock, self.guarded(f"writing {raw.size} bytes"):
                self.check()
                self.memory.write(own, raw, offset)

    def read(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: DType, offset: int = 0
    ) -> np.ndarray:
        own = self.own(buffer)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        own.check(offset, size)
        if not size:
            return np.empty(shape, dtype.numpy)
        with self._lock, self.guarded(f"reading {size} bytes"):
            self.check()
            raw = self.memory.read(own, offset, size)
            self.check()
        return raw.view(dtype.numpy).reshape(shape)

    # -- kernels --------------------------------------------------------------------------------

    def load(self, kernels: Sequence[Kernel]) -> list[Pipeline]:
        return [self.pipeline(kernel) for kernel in kernels]

    def source(self, kernel: Kernel) -> str:
        """The WGSL of a kernel as this device compiles it, for people."""
        return wgsl.render(kernel, self.caps)

    def pipeline(self, kernel: Kernel, writable: frozenset[int] = frozenset()) -> Pipeline:
        """The compiled kernel (from memory when its text was compiled before); `writable` as in
        wgsl.plan. Raises CompileError with the compiler's words and the line that they mean."""
        plan = wgsl.plan(kernel, self.caps, writable)
        text = wgsl.render(kernel, self.caps, writable)
        with self._lock:
            if text not in self._compiled:
                self._compiled[text] = self._compile(kernel, plan, text)
            self._compiled.move_to_end(text)
            found = self._compiled[text]
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return Pipeline(plan, *found)  # kernels of one text may differ in their buffers' sizes

    def _compile(self, kernel: Kernel, plan: wgsl.BindingLayout, text: str) -> tuple[Any, Any]:
        self.check()
        try:
            group, layout = self._layouts(tuple(b.writable for b in plan.bindings))
            module = self.raw.create_shader_module(label=kernel.name, code=text)
            raw = self.raw.create_compute_pipeline(
                label=kernel.name,
                layout=layout,
                compute={"module": module, "entry_point": wgsl.ENTRY},
            )
        except self.wgpu.GPUError as error:
            self._trap.take()
            words = faults.refusal(str(error), kernel.name, text)
            raise CompileError(f"{self.info.id}: {words}") from error
        return group, raw

    def _layouts(self, access: tuple[bool | None, ...]) -> tuple[Any, Any]:
        if access not in self._group_layouts:
            entries = [
                {
                    "binding": n,
                    "visibility": self.wgpu.ShaderStage.COMPUTE,
                    "buffer": {"type": _KINDS[writes]},
                }
                for n, writes in enumerate(access)
            ]
            group = self.raw.create_bind_group_layout(entries=entries)
            pipeline = self.raw.create_pipeline_layout(bind_group_layouts=[group])
            self._group_layouts[access] = group, pipeline
        return self._group_layouts[access]

    # -- Programs -------------------------------------------------------------------------------

    def bind(self, program: Program, buffers: Sequence[Buffer]) -> WgpuBound:
        own = self.bindable(program, buffers)
        with self._lock, self.guarded(f"binding {program.name}"):
            self.check()
            return WgpuBound(self, program, own)

    def submit(self, bound: Bound, scalars: Sequence[int]) -> None:
        assert isinstance(bound, WgpuBound)
        with self._lock:
            self.check()
            with self.guarded(f"running {bound.program.name}"):
                bound.run(scalars)

    def wait(self) -> None:
        """Blocks until the queue is empty."""
        self.raw._poll_wait()

    def sync(self) -> None:
        with self._lock, self.guarded("waiting"):
            self.memory.flush()
            self.check()

    def close(self) -> None:
        """Gives the device back; every later call raises DeviceError."""
        with self._lock, contextlib.suppress(Exception):
            self._lost = "closed"
            self.raw.destroy()
