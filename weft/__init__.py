"""weft: write a tensor program or a transformer once; run the same Program on every device.

Names load when they are first used, so `import weft` costs next to nothing; which there are, and
where they live, says __init__.pyi alone. `weft.compile` is the function; the package of that name
is reached by `from weft.compile import ...`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from types import FunctionType, ModuleType

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.2.0"

_CALLING_BACK = ("checkpoint", "trace")  # users' own functions, whose errors are theirs


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """Public name -> its module, and its name there: what __init__.pyi exports (`import x as x`,
    and `x = y` of what it imports)."""
    import re

    stub = __loader__.get_data(f"{__file__}i").decode()  # also of a zipped installation
    found, private = {}, {}
    for module, names in re.findall(r"^from (\S+) import ([^(\n]+|\([^)]+\))", stub, re.M):
        for name, public in re.findall(r"(\w+)( as \w+)?", names):
            (found if public else private)[name] = (module, name)
    for name, value in re.findall(r"^(\w+) = (\w+)$", stub, re.M):
        found[name] = private[value]
    return found


_MADE = ("Edit", "Spec", "autocast")  # classes that users make


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_homes())
    home, attribute = _homes().get(name, (None, name))
    if home is None:
        from weft.core.missing import missing

        raise missing(__name__, name)
    if home == "weft":
        return import_module(f"weft.{attribute}")
    value = getattr(import_module(home), attribute)
    if isinstance(value, FunctionType) and name not in _CALLING_BACK:
        from weft.host.boundary import guarded

        value = guarded(value)
    elif isinstance(value, type) and name in _MADE:
        from weft.host.boundary import guard_calls

        guard_calls({name: value}, [name], deep=True)
    ModuleType.__setattr__(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return [*_homes(), "__version__"]


class _Package(ModuleType):
    """weft itself. Importing a submodule sets it as an attribute of its package. This module
    ignores it for public functions with a submodule's name (`weft.compile`, `weft.tensor`), so
    `weft.compile(fn)` works in any order of imports."""

    def __setattr__(self, name: str, value: Any) -> None:
        function = isinstance(value, ModuleType) and _homes().get(name, ("weft", ""))[0] != "weft"
        if not function:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
