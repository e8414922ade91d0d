"""weft.kernel.math, imported when the first kernel is written rather than with every tensor."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


class _Math:
    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(import_module("weft.kernel.math"), name)


km = _Math()
