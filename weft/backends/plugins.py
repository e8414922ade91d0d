"""Backends of other packages, which join through the entry-point group "weft.backends".

The entry's name is the kind, its object is called as `open(index)` and returns a Device; if it has
a `probe()` method, that gives its DeviceInfo lines.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from weft.core.errors import DeviceError
from weft.core.records import dataclass
from weft.core.text import first_line
from weft.program.device import Device, DeviceInfo

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "weft.backends"
PATIENCE = 10  # seconds that a plug-in has to list its devices


def plugins() -> list[Plugin]:
    """Every plug-in that is installed; none is loaded."""
    from importlib import metadata  # slow to import, and only plug-ins need it

    return [Plugin(entry) for entry in metadata.entry_points(group=GROUP)]


@dataclass(frozen=True)
class Plugin:
    """One kind of device of another package. Its code is untrusted: it may raise anything."""

    entry: metadata.EntryPoint

    @property
    def kind(self) -> str:
        return self.entry.name

    def open(self, index: int) -> Device:
        """Raises DeviceError for a plug-in that gives no Device, and what its code raises."""
        device = self.entry.load()(index)
        if not isinstance(device, Device):
            given = type(device).__name__
            raise DeviceError(f"its plug-in {self.entry.value} gave {given}, no Device")
        return device

    def probe(self) -> list[DeviceInfo]:
        """Returns its devices. Raises DeviceError after PATIENCE seconds without an answer, so that
        a hanging plug-in does not block the list. Passes on the Exceptions of the plug-in's
        code."""
        found: list[list[DeviceInfo]] = []
        wrong: list[BaseException] = []

        def asking() -> None:
            try:
                found.append(self._lines())
            except BaseException as error:
                wrong.append(error)

        thread = threading.Thread(target=asking, name=f"weft-probe-{self.kind}", daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if wrong and isinstance(wrong[0], Exception):
            raise wrong[0]
        if wrong:
            raise DeviceError(raised(wrong[0])) from wrong[0]
        if not found:
            raise DeviceError(f"its plug-in {self.entry.value} gave no answer in {PATIENCE} s")
        return found[0]

    def _lines(self) -> list[DeviceInfo]:
        probe = getattr(self.entry.load(), "probe", None)
        if probe is None:
            name = f"{self.kind} (plug-in {self.entry.value})"
            return [DeviceInfo(self.kind, 0, name, True)]
        lines = list(probe())
        wrong = [type(line).__name__ for line in lines if not isinstance(line, DeviceInfo)]
        if wrong:
            raise DeviceError(f"its plug-in {self.entry.value} gave {wrong[0]}, no DeviceInfo")
        return lines


def raised(error: BaseException) -> str:
    """An error's type, and the first line of its message."""
    kind, said = type(error).__name__, first_line(error)
    return kind if said == kind else f"{kind}: {said}"
