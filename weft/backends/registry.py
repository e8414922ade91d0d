"""Finding and opening devices: `devices()` lists them, `get(spec)` opens one, never another.

Placement policy: docs of `get`. Kinds of devices: kinds.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

from weft.backends import drivers
from weft.backends.kinds import WGPU_KINDS, backends, find, index_of, is_own as is_own
from weft.backends.plugins import raised
from weft.core.errors import DeviceError, UnknownDeviceError, WeftError
from weft.core.notices import say
from weft.host.forks import lock_of
from weft.program.device import HOST, Device, DeviceInfo

T = TypeVar("T")
VENDORS = ("cuda", "hip")  # preferred to wgpu for the same GPU


def probe(kind: str) -> list[DeviceInfo]:
    """The lines of one kind, at least one; a probe that fails becomes a line saying why."""
    try:
        lines = find(kind).probe()
    except (Exception, SystemExit) as error:
        reason = f"probing failed: {raised(error)}"
        return [DeviceInfo(kind, 0, kind, False, reason)]
    return lines or [DeviceInfo(kind, 0, kind, False, "no device found")]


def devices() -> list[DeviceInfo]:
    """Every device of every kind, unavailable ones with the reason and what to install. Opens
    none of them, and never raises."""
    order = {kind: n for n, kind in enumerate(("cpu", *WGPU_KINDS, "cuda", "hip"))}
    kinds = sorted(backends(), key=lambda kind: order.get(kind, len(order)))
    return [line for kind in kinds for line in probe(kind)]


# -- opening ------------------------------------------------------------------------------------

_open_devices: dict[str, Device] = {}
_lock = lock_of(sys.modules[__name__])


def get(spec: str | Device | None = None, fallback: str | None = None) -> Device:
    """Returns the device that `spec` names; the same instance every time.

    - "kind" or "kind:index": that device. If it does not open, DeviceError gives the reason and
      what to install. "interp:NAME" takes the name of a preset of `core.caps`.
    - "auto": the device in WEFT_DEVICE, else the fastest real device: a hardware GPU (through
      cuda, then hip, then wgpu), else the CPU. A software rasteriser is never chosen. One line on
      stderr names the choice and the reason.
    - "gpu" or "gpu:index": the best hardware GPU, in the same order. If none opens, the CPU, with a
      warning on stderr naming the reason.
    - None: the device in WEFT_DEVICE, else the CPU.
    - `fallback="cpu"`: the CPU with a warning, if an explicitly named device does not open.
    """
    if isinstance(spec, Device):
        return spec
    if fallback not in (None, "cpu"):
        raise UnknownDeviceError(
            f'fallback={fallback!r} is not supported; use fallback="cpu" or none'
        )
    with _lock:
        return _choose(spec, fallback, _named)


def opened(spec: str) -> Device | None:
    """The device that `spec`, such as "cpu" or "cuda:1", names, if it is open."""
    kind, index = _parts(spec)
    return _open_devices.get(f"{kind}:{index or '0'}")


def host() -> Device:
    """The device that is this process's own processor."""
    return get(HOST)


def check(spec: str | None = None) -> None:
    """Raises DeviceError where `get(spec)` would. Says nothing, and opens only what is named."""
    with _lock:
        _choose(spec, None, _check)


def _choose(spec: str | None, fallback: str | None, use: Callable[[str, str | None], T]) -> T:
    """Returns the result of `use` for the chosen name: `spec`, or WEFT_DEVICE."""
    wanted = os.environ.get("WEFT_DEVICE", "").strip()
    if wanted and (spec is None or spec == "auto"):
        try:
            return use(wanted, fallback)
        except DeviceError as error:
            kind = UnknownDeviceError if isinstance(error, UnknownDeviceError) else DeviceError
            raise kind(f"WEFT_DEVICE={wanted[:60]}: {error}") from None
    return use("cpu" if spec is None else spec, fallback)


def _parts(spec: str) -> tuple[str, str]:
    """(kind, what follows the colon, "" without one)."""
    kind, _, index = str(spec).strip().lower().partition(":")
    return kind, index


def _check(spec: str, fallback: str | None) -> None:
    kind, index = _parts(spec)
    if kind == "gpu" and index_of("gpu", index or "0"):
        _exists(int(index), _hardware()[0])
    elif kind not in ("auto", "gpu"):
        _open(kind, index or "0")


def _named(spec: str, fallback: str | None) -> Device:
    kind, index = _parts(spec)
    if kind == "auto":
        return _auto()
    if kind == "gpu":
        return _gpu(index or "0")
    try:
        return _open(kind, index or "0")
    except DeviceError as error:
        if fallback is None or isinstance(error, UnknownDeviceError):
            raise
        say(f"warning: {error}; using cpu instead")
        return _open("cpu", "0")


def _open(kind: str, index: str) -> Device:
    key = f"{kind}:{index}"
    known = _open_devices.get(key)
    if known is not None and not getattr(known, "lost", False):
        return known
    backend = find(kind)
    try:
        device = backend.open(index)
    except WeftError:
        raise
    except (Exception, SystemExit) as error:
        raise DeviceError(f"device {key} failed to open: {raised(error)}") from error
    _open_devices[key] = device
    return device


def _hardware() -> tuple[list[DeviceInfo], str]:
    """Hardware GPUs, best first, and why there are none (or what else was seen)."""
    if not drivers.may_have_gpu():
        return [], "no GPU driver is loaded"
    own = [x for kind in VENDORS for x in probe(kind) if x.available]
    lines = probe("webgpu")  # lists the adapters of every native kind in order of preference
    real = [x for x in lines if x.available and not x.software]
    named = tuple(x.name for x in own)
    real.sort(key=lambda x: x.name.startswith(named))  # a second listing of the same GPU comes last
    soft = [x.name for x in lines if x.available and x.software]
    if soft:
        reason = f"only a software rasteriser ({soft[0]}), which is never picked on its own"
    else:
        reason = "; ".join(x.reason for x in lines if x.reason) or "no GPU found"
    return own + real, reason


def hardware() -> list[str]:
    """The names of the hardware GPUs, the one that "auto" prefers first. Opens none of them."""
    return list(dict.fromkeys(_native(line) for line in _hardware()[0]))


def _native(line: DeviceInfo) -> str:
    return str(line.extra.get("native", line.id))


def _try(line: DeviceInfo) -> tuple[Device | None, str]:
    kind, _, index = _native(line).partition(":")
    try:
        return _open(kind, index), ""
    except WeftError as error:
        return None, f"{line.name} failed: {error}"


def _auto() -> Device:
    real, reason = _hardware()
    for line in real:
        device, why = _try(line)
        if device is not None:
            say(f"device {device.info.id} ({line.name}): the fastest real device here")
            return device
        reason = why
    device = _open("cpu", "0")
    say(f"device cpu ({device.info.name}): no usable GPU ({reason})")
    return device


def _exists(which: int, real: list[DeviceInfo]) -> None:
    if which and which >= len(real):
        raise DeviceError(f"gpu:{which} does not exist: {len(real)} hardware GPUs found")


def _gpu(index: str) -> Device:
    real, reason = _hardware()
    which = index_of("gpu", index)
    _exists(which, real)
    for line in real[which:] if not which else real[which : which + 1]:
        device, why = _try(line)
        if device is not None:
            return device
        reason = why
    say(f"warning: no GPU could be used ({reason}); using cpu instead")
    return _open("cpu", "0")
