"""Buffers of a wgpu device: allocation by size class, host writes, reads through staging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends import drivers
from weft.core.errors import LimitError, OutOfMemoryError
from weft.program.device import Buffer

if TYPE_CHECKING:
    from weft.backends.wgpu.device import WgpuDevice

ALIGN = 256  # bytes; the largest offset alignment that WebGPU allows a device to ask for
POOL_BYTES = 128 << 20  # freed buffers kept for reuse
STAGING_BYTES = 16 << 20  # most that one write or read moves at once
UNSENT_BYTES = 4 << 20  # host writes that may lie in wgpu's staging memory


def size_class(nbytes: int) -> int:
    """The allocation for `nbytes`: 256-byte steps, coarser ones between 2 KiB and 1 MiB so that
    similar sizes share freed buffers (at most an eighth is lost)."""
    size = max(-(-nbytes // ALIGN), 1) * ALIGN
    if not 2048 < size <= 1 << 20:
        return size
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


class WgpuBuffer(Buffer):
    """`raw` is the wgpu buffer, `size` its bytes (a size class, at least `nbytes`)."""

    def __init__(self, device: WgpuDevice, nbytes: int, raw: Any, size: int) -> None:
        self.device: WgpuDevice = device
        self.nbytes, self.raw, self.size = nbytes, raw, size

    def __del__(self) -> None:
        memory = getattr(self.device, "memory", None)
        if memory is not None:
            memory.give_back(self.raw, self.size)


class WgpuMemory:
    """The allocator of one device."""

    def __init__(self, device: WgpuDevice) -> None:
        self.device = device
        self.free: dict[int, list[Any]] = {}
        self.pooled = 0  # bytes in `free`
        self.limit = POOL_BYTES  # kept here: buffers also go while the interpreter shuts down
        self.allocated = 0  # bytes in use or pooled
        self.unsent = 0  # bytes written since the queue was last waited for
        self.host_bytes = drivers.host_memory() or 1 << 62
        self.staging: dict[int, Any] = {}

    def alloc(self, nbytes: int) -> WgpuBuffer:
        """A buffer. LimitError beyond the device's limit, OutOfMemoryError when it refuses."""
        device, most = self.device, self.device.caps.max_buffer_bytes
        if nbytes < 0 or nbytes > most:
            raise LimitError(
                f"{device.info.id}: a buffer of {nbytes} bytes was asked for; "
                f"the device holds at most {most} in one buffer"
            )
        size = min(size_class(nbytes), most)
        kept = self.free.get(size)
        while kept:
            self.pooled -= size
            raw = kept.pop()
            if raw._internal is not None:  # the garbage collector may have released one of a cycle
                return WgpuBuffer(device, nbytes, raw, size)
            self.allocated -= size
        return WgpuBuffer(device, nbytes, self._create(size), size)

    def _create(self, size: int) -> Any:
        """A new wgpu buffer; a device that is out of memory gets the pooled ones back first."""
        device, flags = self.device, self.device.wgpu.BufferUsage
        if device.info.software and self.allocated + size > self.host_bytes:
            # A software device hands out host memory that only fails when it is touched.
            raise OutOfMemoryError(
                f"{device.info.id}: {size} bytes were asked for, {self.allocated} are in use; "
                f"this machine has {self.host_bytes}"
            )
        usage = flags.STORAGE | flags.COPY_SRC | flags.COPY_DST
        try:
            with device.guarded(f"allocating {size} bytes"):
                raw = device.raw.create_buffer(size=size, usage=usage)
        except OutOfMemoryError:
            if not self.pooled:
                raise
            self.trim()
            return self._create(size)
        self.allocated += size
        return raw

    def give_back(self, raw: Any, size: int) -> None:
        """Keeps a freed buffer for reuse, or lets it go when enough are kept."""
        if self.pooled + size <= self.limit:
            self.pooled += size
            self.free.setdefault(size, []).append(raw)
        else:
            self.allocated -= size

    def trim(self) -> None:
        """Lets the pooled buffers go."""
        self.allocated -= self.pooled
        self.pooled = 0
        self.free.clear()
        self.flush()

    # -- host copies ----------------------------------------------------------------------------

    def write(self, buffer: WgpuBuffer, raw: np.ndarray, offset: int) -> None:
        """Bytes into a buffer. WebGPU moves whole words: a partial word at either end is read
        first, so that its other bytes stay."""
        head = offset % 4
        tail = -(offset + raw.size) % 4
        tail_keep = tail > 0 and offset + raw.size != buffer.nbytes  # padding is nobody's
        if head or tail:
            whole = np.zeros(head + raw.size + tail, np.uint8)
            start = offset - head
            if head:
                whole[:4] = self.read(buffer, start, 4)
            if tail_keep:
                whole[-4:] = self.read(buffer, start + whole.size - 4, 4)
            whole[head : head + raw.size] = raw
            raw, offset = whole, start
        queue = self.device.raw.queue
        for at in range(0, raw.size, STAGING_BYTES):
            piece = raw[at : at + STAGING_BYTES]
            queue.write_buffer(buffer.raw, offset + at, piece)
            self.unsent += piece.size
            if self.unsent >= UNSENT_BYTES:
                self.flush()

    def flush(self) -> None:
        """Waits for the queue, host writes included: wgpu keeps a copy of each until then."""
        if self.unsent:
            self.device.raw.queue.submit([])
            self.unsent = 0
        self.device.wait()

    def read(self, buffer: WgpuBuffer, offset: int, nbytes: int) -> np.ndarray:
        """Bytes out of a buffer, after everything submitted before."""
        out = np.empty(nbytes, np.uint8)
        for at in range(0, nbytes, STAGING_BYTES):
            size = min(STAGING_BYTES, nbytes - at)
            out[at : at + size] = self._read(buffer, offset + at, size)
        return out

    def _read(self, buffer: WgpuBuffer, offset: int, nbytes: int) -> np.ndarray:
        device, head = self.device, offset % 4
        words = -(-(head + nbytes) // 4) * 4
        size = size_class(words)
        stage = self.staging.pop(size, None)
        if stage is None:
            flags = device.wgpu.BufferUsage
            stage = device.raw.create_buffer(size=size, usage=flags.COPY_DST | flags.MAP_READ)
        encoder = device.raw.create_command_encoder()
        encoder.copy_buffer_to_buffer(buffer.raw, offset - head, stage, 0, words)
        device.raw.queue.submit([encoder.finish()])
        stage.map_async("READ_NOSYNC", 0, size).sync_wait()
        mapped = stage.read_mapped(0, words, copy=False)
        data = np.frombuffer(mapped, np.uint8)[head : head + nbytes].copy()
        stage.unmap()
        if size <= 1 << 20:
            self.staging[size] = stage
        return data
