"""The check that the server's packages are installed; it is imported before any of them."""

from __future__ import annotations

import importlib.util

from weft.core.errors import UsageError
from weft.core.install import how

PACKAGES = ("uvicorn", "starlette", "msgspec", "prometheus_client", "llguidance")


def need() -> None:
    """Raises UsageError where a package of the extra `serve` is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"serving needs {', '.join(missing)}: {how('serve')}")
