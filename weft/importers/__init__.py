"""Foreign files in, weights and graphs out: `weft.importers.from_onnx` and `from_torch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.importers.onnx import from_onnx
    from weft.importers.torch_export.load import from_torch

_HOMES = {"from_onnx": "onnx", "from_torch": "torch_export.load"}
__all__ = ["from_onnx", "from_torch"]


def __getattr__(name: str) -> Any:
    """Readers load when they are first used: most of this package needs none of them."""
    from importlib import import_module

    if name not in _HOMES:
        from weft.core.missing import missing

        raise missing(__name__, name)
    return getattr(import_module(f"weft.importers.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
