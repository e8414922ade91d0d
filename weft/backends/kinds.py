"""The kinds of devices: weft's own, and those of other packages (plugins.py)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from weft.backends import drivers
from weft.backends.plugins import Plugin, plugins
from weft.core.errors import DeviceError, UnknownDeviceError
from weft.core.records import dataclass
from weft.program.device import Device, DeviceInfo

if TYPE_CHECKING:
    from weft.backends.emulated.machines import Machine

WGPU_KINDS = ("vulkan", "metal", "dx12", "webgpu")


@dataclass(frozen=True)
class Backend:
    """A kind of devices: how to list them (`probe`) and open one (`open`, given the text after the
    colon)."""

    kind: str
    probe: Callable[[], list[DeviceInfo]]
    open: Callable[[str], Device]


def index_of(kind: str, text: str) -> int:
    """The number after a kind's colon."""
    if not text.isdecimal():
        raise UnknownDeviceError(
            f'device index in "{kind}:{text}" is not a number; write "{kind}:0"'
        )
    return int(text)


def _check_first(kind: str, text: str) -> None:
    if index_of(kind, text):
        raise UnknownDeviceError(f'there is one device "{kind}:0"; "{kind}:{text}" does not exist')


def _cpu() -> Backend:
    def open_(text: str) -> Device:
        _check_first("cpu", text)
        from weft.backends.cpu import CpuDevice

        return CpuDevice()

    return Backend("cpu", drivers.probe_cpu, open_)


def _wgpu(kind: str) -> Backend:
    def probe() -> list[DeviceInfo]:
        from weft.backends.wgpu import adapters

        return adapters.probe(kind)

    def open_(text: str) -> Device:
        from weft.backends.wgpu import WgpuDevice

        return WgpuDevice(kind, index_of(kind, text))

    return Backend(kind, probe, open_)


def _vendor(kind: str, probe: Callable[[], list[DeviceInfo]]) -> Backend:
    """The GPUs that a vendor's own driver opens."""

    def open_(text: str) -> Device:
        index = index_of(kind, text)
        lines = probe()
        line = lines[index] if index < len(lines) else lines[0]
        if not line.available:
            raise DeviceError(f"device {kind}:{index} is not available: {line.reason}")
        module = importlib.import_module(f"weft.backends.{kind}")
        device: Device = module.open_device(index)
        return device

    return Backend(kind, probe, open_)


def _interp() -> Backend:
    def open_(text: str) -> Device:
        from weft.backends.interp import InterpDevice

        return InterpDevice(None if text == "0" else text)

    return Backend("interp", drivers.probe_interp, open_)


def _null() -> Backend:
    def probe() -> list[DeviceInfo]:
        from weft.backends.null import NullDevice

        return NullDevice.probe()

    def open_(text: str) -> Device:
        from weft.backends.null import NullDevice

        return NullDevice()

    return Backend("null", probe, open_)


def _emulated() -> Backend:
    """All machines in one, for lists; each is also found by its own name."""

    def open_(text: str) -> Device:
        names = ", ".join(_machines())
        raise UnknownDeviceError(f"emulated machines are opened by their names: {names}")

    return Backend("emulated", drivers.probe_emulated, open_)


def _machines() -> Mapping[str, Machine]:
    from weft.backends.emulated.machines import MACHINES

    return MACHINES


def _machine(name: str) -> Backend | None:
    """The emulated machine of that name."""
    machine = _machines().get(name)
    if machine is None:
        return None

    def probe() -> list[DeviceInfo]:
        from weft.backends.emulated import info

        return [info(machine)]

    def open_(text: str) -> Device:
        _check_first(name, text)
        from weft.backends.emulated import EmulatedDevice

        return EmulatedDevice(machine)

    return Backend(name, probe, open_)


def _plugged(plugin: Plugin) -> Backend:
    def open_(text: str) -> Device:
        return plugin.open(index_of(plugin.kind, text))

    return Backend(plugin.kind, plugin.probe, open_)


def _third_party() -> dict[str, Backend]:
    return {plugin.kind: _plugged(plugin) for plugin in plugins()}


def _builtin() -> dict[str, Backend]:
    table = [_cpu(), *map(_wgpu, WGPU_KINDS)]
    table += [_vendor("cuda", drivers.probe_cuda), _vendor("hip", drivers.probe_hip)]
    table += [_interp(), _null(), _emulated()]
    return {b.kind: b for b in table}


def backends() -> dict[str, Backend]:
    """Every known kind; a plug-in cannot replace a built-in one."""
    return _third_party() | _builtin()


def is_own(kind: str) -> bool:
    """True if weft itself has this kind, or means something else by the name."""
    return kind in ("auto", "gpu") or kind in _builtin() or kind in _machines()


def find(kind: str) -> Backend:
    """The backend of a kind. Raises DeviceError naming the known kinds. Plug-ins are looked up
    only when the kind is not built in."""
    backend = _builtin().get(kind) or _machine(kind) or _third_party().get(kind)
    if backend is None:
        known = ", ".join(backends())
        raise UnknownDeviceError(f'unknown device "{kind[:60]}"; use one of {known}, gpu, auto')
    return backend
