"""A Program resolved on a GPU: functions found and addresses checked once, then only launched.

The second run with the same grids and buffers is recorded, later ones replay the recording in one
call: kernels read the runtime scalars from device memory, so other values need no other recording.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends.gpu.blas import Product
from weft.backends.llvm import launch
from weft.core.errors import DeviceError
from weft.kernel import ir
from weft.program.device import OWN_KERNEL, Bound, Buffer
from weft.program.program import BufferRef, Copy, Dispatch, Fill, Library, Program, Step

if TYPE_CHECKING:
    from weft.backends.gpu.device import GpuBuffer, GpuDevice, LoadedKernel


KEPT = 4  # recordings kept, for buffers that alternate

Key = tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]  # grids, addresses


class GpuBound(Bound):
    """See Bound. The runtime scalars lie in device memory, written only when they change. Kernels
    of steps that the vendor's library does are not loaded."""

    def __init__(self, device: GpuDevice, program: Program, buffers: Sequence[Buffer]) -> None:
        self.device, self.program = device, program
        self.buffers: list[GpuBuffer] = device.bindable(program, buffers)
        self._products: dict[int, Product] = {}  # Library steps that the library does, by number
        self.products: dict[int, str] = {}
        self._offer()
        self.functions = self._load()
        self._check_alignment()
        self._values: tuple[int, ...] | None = None
        self._scalars = device.alloc(max(4 * len(program.scalars), launch.ALIGN))
        self._scratch: GpuBuffer | None = None  # for a copy whose two places overlap
        self._dispatched = [s.kernel for s in program.steps if isinstance(s, Dispatch)]
        constant = {
            number
            for number in self._dispatched
            if all(isinstance(g, ir.Const) for g in program.kernels[number].grid)
        }
        self._fixed = {number: self._grid(number, ()) for number in constant}  # grids by kernel
        self._free = set(self._dispatched) - constant  # kernels whose grids the scalars decide
        self._grids: tuple[tuple[int, int, int], ...] = ()  # the grid of each dispatch
        self._key: Key | None = None  # the current grids and buffers
        self._graphs: dict[Key, Any] = {}
        self._last: Key | None = None  # the grids and buffers of the last run
        forget = weakref.finalize(self, _forget, device, self._graphs)
        forget.atexit = False

    def _offer(self) -> None:
        """Asks the library for each Library step: now, since it may not be asked in a recording."""
        for number, step in enumerate(self.program.steps):
            if isinstance(step, Library):
                found = self.device.product(step.gemm, tuple(a.offset for a in step.args))
                if isinstance(found, Product):
                    self._products[number] = found
                    self.products[number] = found.library
                else:
                    self.products[number] = f"{OWN_KERNEL}: {found}"

    def _load(self) -> dict[int, LoadedKernel]:
        """The functions of the kernels that are run, by their numbers."""
        steps = enumerate(self.program.steps)
        run = {s.kernel for n, s in steps if isinstance(s, Dispatch) and n not in self._products}
        kernels = [self.program.kernels[number] for number in run]
        return dict(zip(run, self.device.load(kernels)))

    def rebind(self, index: int, buffer: Buffer) -> None:
        self.buffers[index] = self.device.fitting(self.program, index, buffer)
        self._key = None

    def _check_alignment(self) -> None:
        for step in self.program.steps:
            for ref in step.args if isinstance(step, Dispatch) else ():
                if ref.offset % launch.ALIGN:
                    raise DeviceError(
                        f"{self.program.name}: {step.label} starts at byte {ref.offset} of a "
                        f"buffer, which is not a multiple of {launch.ALIGN}"
                    )

    def _at(self, ref: BufferRef) -> int:
        return self.buffers[ref.buffer].address + ref.offset

    def run(self, scalars: Sequence[int]) -> None:
        """Asks the driver for every step. Called with the device's lock held."""
        self._set(tuple(int(s) for s in scalars))
        if self.device.checking or not self.device.replaying:
            self._play(self.device.checking)
            return
        key = self._key = self._key or (self._grids, tuple(b.address for b in self.buffers))
        graph = self._graphs.get(key)
        if graph is None and key == self._last and self._asks():
            graph = self._record(key)
        self._last = key
        if graph is None:
            self._play()
        else:
            self.device.driver.replay(graph)

    def _asks(self) -> bool:
        """True if there is any work: HIP may crash on an empty recording."""
        others = len(self.program.steps) - len(self._grids)
        return others > 0 or any(0 not in grid for grid in self._grids)

    def _record(self, key: Key) -> Any:
        """Records the work of the steps."""
        driver = self.device.driver
        if len(self._graphs) >= KEPT:
            driver.forget(self._graphs.pop(next(iter(self._graphs))))
        driver.record()
        try:
            self._play()
        except BaseException:
            with contextlib.suppress(DeviceError):
                driver.forget(driver.recorded())
            raise
        graph = self._graphs[key] = driver.recorded()
        return graph

    def _play(self, checked: bool = False) -> None:
        """Asks for every step; where `checked`, waits for each, so that its own errors show."""
        driver, dispatches = self.device.driver, iter(self._grids)
        for number, step in enumerate(self.program.steps):
            try:
                if isinstance(step, Dispatch):
                    self._launch(number, step, next(dispatches))
                elif isinstance(step, Copy):
                    self._copy(step)
                elif isinstance(step, Fill):
                    driver.fill(self._at(step.dst), step.byte, step.dst.nbytes)
                if checked:
                    driver.sync()
            except DeviceError as error:
                if driver.lost and not checked:
                    raise  # any earlier step may have caused it
                raise DeviceError(
                    f"{self.program.name}, step {number}, {self._named(step)}: {error}"
                ) from None

    def _named(self, step: Step) -> str:
        if not isinstance(step, Dispatch):
            return step.label or type(step).__name__.lower()
        kernel = self.program.kernels[step.kernel].name
        return f"{step.label} (kernel {kernel})" if step.label else f"kernel {kernel}"

    def _set(self, values: tuple[int, ...]) -> None:
        if values == self._values:
            return
        if len(values) < len(self.program.scalars):
            raise DeviceError(
                f"{self.program.name} takes {len(self.program.scalars)} scalars, got {len(values)}"
            )
        self._values = None
        grids = self._fixed | {number: self._grid(number, values) for number in self._free}
        found = tuple([grids[number] for number in self._dispatched])
        if found != self._grids:
            self._grids, self._key = found, None
        if self.program.scalars:
            count = len(self.program.scalars)
            self.device.write(self._scalars, np.array(values[:count], np.int32))
        self._values = values

    def _grid(self, number: int, values: tuple[int, ...]) -> tuple[int, int, int]:
        kernel = self.program.kernels[number]
        return launch.launch_grid(kernel, values, self.device.target.axis_threads)

    def _launch(self, number: int, step: Dispatch, grid: tuple[int, int, int]) -> None:
        if 0 in grid:
            return
        kernel, args = self.program.kernels[step.kernel], [*map(self._at, step.args)]
        product = self._products.get(number)
        if product is not None:
            product.run(args)
            return
        function, shared = self.functions[step.kernel]
        args.append(self._scalars.address)
        self.device.driver.launch(function, grid, kernel.threads, args, shared)

    def _copy(self, step: Copy) -> None:
        driver, n = self.device.driver, step.src.nbytes
        source, target = self._at(step.src), self._at(step.dst)
        if abs(source - target) >= n:
            driver.copy(target, source, n)
        elif source != target:
            # Sized for the largest grid, since recordings keep its address.
            if self._scratch is None:
                copies = [s.src.nbytes for s in self.program.steps if isinstance(s, Copy)]
                self._scratch = self.device.alloc(max(copies))
            driver.copy(self._scratch.address, source, n)
            driver.copy(target, self._scratch.address, n)


def _forget(device: GpuDevice, graphs: dict[Key, Any]) -> None:
    for graph in graphs.values():
        device.give_back(functools.partial(device.driver.forget, graph))
