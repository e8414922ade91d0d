"""Adapters: what wgpu finds on this machine, in order of preference, and their Caps."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import DeviceError
from weft.host.forks import lock_of
from weft.program.device import DeviceInfo

NATIVE = {"Vulkan": "vulkan", "Metal": "metal", "D3D12": "dx12"}
_SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "basic render", "warp")
_TURNS = {"llvmpipe": 65535}  # iterations after which a thread's loops end (see kernel/turns.py)
_RANK = {"DiscreteGPU": 0, "IntegratedGPU": 1, "CPU": 3}
_INSTALL = {
    "vulkan": "install the GPU's Vulkan driver (Debian, Ubuntu: apt install libvulkan1 "
    "mesa-vulkan-drivers; NVIDIA: its own driver)",
    "metal": "Metal exists on macOS only",
    "dx12": "DX12 exists on Windows only",
    "webgpu": "install a Vulkan driver (Debian, Ubuntu: apt install libvulkan1 "
    "mesa-vulkan-drivers)",
}
_lock = lock_of(sys.modules[__name__])
opened: list[int] = []  # the process that asked wgpu for its adapters


def library() -> Any:
    """The wgpu module. Raises DeviceError saying what to install when it does not import."""
    try:
        import wgpu
        import wgpu.backends.wgpu_native
    except Exception as error:  # a missing package, or a native library that does not load
        raise DeviceError(
            f"wgpu does not import ({type(error).__name__}: {error}); pip install wgpu"
        ) from error
    return wgpu


def native() -> tuple[Any, Any]:
    """wgpu-native's functions and its NULL, for the few calls made once per dispatch."""
    from wgpu.backends.wgpu_native import _ffi

    return _ffi.lib, _ffi.ffi.NULL


def is_software(adapter: Any) -> bool:
    """True if an adapter computes on the CPU (lavapipe, SwiftShader, WARP)."""
    info = adapter.info
    name = f"{info['device']} {info['vendor']} {info['description']}".lower()
    return info["adapter_type"] == "CPU" or any(word in name for word in _SOFTWARE)


def max_turns(adapter: Any) -> int:
    """Returns the most iterations of all loops of a thread together, or 0 without a limit."""
    name = adapter.info["device"].lower()
    return next((most for word, most in _TURNS.items() if word in name), 0)


def _rank(adapter: Any) -> tuple[bool, int]:
    return is_software(adapter), _RANK.get(adapter.info["adapter_type"], 2)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Mesa writes to stderr about a missing XDG_RUNTIME_DIR, which only windows need."""
    if "XDG_RUNTIME_DIR" in os.environ or not sys.platform.startswith("linux"):
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ["XDG_RUNTIME_DIR"]


@functools.cache
def _adapters() -> tuple[Any, ...]:
    wgpu = library()
    from wgpu.backends.wgpu_native import _helpers, extras

    if getattr(_helpers, "_the_instance", True) is None:
        # OpenGL is left out: its drivers lack what kernels need, and it complains on stderr.
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    with _quiet():
        listed = wgpu.gpu.enumerate_adapters_sync()
    found = [a for a in listed if a.info["backend_type"] in NATIVE]
    return tuple(sorted(found, key=_rank))


FORKED = (
    "GPUs were opened before this process was forked, and their drivers do not survive that; start "
    "processes by 'spawn'"
)


def find(kind: str) -> list[Any]:
    """The adapters of a kind, hardware first ("webgpu": of every native kind). Raises DeviceError
    in the forked child of a process that has asked before."""
    with _lock:
        if opened and opened[0] != os.getpid():
            raise DeviceError(f"{kind}: {FORKED}")
        opened[:] = [os.getpid()]
        found = _adapters()
    return [a for a in found if kind in ("webgpu", NATIVE[a.info["backend_type"]])]


def pick(kind: str, index: int) -> Any:
    """Adapter `kind:index`. Raises DeviceError saying what there is and what to install."""
    found = find(kind)
    if index < len(found):
        return found[index]
    if found:
        names = ", ".join(f"{kind}:{n} {a.info['device']}" for n, a in enumerate(found))
        raise DeviceError(f"device {kind}:{index} does not exist; there is {names}")
    raise DeviceError(f"device {kind}:{index} is not available: {missing(kind)}")


def missing(kind: str) -> str:
    """Returns why no adapter of this kind was found, and what to install."""
    here = {"darwin": "metal", "win32": "dx12"}.get(sys.platform)
    if kind == "vulkan" and here:
        return f'no Vulkan driver found; use "{here}" here'
    return f"no {kind} adapter found; {_INSTALL[kind]}"


def info(kind: str, index: int, adapter: Any) -> DeviceInfo:
    """The line of one adapter."""
    about = adapter.info
    native = NATIVE[about["backend_type"]]
    same = find(native)
    return DeviceInfo(
        kind,
        index,
        about["device"] or about["vendor"] or native,
        True,
        "",
        about["description"] or about["backend_type"],
        0,
        tuple(d.name for d in dt.DEVICE),
        is_software(adapter),
        {"native": f"{native}:{same.index(adapter)}", "type": about["adapter_type"]},
    )


def probe(kind: str) -> list[DeviceInfo]:
    """One line per adapter of a kind, or one saying why there is none. Never raises."""
    try:
        found = find(kind)
    except Exception as error:
        return [DeviceInfo(kind, 0, kind, False, str(error))]
    if not found:
        return [DeviceInfo(kind, 0, kind, False, missing(kind))]
    return [info(kind, n, adapter) for n, adapter in enumerate(found)]


def features(adapter: Any) -> list[str]:
    """The optional features to ask a device for."""
    return [f for f in ("shader-f16",) if f in adapter.features]


def caps_of(kind: str, limits: dict[str, int], asked: list[str], software: bool) -> Caps:
    """Caps from a device's limits. The subgroup width is 0: WebGPU only bounds it, and drivers
    have been seen to use another width than they claim."""
    threads = min(
        limits["max-compute-invocations-per-workgroup"],
        limits["max-compute-workgroup-size-x"],
        1024,
    )
    buffer = limits["max-buffer-size"] // 256 * 256
    return Caps(
        f"{kind}{' (software)' if software else ''}",
        max_threads=threads,
        lanes=4,
        subgroup=0,
        shared_bytes=limits["max-compute-workgroup-storage-size"],
        cheap_barrier=not software,
        max_bindings=min(limits["max-storage-buffers-per-shader-stage"], 64),
        max_binding_bytes=min(limits["max-storage-buffer-binding-size"], buffer) // 256 * 256,
        max_buffer_bytes=buffer,
        max_groups=limits["max-compute-workgroups-per-dimension"],
        cores=(os.cpu_count() or 1) if software else 1,
        exclusive_buffers=True,
        features=frozenset({"dot4", *asked}),
    )
