"""Whether what the server is made of is installed; imported before any of it."""

from __future__ import annotations

import importlib.util

from weft.core.errors import UsageError

PACKAGES = ("uvicorn", "starlette", "msgspec", "prometheus_client", "llguidance")


def need() -> None:
    """Raises UsageError where the extra weft[serve] is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"serving needs {', '.join(missing)}; pip install 'weft[serve]'")
