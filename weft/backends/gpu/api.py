"""A vendor's driver API, found and started. CUDA's and HIP's calls differ in little but names.

Sources: NVIDIA, "CUDA Driver API"; AMD, "HIP Runtime API". Both number their errors alike.
"""

from __future__ import annotations

import abc
import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from weft.backends.gpu.blas_api import Vendor
from weft.core import dtypes as dt
from weft.core.errors import CompileError, DeviceError, UsageError
from weft.core.install import how
from weft.program.device import DeviceInfo

OUT_OF_MEMORY, NO_DEVICE = 2, 100
_NOT_STARTED = {
    3: "this process was forked from one that had started it",
    35: "it is too old or missing",
    802: "the system is not ready (on boards with NVSwitch: is the fabric manager running?)",
}
_HINTS = {
    46: "; another process has the GPU to itself",  # CUDA_ERROR_DEVICE_UNAVAILABLE
    221: "; libnvidia-ptxjitcompiler.so.1, a part of the driver, is missing",
    **dict.fromkeys(range(900, 909), "; WEFT_REPLAY=off does without recordings"),
}
# The device does not survive these: a fault or a failure of a kernel, an ECC error, a reset, ...
FATAL = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999})


def wished(name: str, default: bool) -> bool:
    """Returns the value of an on/off environment variable, or `default` if it is not set. Raises
    UsageError."""
    wish = os.environ.get(name, "").strip().lower()
    if wish not in ("", "on", "off"):
        raise UsageError(f'{name}={wish[:40]!r}; use "on" or "off"')
    return wish == "on" if wish else default


class DriverError(DeviceError):
    """A call of the driver that gave an error number (`status`)."""

    def __init__(self, name: str, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"{name} failed: {text} ({status}){_HINTS.get(status, '')}")


@dataclass(frozen=True)
class Card:
    """A driver's description of a GPU before it is opened. `arch` is "" if weft cannot generate
    code for the GPU; `reason` says why. `pools` is true if memory can be allocated in the order of
    the
    stream."""

    name: str
    memory: int  # bytes
    arch: str
    reason: str
    pools: bool


class Api(abc.ABC):
    """One vendor's calls, by the names that both share: `call("MemcpyHtoDAsync", ...)`.

    `names` maps a shared name to the vendor's where that is more than `prefix` and the name.
    Making one imports the bindings and starts the driver; it raises DeviceError saying what is
    missing and what to install.
    """

    kind: ClassVar[str]
    maker: ClassVar[str]
    module_name: ClassVar[str]
    package: ClassVar[str]
    install: ClassVar[str]  # remedy where the driver itself is missing
    prefix: ClassVar[str]
    names: ClassVar[Mapping[str, str]]
    hiding: ClassVar[tuple[str, ...]]  # environment variables that hide GPUs
    blas: ClassVar[Vendor]  # its library of matrix products
    pools: ClassVar[bool] = True  # true if the driver's pools of memory are trusted

    def __init__(self) -> None:
        try:
            self.raw: Any = importlib.import_module(self.module_name)
        except ImportError as error:
            raise DeviceError(
                f"the {self.kind} device needs {self.package} ({error}): {how(self.kind)}"
            ) from None
        try:
            status = int(getattr(self.raw, f"{self.prefix}Init")(0)[0])
        except (RuntimeError, OSError) as error:  # the driver's library is missing
            said = re.split(r"[:.]\s", str(error).replace("b'", "'").replace("''", "'"))[0]
            raise DeviceError(f"no {self.maker} driver found ({said}): {self.install}") from None
        if status == NO_DEVICE:
            raise DeviceError(self._none())
        if status:
            reason = _NOT_STARTED.get(status, "it failed")
            raise DeviceError(f"the {self.maker} driver did not start: {reason} (error {status})")

    def _none(self) -> str:
        hidden = [f"{name}={os.environ[name]!r}" for name in self.hiding if name in os.environ]
        why = f" ({', '.join(hidden)} may hide it)" if hidden else ""
        return f"the {self.maker} driver sees no GPU{why}"

    def call(self, name: str, *args: Any) -> Any:
        """A call that must succeed; its value, several as a tuple, or None. Raises Failed."""
        shown = self.names.get(name, self.prefix + name)
        try:
            status, *values = getattr(self.raw, shown)(*args)
        except ValueError as error:  # an error number unknown to the bindings
            raise DeviceError(f"{shown} failed: {error}") from None
        except RuntimeError as error:  # a function that the driver lacks
            older = f"is the driver older than {self.package}? An older one may do"
            raise DeviceError(f"{shown} failed: {error}; {older}") from None
        if int(status):
            raise DriverError(shown, int(status), str(getattr(status, "name", status)))
        return None if not values else values[0] if len(values) == 1 else tuple(values)

    def enum(self, name: str, number: int) -> Any:
        """A constant of the bindings' type for it."""
        return getattr(self.raw, self.names[name])(number)

    def count(self) -> int:
        """Returns the number of GPUs. Raises DeviceError if there are none."""
        try:
            count = int(self.call("GetCount"))
        except DriverError as error:
            if error.status != NO_DEVICE:
                raise
            count = 0
        if not count:
            raise DeviceError(self._none())
        return count

    @abc.abstractmethod
    def version(self) -> str:
        """The driver's version, for people."""

    @abc.abstractmethod
    def card(self, index: int) -> Card: ...

    @abc.abstractmethod
    def open(self, index: int) -> Any:
        """Returns the arguments of `choose`."""

    @abc.abstractmethod
    def choose(self, context: Any) -> None:
        """Makes the device that of this thread."""

    @abc.abstractmethod
    def close(self, index: int) -> None:
        """Undoes `open`."""

    @abc.abstractmethod
    def pool(self, index: int) -> Any:
        """The device's memory pool, told to keep what is freed: the next step wants it again."""

    @abc.abstractmethod
    def module(self, code: bytes, entry: str) -> Any:
        """The code of the function `entry`, loaded. Raises CompileError with the driver's words."""

    def refused(self, entry: str, error: DriverError, said: str = "") -> Exception:
        """Returns the exception for code that does not load: a CompileError if the code is at
        fault."""
        if error.status in FATAL or error.status == OUT_OF_MEMORY:
            return error
        return CompileError(f"{entry}: the driver refuses the code: {said or error}")

    def replay_defect(self) -> str:
        """Returns the reason why this driver's replays of recordings may go wrong; "" if none is
        known."""
        return ""

    @abc.abstractmethod
    def allow_shared(self, function: Any, nbytes: int) -> None:
        """Lets a function take that much dynamic shared memory, where the driver requires it."""


def attempt(arch: Callable[[], str]) -> tuple[str, str]:
    """The architecture that `arch` finds and "", or "" and why there is none."""
    try:
        return arch(), ""
    except UsageError as error:
        return "", str(error)


def probe(api: type[Api]) -> list[DeviceInfo]:
    """One line per GPU; one that says why not where there is none. Opens none, never raises."""
    try:
        found = api()
        return [_line(found, index) for index in range(found.count())]
    except Exception as error:  # a broken installation must not hide the other devices
        reason = str(error) if isinstance(error, DeviceError) else f"probing failed: {error!r}"
        return [DeviceInfo(api.kind, 0, f"{api.maker} GPU", False, reason)]


def _line(api: Api, index: int) -> DeviceInfo:
    card = api.card(index)
    return DeviceInfo(
        api.kind, index, card.name, not card.reason, card.reason, api.version(), card.memory,
        tuple(d.name for d in dt.DEVICE), extra={"arch": card.arch} if card.arch else {},
    )  # fmt: skip
