"""Modules of weft.kernel, imported when the first kernel is written, not with every tensor."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.kernel import division as division, math

    km = math
else:

    class _Lazy:
        def __init__(self, module: str) -> None:
            self.module = module

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.module), name)

    km = _Lazy("weft.kernel.math")
    division = _Lazy("weft.kernel.division")
