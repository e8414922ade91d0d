"""torch.ops.aten: ATen's operators by name and overload, as imported graphs use them."""

from __future__ import annotations

import inspect
from typing import Any

from weft.core.errors import CallError
from weft.importers.aten import TABLE
from weft.torch.tensor import public


class Operator:
    """An operator: a call takes the first overload that fits, `operator.overload` names one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, overload: str) -> Any:
        found = TABLE.get(f"aten.{self._name}.{overload}")
        if found is None:
            raise AttributeError(f"ops.aten.{self._name} lacks overload {overload!r}")
        return public(found.run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for target, rule in TABLE.items():
            if target.startswith(f"aten.{self._name}."):
                try:
                    inspect.signature(rule.run).bind(*args, **kwargs)
                except TypeError:
                    continue
                return public(rule.run)(*args, **kwargs)
        raise CallError(f"ops.aten.{self._name}: no overload takes these arguments")


class _Aten:
    """The operators by name."""

    def __getattr__(self, name: str) -> Operator:
        if not any(target.startswith(f"aten.{name}.") for target in TABLE):
            raise AttributeError(f"ops.aten lacks operator {name!r}")
        return Operator(name)


aten = _Aten()
