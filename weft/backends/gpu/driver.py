"""The few calls that a GPU device makes of its vendor's driver."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from weft.backends.gpu.blas import Blas
from weft.core.errors import DeviceError


class Driver(abc.ABC):
    """One device, one stream: everything happens in the order in which it was asked for.

    Addresses are integers; memory is given at multiples of 256 bytes. Methods may be called from
    any thread, one at a time. They raise OutOfMemoryError where memory is short and DeviceError for
    everything else; after an error from which the device does not recover `lost` is True.
    """

    kind: str
    index: int
    name: str
    arch: str  # "sm_90", "gfx942": a name that llvm.gpu_target knows
    memory: int  # bytes
    version: str
    lost: bool = False
    replay_defect: str = ""  # why replays may go wrong, where something is known

    @abc.abstractmethod
    def alloc(self, nbytes: int) -> int:
        """The address of new memory, its content undefined."""

    @abc.abstractmethod
    def free(self, address: int) -> None:
        """Gives memory back once the work that was asked for is done."""

    @abc.abstractmethod
    def room(self) -> tuple[int, int]:
        """How many bytes are free, and how many there are. What other programs take is not free."""

    @abc.abstractmethod
    def write(self, address: int, host: int, nbytes: int) -> None:
        """Copies from host memory, which may change as soon as this returns."""

    @abc.abstractmethod
    def read(self, host: int, address: int, nbytes: int) -> None:
        """Copies to host memory, when all work before is done."""

    @abc.abstractmethod
    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copies between places of the device that do not overlap."""

    @abc.abstractmethod
    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Fills with a repeated byte."""

    @abc.abstractmethod
    def load(self, code: bytes, entry: str, shared: int = 0) -> Any:
        """The function `entry` of PTX text or of a code object; it stays loaded. `shared` is how
        many bytes of dynamic shared memory its launches will ask for."""

    @abc.abstractmethod
    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        threads: Sequence[int],
        args: Sequence[int],
        shared: int = 0,
    ) -> None:
        """Runs a function whose arguments are all addresses, with `shared` bytes of dynamic shared
        memory per group."""

    def library(self) -> Blas:
        """The vendor's library of matrix products, working on this device's stream. Raises
        DeviceError saying why there is none."""
        raise DeviceError(f"weft knows no library of matrix products for {self.kind}")

    @abc.abstractmethod
    def record(self) -> None:
        """From here on launches, copies and fills are noted, not done, until `recorded`."""

    @abc.abstractmethod
    def recorded(self) -> Any:
        """What was noted, to be replayed as one. Memory freed meanwhile is freed now."""

    @abc.abstractmethod
    def replay(self, graph: Any) -> None:
        """Does what was noted, with the addresses, grids and bytes of then."""

    @abc.abstractmethod
    def forget(self, graph: Any) -> None:
        """Gives a recording back."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Waits for everything asked for; errors of kernels show here."""

    @abc.abstractmethod
    def mark(self) -> Any:
        """Notes the time at which the device reaches this place."""

    @abc.abstractmethod
    def times(self, marks: Sequence[Any]) -> list[float]:
        """Seconds on the device from each mark to the next. Waits, and gives the marks back."""

    @abc.abstractmethod
    def close(self) -> None:
        """Gives the device back; the driver is `lost` then."""
