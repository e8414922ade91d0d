"""The targets that Programs can be compiled for by name, present on this machine or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.backends import registry, wgsl
from weft.backends.llvm import gpu_target, render_gpu
from weft.core.caps import PRESETS, Caps
from weft.core.errors import DeviceError, UnknownDeviceError
from weft.kernel.ir import Kernel
from weft.program.program import Program


def settled(device: str) -> str:
    """Returns the name of the device that "auto" means; any other name unchanged."""
    return registry.get(device).info.id.removesuffix(":0") if device == "auto" else device


def caps_of(device: str) -> Caps:
    """Returns the Caps of `device`: a preset, a GPU architecture or a device of this machine.
    Raises DeviceError for any other name."""
    if device in PRESETS:
        return PRESETS[device]
    if not _opens(device):
        return gpu_target(device).caps
    try:
        return registry.get(device).caps
    except DeviceError as error:
        known = ", ".join(PRESETS)
        kind = UnknownDeviceError if isinstance(error, UnknownDeviceError) else DeviceError
        raise kind(f"{error}; targets for other machines: {known}, sm_90, gfx942, ...") from None


def renderer(target: str) -> tuple[Caps, Callable[[Kernel], str]]:
    """The Caps of a target and the function that gives a kernel's text there, for people. "wgsl";
    "llvm" for this machine's processor, "llvm:sm_90" and the like; an architecture, for its
    assembly; or a device. Raises DeviceError or UsageError for any other name."""
    if target == "wgsl":
        caps = PRESETS["webgpu"]
        return caps, lambda kernel: wgsl.render(kernel, caps)
    if target == "llvm":
        return registry.host().caps, registry.host().source
    kind, colon, arch = target.rpartition(":")
    if kind == "llvm" and colon:
        goal = gpu_target(arch)
        return goal.caps, lambda kernel: render_gpu(kernel, goal)
    if not _opens(target):
        from weft.backends.llvm import offline

        goal = gpu_target(target)
        return goal.caps, lambda kernel: offline.source(kernel, goal)
    device = registry.get(target)
    return device.caps, device.source


def prepare(device: str, programs: Iterable[Program]) -> None:
    """Compiles the kernels of Programs for a device of this machine, so that weft's cache has them
    before the first run. Does nothing for a preset or an architecture."""
    if device not in PRESETS and _opens(device):
        for program in programs:
            registry.get(device).load(program.kernels)


def _opens(device: str) -> bool:
    """True if the name is a device to open, not an architecture."""
    return not device.startswith(("sm_", "gfx"))
