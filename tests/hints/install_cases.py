"""Cases for the messages that say what to install, by hint_kit: each hides what is there."""

from __future__ import annotations

import importlib
import os
import types
from pathlib import Path
from typing import Any

from hint_kit import EMPTY, Case, Here, hint, refused

from weft.backends import drivers

Without = tuple[str, str, str, str, str, tuple[Any, ...]]
# The message's file and its command; the module that is missing; what then refuses: the module of a
# function, its name and its arguments.
WITHOUT: list[Without] = [
    ("importers/onnx/__init__.py", "pip install .[import]",
     "onnx", "weft.importers", "from_onnx", ("x.onnx",)),
    ("bench/size_picture.py", "pip install .[bench]",
     "matplotlib.figure", "weft.bench.size_picture", "figure", ()),
    ("training/report.py", "pip install .[train]",
     "matplotlib.figure", "weft.training.report", "draw_curve", ([], Path("x.png"))),
    ("training/report.py", "pip install .[{}]",
     "matplotlib.figure", "weft.training.report", "new_figure", ("a picture", "bench")),
    ("backends/wgpu/adapters.py", "pip install wgpu",
     "wgpu.backends.wgpu_native", "weft.backends.wgpu.adapters", "library", ()),
]  # fmt: skip


def _hiding(missing: str, module: str, name: str, given: tuple[Any, ...]) -> Case:
    def case(here: Here) -> str:
        asked = getattr(importlib.import_module(module), name)
        here.without(missing)
        return refused(asked, *given)

    return case


for _file, _command, _missing, _module, _name, _given in WITHOUT:
    hint(_file, _command)(_hiding(_missing, _module, _name, _given))


@hint("audio/sound.py", "pip install .[audio]")
def _(here: Here) -> str:
    from weft.audio.sound import open_sound

    here.without("soundfile")
    path = Path("talk.mp3")
    path.write_bytes(b"ID3 and more bytes")
    return refused(open_sound, path)


@hint("cli/netron.py", "pip install .[import]")
def _(here: Here) -> str:
    path = here.decoder()
    here.without("onnx")
    return here.said("explain", path, "--onnx", "o.onnx", status=2)


@hint("bench/side_by_side.py", "pip install .[bench]")
def _(here: Here) -> str:
    here.without("matplotlib.figure")
    return here.said("bench", "ops", "--sizes", "128", "--plot", "p.png", status=2)


@hint("cli/listening.py", "pip install .[serve]")
def _(here: Here) -> str:
    from weft.cli import listening

    here.patch.setattr(listening, "PACKAGES", ("nosuch_package",))
    return here.said("serve", here.decoder(), "--port", "0", status=2)


@hint("serve/batches/upload.py", "pip install .[serve]")
def _(here: Here) -> str:
    from weft.serve import forms

    here.patch.setattr(forms, "PACKAGE", "nosuch_package")
    return here.said("serve", here.decoder(), "--port", "0", "--batch-folder", "b", status=2)


@hint("serve/tracing.py", "pip install .[otel]")
def _(here: Here) -> str:
    from weft.serve import tracing

    here.patch.setattr(tracing, "PACKAGES", ("nosuch_package",))
    return here.said("serve", here.decoder(), "--port", "0", "--traces", status=2)


@hint("models/run/constraints.py", "pip install .[serve]")
def _(here: Here) -> str:
    from weft.models.run.constraints import grammars_of

    here.without("llguidance")
    return refused(grammars_of, None)


@hint("backends/drivers.py", "pip install llvmlite")
def _(here: Here) -> str:
    here.without("llvmlite")
    return drivers.probe_cpu()[0].reason


@hint("backends/cpu/host.py", "pip install llvmlite")
def _(here: Here) -> str:
    from weft.backends.cpu import host

    here.patch.setattr(host.importlib.util, "find_spec", lambda name: None)
    return refused(host._fingerprint)


@hint("backends/drivers.py", "pip install .[cuda]")
def _(here: Here) -> str:
    driver = types.SimpleNamespace(cuDriverGetVersion=lambda pointer: 1)
    here.patch.setattr(drivers, "_found", lambda module: False)
    here.patch.setattr(drivers, "_open_first", lambda names: driver)
    return drivers.probe_cuda()[0].reason


@hint("backends/drivers.py", "pip install .[hip]")
def _(here: Here) -> str:
    """With the runtime, with the driver alone, with neither."""
    here.patch.setattr(drivers, "_found", lambda module: False)
    said = []
    for library, kernel in ((EMPTY, True), (None, True), (None, False)):
        here.patch.setattr(drivers, "_open_first", lambda names, found=library: found)
        here.patch.setattr(drivers.os.path, "exists", lambda path, found=kernel: found)
        said.append(drivers.probe_hip()[0].reason)
    assert len({*said}) == 3 and all(line.endswith("[hip]'") for line in said)
    here.patch.setattr(drivers.os.path, "exists", os.path.lexists)
    return said[0]


@hint("backends/gpu/api.py", "pip install .[{}]")
def _(here: Here) -> str:
    from weft.backends.cuda import CudaApi

    here.without(CudaApi.module_name)
    return refused(CudaApi)


@hint("backends/gpu/blas_api.py", "pip install nvidia-cublas")
def _(here: Here) -> str:
    from weft.backends.gpu import blas_api

    made = blas_api.Vendor(**{
        **{f: getattr(blas_api.CUBLASLT, f) for f in blas_api.CUBLASLT.__dataclass_fields__},
        "prefix": "noSuchBlas", "files": ("libnosuchblas.so",),
    })  # fmt: skip
    return refused(blas_api.find, made)


@hint("backends/llvm/ptxas.py", "pip install nvidia-cuda-nvcc-cu12")
def _(here: Here) -> str:
    from weft.backends.llvm import ptxas

    here.patch.setattr(ptxas, "find", lambda: None)
    return refused(ptxas.assemble, "", "sm_80")


@hint("backends/wgpu/adapters.py", "apt install libvulkan1 mesa-vulkan-drivers")
def _(here: Here) -> str:
    from weft.backends.wgpu import adapters

    return " ".join(adapters._INSTALL.values())


@hint("backends/emulated/build.py", "apt install {}")
def _(here: Here) -> str:
    from weft.backends.emulated import build
    from weft.backends.emulated.machines import MACHINES

    here.patch.setattr(build.shutil, "which", lambda tool: None)
    return build.missing(next(iter(MACHINES.values())))


@hint("backends/emulated/build.py", "apt install lld")
def _(here: Here) -> str:
    from weft.backends.emulated import build

    here.patch.setattr(build, "LINKER", "/nosuch/linker")
    return refused(build.linked, [b""], [])
