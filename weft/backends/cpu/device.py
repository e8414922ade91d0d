"""CpuDevice: buffers are host memory, a Program is a table that native code walks."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.backends.cpu import direct, host
from weft.backends.cpu.loader import Loader
from weft.backends.cpu.memory import BlockPool, CpuBuffer
from weft.backends.cpu.table import ProgramTable
from weft.backends.cpu.threads import Workers
from weft.core.dtypes import DEVICE, DType
from weft.core.errors import DeviceError
from weft.host import memory
from weft.host.cache import DiskCache
from weft.host.files import default_directory
from weft.host.forks import lock_of
from weft.kernel.ir import Kernel
from weft.program.device import Bound, Buffer, Device, DeviceInfo
from weft.program.program import Dispatch, Program
from weft.program.values import INT32

_TRIALS = 3  # runs in which a small Program may prove short
_SMALL_BYTES, _SMALL_FLOPS = 1 << 20, 2 << 20  # larger Programs are not worth a trial
_PART = 0.01  # seconds of a kernel between two moments at which a run may pause
_TRIES = 16  # the share of a kernel's groups that is played first there


class CpuBound(Bound):
    """A Program as a table of steps over concrete memory."""

    def __init__(self, device: CpuDevice, program: Program, buffers: Sequence[CpuBuffer]) -> None:
        self.program = program
        self.device = device
        self._buffers = list(buffers)  # keeps the memory alive
        self._handles = device.load(program.kernels)  # their code stays while these are held
        self._table = ProgramTable(program, self._handles, device.functions)
        for i, buffer in enumerate(buffers):
            self._table.check(i, buffer.nbytes, buffer.writable)
            self._table.point(i, buffer.address)
        self._trials = _TRIALS if self._small() else 0
        self._alone = False  # true if runs are so short that one thread is fastest
        self._direct: list[ProgramTable] = []  # the tables of functions from `direct`

    def _small(self) -> bool:
        """True if a run may turn out to be that short."""
        p = self.program
        kernels = [p.kernels[step.kernel] for step in p.steps if isinstance(step, Dispatch)]
        return (
            not p.scalars
            and sum(b.nbytes for b in p.buffers) <= _SMALL_BYTES
            and sum(k.flops for k in kernels) <= _SMALL_FLOPS
        )

    def rebind(self, index: int, buffer: Buffer) -> None:
        """Use `buffer` for Program buffer `index` from the next run on. Raises DeviceError when
        it is too small, of another device, or read-only though the Program writes it."""
        checked = self.device.own(buffer)
        self._table.check(index, checked.nbytes, checked.writable)
        self._buffers[index] = checked
        for table in (self._table, *self._direct):
            table.point(index, checked.address)

    def run(self, scalars: Sequence[int]) -> None:
        table, workers = self._table, self.device.workers
        table.set_scalars(scalars)
        alone = self._alone or self._trials > 0
        workers.run(table.address, table.steps, table.scalars_address, alone)
        # the first run may be slow, as memory and code are touched for the first time
        if self._trials:
            self._trials -= 1
            if table.ticks <= workers.alone_ticks:
                self._alone, self._trials = True, 0

    def run_pausing(self, scalars: Sequence[int], pause: Callable[[], None]) -> None:
        """Plays the steps and calls `pause` after each, and within those that take long; other
        Programs may run in it."""
        self._table.set_scalars(scalars)
        for step in range(self._table.steps):
            self._play_parts(step, pause)

    def _play_parts(self, step: int, pause: Callable[[], None]) -> None:
        """Plays a step in parts that take about _PART seconds. A first one of few groups shows how
        long a group takes: it may depend on the scalars, so that earlier runs say little."""
        table, workers = self._table, self.device.workers
        groups, first = table.groups(step), 0
        if groups > INT32[1]:  # an entry's `first` ends there
            size = groups
        else:
            size = max(groups // _TRIES, workers.threads)
        while first < groups:
            size = min(size, groups - first)
            begun = time.perf_counter()
            with table.part(step, first, size) as address:
                workers.run(address, 1, table.scalars_address)
            first += size
            size = max(int(size * _PART / max(time.perf_counter() - begun, 1e-6)), 1)
            pause()

    def direct(
        self, inputs: Sequence[int], outputs: Sequence[int], holder: type | None = None
    ) -> Callable[..., int] | None:
        """See Bound: for a Program without scalars of which it is known whether it is small."""
        if self._trials or self.program.scalars:
            return None
        if not all(self._table.fits(i, i in outputs) for i in (*inputs, *outputs)):
            return None
        table = ProgramTable(self.program, self._handles, self.device.functions)
        for i, buffer in enumerate(self._buffers):
            table.point(i, buffer.address)
        specs = [(i, self.program.buffers[i]) for i in (*outputs, *inputs)]
        operands = [(i, spec.shape, spec.dtype.numpy) for i, spec in specs]
        made = direct.caller(
            table, self.device.functions, operands, self.device.workers, self._alone, holder, self
        )
        if made is not None:
            self._direct.append(table)
        return made


class CpuDevice(Device):
    """The host's CPU on `threads` threads (default: all this process may use; WEFT_NUM_THREADS
    limits it). `cache` is the directory for compiled code (default: see backends.cache).
    `target` compiles for a lesser CPU than the host (tests of what other machines would run).

    Raises DeviceError when llvmlite is missing.
    """

    kind = "cpu"
    synchronous = True
    is_host = pauses = True

    def __init__(
        self,
        threads: int | None = None,
        cache: Path | str | None = None,
        target: host.Host | None = None,
    ) -> None:
        directory = Path(cache) if cache is not None else default_directory()
        self.threads = host.thread_count(threads)
        self._cache = DiskCache(directory)
        self.host = target or host.detect(self._cache)
        name = host.cpu_name() or self.host.cpu
        self.caps = dataclasses.replace(host.caps_of(self.host, self.threads), model=name)
        self.info = DeviceInfo(
            kind="cpu",
            index=0,
            name=name,
            available=True,
            driver=f"llvmlite {self.host.version}, target {self.host.cpu}",
            memory=memory.total(),
            dtypes=tuple(d.name for d in DEVICE),
            extra={"threads": self.threads, "lanes": self.caps.lanes},
        )
        self.loader = Loader(self.host, self._cache, self.threads)
        self._pool = BlockPool()
        self._lock = lock_of(self)
        self._functions: Mapping[str, int] = {}
        self._workers: Workers | None = None

    # -- native code

    @property
    def functions(self) -> Mapping[str, int]:
        """The addresses of the runtime's functions, compiled on first use."""
        if not self._functions:
            self._functions = self.loader.runtime()
        return self._functions

    @property
    def workers(self) -> Workers:
        with self._lock:
            if self._workers is None:
                self._workers = Workers.shared(self.functions, self.threads)
            return self._workers

    def load(self, kernels: Sequence[Kernel]) -> Sequence[int]:
        """Returns the native address of each kernel, compiled now or read from the cache. It loads
        the runtime too, so a cache filled for a Program has everything to run it."""
        return self.loader.kernels(kernels, self.caps)

    def prepare(self, kernel: Kernel) -> None:
        """Starts compiling a kernel on other threads."""
        self.loader.begin(kernel, self.caps)

    def source(self, kernel: Kernel) -> str:
        """The LLVM IR of a kernel as this device compiles it, for people."""
        return self.loader.render(kernel, self.caps)

    # -- memory

    def fitting(self, program: Program, index: int, buffer: Buffer) -> CpuBuffer:
        """The buffer, if it is this device's. How much of it the steps reach, the table knows."""
        own: CpuBuffer = self.own(buffer)
        return own

    def alloc(self, nbytes: int) -> CpuBuffer:
        """Host memory, 64-byte aligned, content undefined. Raises OutOfMemoryError."""
        if nbytes < 0:
            raise DeviceError(f"cpu: a buffer of {nbytes} bytes was asked for")
        block = self._pool.take(max(nbytes, 1))
        return CpuBuffer(self, block, block.ctypes.data, nbytes, self._pool)

    def wrap(self, array: np.ndarray) -> CpuBuffer:
        """A C-contiguous array's own memory as a buffer, without a copy: writes to one are seen
        in the other, and the array is kept alive. A read-only array gives a buffer that Programs
        may only read. Raises DeviceError for other layouts or for
        elements that are not aligned to their size."""
        if not array.flags.c_contiguous or not array.flags.aligned:
            raise DeviceError(
                f"cpu: only C-contiguous, aligned arrays can be wrapped (shape {array.shape}, "
                f"strides {array.strides}); use np.ascontiguousarray"
            )
        return CpuBuffer(self, array, array.ctypes.data, array.nbytes, None)

    def view(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: DType, offset: int = 0
    ) -> np.ndarray:
        """The buffer's memory as an array, without a copy; the array keeps the buffer alive."""
        count = math.prod(shape) * dtype.itemsize
        window = self._window(self.own(buffer), offset, count)
        return window.view(dtype.numpy).reshape(shape)

    def write(self, buffer: Buffer, data: np.ndarray, offset: int = 0) -> None:
        """Copies a C-contiguous array's bytes into the buffer from byte `offset`."""
        source = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        window = self._window(self.own(buffer), offset, source.nbytes)
        if not window.flags.writeable:
            raise DeviceError("cpu: this buffer is a wrapped read-only array; alloc one to write")
        window[:] = source

    def read(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: DType, offset: int = 0
    ) -> np.ndarray:
        """A copy of the content."""
        return self.view(buffer, shape, dtype, offset).copy()

    def _window(self, buffer: CpuBuffer, offset: int, nbytes: int) -> np.ndarray:
        buffer.check(offset, nbytes)
        return np.asarray(buffer)[offset : offset + nbytes]

    def free_memory(self) -> int:
        return memory.available()

    # -- running

    def bind(self, program: Program, buffers: Sequence[Buffer]) -> CpuBound:
        """Compiles the Program's kernels and resolves its steps. Raises CompileError, or
        DeviceError when a buffer is missing, too small or must be writable and is not."""
        return CpuBound(self, program, self.bindable(program, buffers))

    def submit(self, bound: Bound, scalars: Sequence[int]) -> None:
        """Plays the steps; they are done when this returns."""
        if not isinstance(bound, CpuBound) or bound.device is not self:
            raise DeviceError("cpu: this Program was bound on another device; bind it here")
        bound.run(scalars)

    def submit_pausing(
        self, bound: Bound, scalars: Sequence[int], pause: Callable[[], None]
    ) -> None:
        """Does `submit`, and calls `pause` between the steps."""
        if not isinstance(bound, CpuBound) or bound.device is not self:
            return self.submit(bound, scalars)
        bound.run_pausing(scalars, pause)

    def sync(self) -> None:
        """Nothing is ever in flight: submit returns when the work is done."""
