"""Placement policy, with fake backends; and that looking never opens."""

import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from weft.backends import kinds, plugins, registry
from weft.backends.interp import InterpDevice
from weft.core import notices
from weft.core.errors import DeviceError
from weft.program.device import DeviceInfo

HARDWARE = DeviceInfo("webgpu", 0, "Fast GPU", True, extra={"native": "fake:0"})
SOFTWARE = DeviceInfo("webgpu", 0, "llvmpipe", True, software=True, extra={"native": "fake:0"})


class Fake(InterpDevice):
    def __init__(self, kind, index):
        super().__init__()
        self.kind, self.info = kind, DeviceInfo(kind, index, f"fake {kind}", True)


@pytest.fixture
def world(monkeypatch):
    """A registry with a CPU, one "fake" GPU kind and settable adapters."""
    monkeypatch.setattr(registry, "_open_devices", {})
    notices.say.cache_clear()
    monkeypatch.delenv("WEFT_DEVICE", raising=False)
    monkeypatch.setattr(registry.drivers, "may_have_gpu", lambda: True)
    state = {"adapters": [HARDWARE], "opened": [], "broken": None}

    def backend(kind):
        def open_(text):
            if state["broken"] and kind == "fake":
                raise DeviceError(state["broken"])
            if text not in ("0", "1"):
                raise DeviceError(f"device {kind}:{text} does not exist")
            state["opened"].append(kind)
            return Fake(kind, int(text))

        probe = lambda: state["adapters"] if kind == "webgpu" else []  # noqa: E731
        return kinds.Backend(kind, probe, open_)

    table = {k: backend(k) for k in ("cpu", "webgpu", "fake")}
    monkeypatch.setattr(kinds, "_builtin", lambda: table)
    monkeypatch.setattr(kinds, "_third_party", dict)
    return state


def test_auto_takes_the_hardware_gpu_and_says_so(world, capsys):
    assert registry.get("auto").kind == "fake"
    assert "device fake:0 (Fast GPU): the fastest real device" in capsys.readouterr().err
    registry.get("auto")
    assert capsys.readouterr().err == ""  # once


def test_auto_needs_no_stderr(world, monkeypatch):
    class Full:
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stderr", Full())
    assert registry.get("auto").kind == "fake"


def test_auto_never_takes_a_software_rasteriser(world, capsys):
    world["adapters"] = [SOFTWARE]
    assert registry.get("auto").kind == "cpu"
    assert "software rasteriser (llvmpipe)" in capsys.readouterr().err


def test_auto_passes_over_a_gpu_that_does_not_open(world, capsys):
    world["broken"] = "driver too old"
    assert registry.get("auto").kind == "cpu"
    assert "driver too old" in capsys.readouterr().err


def test_gpu_falls_back_with_a_warning(world, capsys):
    assert registry.get("gpu").kind == "fake"
    world["adapters"] = [SOFTWARE]
    assert registry.get("gpu").kind == "cpu"
    error = capsys.readouterr().err
    assert "warning: no GPU could be used" in error and "llvmpipe" in error
    with pytest.raises(DeviceError, match="gpu:3 does not exist"):
        registry.get("gpu:3")


def test_a_vendors_own_driver_comes_before_wgpu(world):
    """One GPU in two guises, and another one that only wgpu sees."""
    other = DeviceInfo("webgpu", 1, "Small GPU", True, extra={"native": "fake:1"})
    world["adapters"] = [HARDWARE, other]
    table = kinds._builtin()
    line, missing = DeviceInfo("hip", 0, "Fast GPU", True), DeviceInfo("cuda", 0, "", False, "none")
    opening = {"broken": ""}

    def open_(text):
        if opening["broken"]:
            raise DeviceError(opening["broken"])
        return Fake("hip", int(text))

    table["cuda"] = kinds.Backend("cuda", lambda: [missing], open_)
    table["hip"] = kinds.Backend("hip", lambda: [line], open_)
    assert registry.get("auto").info.id == registry.get("gpu").info.id == "hip:0"
    assert [registry.get(f"gpu:{n}").info.id for n in (1, 2)] == ["fake:1", "fake:0"]
    registry._open_devices.clear()
    opening["broken"] = "busy"
    assert registry.get("gpu").info.id == "fake:1"
    world["adapters"] = [HARDWARE]
    assert registry.get("auto").info.id == "fake:0"  # the same GPU through wgpu


def test_environment_variable(world, monkeypatch):
    assert registry.get(None).kind == "cpu"
    monkeypatch.setenv("WEFT_DEVICE", "fake:1")
    assert registry.get(None).info.id == "fake:1"
    assert registry.get("auto").info.id == "fake:1"
    assert registry.get("cpu").kind == "cpu"  # what is named wins
    monkeypatch.setenv("WEFT_DEVICE", "nonsense")
    with pytest.raises(DeviceError, match='unknown device "nonsense"'):
        registry.get(None)


def test_a_named_device_is_never_replaced_unless_asked(world, capsys):
    world["broken"] = "no driver; install one"
    with pytest.raises(DeviceError, match="no driver; install one"):
        registry.get("fake")
    assert registry.get("fake", fallback="cpu").kind == "cpu"
    assert "warning: no driver; install one; using cpu" in capsys.readouterr().err
    with pytest.raises(DeviceError, match="fallback"):
        registry.get("fake", fallback="vulkan")


