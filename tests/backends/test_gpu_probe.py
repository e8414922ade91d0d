"""Finding NVIDIA and AMD GPUs, on stand-ins for their bindings: what there is, what is missing."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from gpu_bindings import APIS, BACKENDS, Bindings, named

from weft.backends import drivers, registry
from weft.backends.llvm.gpu_target import amd_arch, nvidia_arch
from weft.core.errors import DeviceError, UsageError


def test_probing_opens_nothing(gpu: Bindings) -> None:
    (line,) = BACKENDS[gpu.kind].probe()
    assert line.available and line.memory == 1 << 26 and gpu.left() == []
    assert line.extra["arch"] == {"cuda": "sm_90", "hip": "gfx90a"}[gpu.kind]


def test_an_unknown_architecture(gpu: Bindings) -> None:
    gpu.capability, gpu.arch_name = (7, 5), "gfx803"
    (line,) = BACKENDS[gpu.kind].probe()
    said = {"cuda": "compute capability 7.5; weft needs 8.0", "hip": "architecture gfx803; weft"}
    assert not line.available and said[gpu.kind] in line.reason
    with pytest.raises(DeviceError, match=f"GPU 0: {said[gpu.kind]}"):
        BACKENDS[gpu.kind].open_device(0)
    assert gpu.left() == []


@pytest.mark.parametrize(
    "number,said",
    [(100, "sees no GPU"), (35, "too old or missing"), (3, "was forked"), (999, "it failed")],
)
def test_a_driver_that_does_not_start(gpu: Bindings, number: int, said: str) -> None:
    gpu.fail = {named(gpu, "init")[0]: [number] * 3}
    (line,) = BACKENDS[gpu.kind].probe()
    assert not line.available and said in line.reason
    with pytest.raises(DeviceError, match=said):
        BACKENDS[gpu.kind].open_device(0)


def test_hidden_gpus(gpu: Bindings, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.gpus = 0
    assert BACKENDS[gpu.kind].probe()[0].reason.endswith("sees no GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (line,) = BACKENDS[gpu.kind].probe()
    assert "sees no GPU (CUDA_VISIBLE_DEVICES='' may hide it)" in line.reason


def test_a_library_that_is_missing(gpu: Bindings, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(flags: int) -> None:
        raise RuntimeError("failed to dlopen 'b'libgpu.so'': b'libgpu.so: cannot open it'")

    setattr(gpu, named(gpu, "init")[0], init)
    (line,) = BACKENDS[gpu.kind].probe()
    assert "driver found (failed to dlopen 'libgpu.so'): install" in line.reason
    monkeypatch.setitem(sys.modules, gpu.__name__, None)
    monkeypatch.setitem(sys.modules, APIS[gpu.kind].module_name, None)
    (line,) = BACKENDS[gpu.kind].probe()
    assert f"pip install '.[{gpu.kind}]'" in line.reason


def test_a_broken_installation_is_a_reason(gpu: Bindings) -> None:
    setattr(gpu, named(gpu, "count")[0], lambda: 1 / 0)
    (line,) = BACKENDS[gpu.kind].probe()
    assert not line.available and "ZeroDivisionError" in line.reason


def test_architectures() -> None:
    known = {
        (8, 0): "sm_80",
        (8, 6): "sm_86",
        (9, 0): "sm_90",
        (10, 3): "sm_100",
        (12, 1): "sm_120",
    }
    assert {cc: nvidia_arch(*cc) for cc in known} == known
    with pytest.raises(UsageError, match=r"7\.5"):
        nvidia_arch(7, 5)
    names = ("gfx90a:sramecc+:xnack-", "gfx942:sramecc+:xnack+", "gfx1100")
    assert [amd_arch(name) for name in names] == ["gfx90a", "gfx942", "gfx1100"]
    with pytest.raises(UsageError, match="architecture gfx1030; weft compiles for gfx90a, "):
        amd_arch("gfx1030")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "_found", lambda module: False)
    monkeypatch.setattr(drivers, "_open_first", lambda names: None)
    monkeypatch.setattr(drivers.os.path, "exists", lambda path: False)
    assert "install NVIDIA's driver" in drivers.probe_cuda()[0].reason
    assert "install AMD's driver" in drivers.probe_hip()[0].reason
    monkeypatch.setattr(drivers.os.path, "exists", lambda path: True)
    assert "AMD driver present (/dev/kfd)" in drivers.probe_hip()[0].reason

    def version(pointer: Any) -> int:
        pointer._obj.value = 12040
        return 0

    library = types.SimpleNamespace(cuDriverGetVersion=version)
    monkeypatch.setattr(drivers, "_open_first", lambda names: library)
    (line,) = drivers.probe_cuda()
    assert "CUDA 12.4" in line.reason and "pip install '.[cuda]'" in line.reason
    (line,) = drivers.probe_hip()
    assert "pip install '.[hip]'" in line.reason and not line.available


def test_the_registry_opens_by_index(gpu: Bindings, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.gpus = 2
    monkeypatch.setattr(registry, "_open_devices", {})
    monkeypatch.setattr(drivers, f"probe_{gpu.kind}", BACKENDS[gpu.kind].probe)
    monkeypatch.setenv("WEFT_DEVICE", f"{gpu.kind}:1")
    device = registry.get(None)
    assert device.info.id == f"{gpu.kind}:1" and registry.get(f"{gpu.kind}:1") is device
    with pytest.raises(DeviceError, match=r"there are 2 .* does not exist"):
        registry.get(f"{gpu.kind}:2")
