"""Cheap answers to "is it there?" for the devices that need no adapter list. Nothing is
initialised: libraries are at most opened, never asked to start a device."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import platform
import sys

from weft.core import caps, dtypes as dt
from weft.core.install import how
from weft.program.device import DeviceInfo

NAMES = tuple(d.name for d in dt.DEVICE)


def probe_cpu() -> list[DeviceInfo]:
    """One line for the CPU; the cpu backend says more where it can."""
    try:
        import llvmlite
    except ImportError as error:
        reason = f"llvmlite does not import ({error}); pip install llvmlite"
        return [DeviceInfo("cpu", 0, cpu_name(), False, reason)]
    driver = f"LLVM through llvmlite {llvmlite.__version__}"
    cores = os.cpu_count() or 1
    memory = host_memory()
    return [
        DeviceInfo("cpu", 0, cpu_name(), True, "", driver, memory, NAMES, extra={"cores": cores})
    ]


def cpu_name() -> str:
    """The processor's marketing name, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.lower().startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "cpu"


def host_memory() -> int:
    """Bytes of physical memory; 0 when unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def may_have_gpu() -> bool:
    """False if there is certainly no hardware GPU, so that nothing has to be imported. On Linux:
    none of the device files of GPU drivers exists."""
    if not sys.platform.startswith("linux"):
        return True
    files = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd", "/dev/dri/renderD*")
    return any(map(glob.glob, files))


def probe_interp() -> list[DeviceInfo]:
    presets = ", ".join(caps.PRESETS)
    return [
        DeviceInfo(
            "interp", 0, "kernel interpreter", True, "", "NumPy", 0, NAMES, True,
            {"presets": presets},
        )
    ]  # fmt: skip


def probe_emulated() -> list[DeviceInfo]:
    """Each machine that can be emulated here; one line for all where nothing is installed."""
    from weft.backends.emulated import info
    from weft.backends.emulated.machines import MACHINES

    lines = [info(machine) for machine in MACHINES.values()]
    if any(line.available for line in lines):
        return lines
    name = f"{len(lines)} emulated machines"
    return [DeviceInfo("emulated", 0, name, False, lines[0].reason, extra={"names": [*MACHINES]})]


def probe_cuda() -> list[DeviceInfo]:
    """Each NVIDIA GPU, or what is missing: the driver, the package, or a GPU. Asking for the
    driver's version starts nothing; only where all is there is the driver started to list GPUs."""
    names = ["nvcuda.dll"] if sys.platform == "win32" else ["libcuda.so.1", "libcuda.so"]
    library = _open_first(names)
    if library is None:
        reason = f"no NVIDIA driver found ({names[0]}): install NVIDIA's driver"
        return [DeviceInfo("cuda", 0, "NVIDIA GPU", False, reason)]
    if not _found("cuda.bindings"):
        version = ctypes.c_int(0)
        known = library.cuDriverGetVersion(ctypes.byref(version)) == 0
        driver = (
            f"CUDA {version.value // 1000}.{version.value % 1000 // 10}" if known else "unknown"
        )
        reason = f"NVIDIA driver present ({driver}), cuda-bindings missing: {how('cuda')}"
        return [DeviceInfo("cuda", 0, "NVIDIA GPU", False, reason, driver)]
    from weft.backends import cuda

    return cuda.probe()


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def probe_hip() -> list[DeviceInfo]:
    """Each AMD GPU that HIP reaches, or what is missing: the driver, the runtime, the package, or a
    GPU."""
    if _found("rocm.bindings.hip"):
        from weft.backends import hip

        return hip.probe()
    names = ["amdhip64.dll"] if sys.platform == "win32" else ["libamdhip64.so"]
    if _open_first(names) is not None:
        reason = f"HIP runtime present, rocm-bindings-hip missing: {how('hip')}"
    elif os.path.exists("/dev/kfd"):
        reason = f"AMD driver present (/dev/kfd): install ROCm's HIP runtime, then {how('hip')}"
    else:
        needs = f"install AMD's driver and ROCm, then {how('hip')}"
        reason = f"no AMD driver found ({names[0]}): {needs}"
    return [DeviceInfo("hip", 0, "AMD GPU", False, reason)]


def _open_first(names: list[str]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