def test_instances_are_shared_until_lost(world):
    first = registry.get("fake")
    assert registry.get("fake:0") is first and registry.get(first) is first
    first.lost = True  # as a wgpu device says of itself
    assert registry.get("fake") is not first


def test_unexpected_failures_become_device_errors(world, monkeypatch):
    def explode(_):
        raise OSError("libvulkan.so.1: cannot open")

    monkeypatch.setitem(kinds._builtin(), "fake", kinds.Backend("fake", list, explode))
    with pytest.raises(DeviceError, match="libvulkan"):
        registry.get("fake")


def test_devices_lists_every_kind_and_never_raises(monkeypatch):
    def explode():
        raise RuntimeError("bad driver")

    table = kinds._builtin()
    table["metal"] = kinds.Backend("metal", explode, table["metal"].open)
    monkeypatch.setattr(kinds, "_builtin", lambda: table)
    lines = registry.devices()
    listed = [line.kind for line in lines]
    for kind in ("cpu", "vulkan", "metal", "dx12", "webgpu", "cuda", "hip", "interp", "null"):
        assert kind in listed
    for line in lines:
        assert line.available or line.reason
    assert "bad driver" in next(x.reason for x in lines if x.kind == "metal")
    for kind in ("cuda", "hip"):
        line = next(x for x in lines if x.kind == kind)
        if not line.available:
            why = re.escape(f"{kind}:0 is not available: {line.reason}")
            with pytest.raises(DeviceError, match=why):
                registry.get(kind)


def test_bad_specs():
    with pytest.raises(DeviceError, match='unknown device "tpu"; use one of cpu'):
        registry.get("tpu")
    with pytest.raises(DeviceError, match="is not a number"):
        registry.get("vulkan:first")
    with pytest.raises(DeviceError, match="no preset"):
        registry.get("interp:tpu")
    assert registry.get("interp:hip-wave64").caps.subgroup == 64


def test_entry_points(monkeypatch):
    class Entry:
        name, value = "mine", "pkg:Mine"

        @staticmethod
        def load():
            return lambda index: Fake("mine", index)

    from importlib import metadata

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Entry])
    monkeypatch.setattr(registry, "_open_devices", {})
    assert registry.get("mine:1").info.id == "mine:1"
    assert any(line.kind == "mine" and line.available for line in registry.devices())


def _exits(*_):
    sys.exit(3)


def _interrupts(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (_exits, "SystemExit: 3"),
        (_interrupts, "KeyboardInterrupt"),
        (lambda: [7], "gave int, no DeviceInfo"),
        (lambda: 7, "TypeError"),
        (lambda: time.sleep(60), "no answer in 0.1 s"),
    ],
)
def test_a_plug_in_that_misbehaves_is_a_line(monkeypatch, probe, said):
    """It ends no list of devices, and holds none up."""
    opened = type("Plug", (), {"__call__": lambda self, i: None, "probe": lambda self: probe()})()
    entry = SimpleNamespace(name="mine", value="pkg:Mine", load=lambda: opened)
    from importlib import metadata

    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(plugins, "PATIENCE", 0.1)
    (line,) = (x for x in registry.devices() if x.kind == "mine")
    assert not line.available and said in line.reason


@pytest.mark.parametrize(
    ("opens", "said"),
    [(lambda i: None, "gave NoneType, no Device"), (_exits, "failed to open: SystemExit: 3")],
)
def test_a_plug_in_that_opens_no_device(monkeypatch, opens, said):
    entry = SimpleNamespace(name="mine", value="pkg:Mine", load=lambda: opens)
    from importlib import metadata

    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(registry, "_open_devices", {})
    with pytest.raises(DeviceError, match=said):
        registry.get("mine")


def test_the_cpu_path_imports_no_gpu_library():
    code = (
        "import sys; from weft.backends import registry; registry.drivers.may_have_gpu = bool\n"
        "from weft.core.errors import WeftError\n"
        "registry.get('interp'); registry._hardware(); print('wgpu' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_wgpu_missing_is_a_reason(monkeypatch):
    from weft.backends.wgpu import adapters

    adapters._adapters.cache_clear()
    monkeypatch.setitem(sys.modules, "wgpu", None)
    try:
        line = registry.probe("vulkan")[0]
        assert not line.available and "pip install wgpu" in line.reason
        with pytest.raises(DeviceError, match="pip install wgpu"):
            kinds._wgpu("vulkan").open("0")
    finally:
        adapters._adapters.cache_clear()


def test_no_vulkan_driver_is_a_reason():
    code = (
        "from weft.backends import registry\n"
        "print(registry.probe('vulkan')[0].reason)\n"
        "try: registry.get('vulkan')\n"
        "except Exception as e: print(type(e).__name__, e)"
    )
    import os

    env = os.environ | {"VK_ICD_FILENAMES": "/nonexistent.json", "VK_DRIVER_FILES": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    first, second = done.stdout.splitlines()
    assert "mesa-vulkan-drivers" in first and second.startswith("DeviceError")
