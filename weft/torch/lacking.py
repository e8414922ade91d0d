"""The parts of PyTorch that weft.torch lacks as a whole. Scripts import them at their top and use
them behind an option, so they import here too, and a use of one says what weft has instead."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping
from typing import Any, NoReturn

from weft.core.errors import UsageError

# Parts of PyTorch, and what to use.
PARTS: Mapping[str, str] = {
    "torch.ao": "weft.quantize.imported packs weights",
    "torch.ao.quantization": "weft.quantize.imported packs weights",
    "torch.distributed": "several ranks are started from the command line",
    "torch.distributed.fsdp": "several ranks are started from the command line",
    "torch.export": "weft.importers.from_torch reads exported programs",
    "torch.fft": "weft has no complex numbers",
    "torch.fx": "weft.compile traces functions",
    "torch.jit": "weft.compile",
    "torch.multiprocessing": "Python's own multiprocessing",
    "torch.onnx": "weft.importers reads ONNX; weft does not write it",
    "torch.profiler": "the option --profile of run and bench",
    "torch.quantization": "weft.quantize.imported packs weights",
    "torch.sparse": "weft has no sparse tensors",
    "torch.utils.cpp_extension": "weft.kernel is for kernels of one's own",
    "torch.utils.tensorboard": "it needs PyTorch",
}
# What scripts ask before they use a part, as PyTorch answers where it was built without it.
_ANSWERS = {"torch.distributed": ("is_available", "is_initialized")}


def _refuse(path: str, name: str) -> NoReturn:
    raise UsageError(f"{path}.{name}: weft lacks this part of PyTorch ({PARTS[path]})")


class Absent(type):
    """The class of names that a part would have. One is a class, which no object is of, so that
    `isinstance` and annotations work. A call or an attribute of it raises UsageError."""

    path = ""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(cls.path, cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name == "kind":
            raise AttributeError(name)
        _refuse(cls.path, f"{cls.__name__}.{name}")


class Lacking(types.ModuleType):
    """A part of PyTorch without its names."""

    kind = None  # asked of every value of a namespace

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = self.__name__.partition(".")[2]
        if name in _ANSWERS.get(path, ()):
            return lambda: False
        return Absent(name, (), {"path": path})


def offer() -> None:
    """Makes the parts importable, and attributes of their packages."""
    for path, instead in PARTS.items():
        package, _, name = f"weft.{path}".rpartition(".")
        module = Lacking(f"weft.{path}", f"weft lacks {path}: {instead}.")
        sys.modules.setdefault(module.__name__, module)
        setattr(importlib.import_module(package), name, module)
