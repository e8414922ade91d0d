"""The table of ONNX's operators, and the node as an operator's function sees it.

A value known on the host (shapes, axes, constants) is a NumPy array and is computed at once with
NumPy. A value that a device computes is a Tensor. An optional input that is left out is None, and
ONNX's sequence is a list. A rule says which operands its function wants on the host, and if it
works for arrays of either kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import weft
from weft.core.dtypes import DType
from weft.core.errors import FileFormatError
from weft.tensor.core import Tensor

Value = Any  # np.ndarray, Tensor, None, or a list of them
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Rule:
    """The way to run an operator. `host` numbers the operands that are wanted as NumPy arrays (-1:
    all). `either`: the function computes with NumPy when all other operands are on the host. `raw`:
    it takes the others unconverted."""

    fn: Callable[..., Any]
    host: tuple[int, ...] = ()
    either: bool = False
    raw: bool = False


TABLE: dict[tuple[str, str], Rule] = {}  # (domain, operator) -> its rule


def op(
    *names: str, domain: str = "", host: tuple[int, ...] = (), either: bool = False,
    raw: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Puts a function (call, *operands) -> value or tuple of values into the table."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert (domain, name) not in TABLE, name
            TABLE[domain, name] = Rule(fn, host, either, raw)
        return fn

    return decorate


def rows(
    table: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]], domain: str = ""
) -> None:
    """Puts operators into the table that are functions of weft's: of the operands, and of the
    attributes in their order, each with its default."""
    for name, (function, attributes) in table.items():

        def run(call: NodeCall, *xs: Value, f: Any = function, given: Any = attributes) -> Value:
            return f(*xs, *(call.get(key, default) for key, default in given.items()))

        op(name, domain=domain)(run)


class Looks(Protocol):
    """The run in progress, as operators need it."""

    def demand(self, x: Value, why: str) -> np.ndarray: ...

    def lift(self, x: Value) -> Any: ...

    def alone(self, why: str) -> None: ...

    def spend(self, nodes: int) -> None: ...

    def device_dtype(self, dtype: np.dtype) -> DType: ...

    def subgraph(self, graph: Any, frame: Any, values: list[Value]) -> list[Value]: ...


@dataclass
class NodeCall:
    """One node as it runs: its operator, attributes, opset, and how many outputs are wanted."""

    op: str
    attrs: Mapping[str, Any]
    version: int
    outputs: tuple[str, ...]
    run: Looks
    frame: Any
    domain: str = ""

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default if the node leaves it out."""
        return self.attrs.get(name, default)

    def need(self, name: str) -> Any:
        """An attribute that every such node has. Raises FileFormatError for one without."""
        if name not in self.attrs:
            raise FileFormatError(f"the attribute {name!r} is missing")
        return self.attrs[name]

    def wants(self, index: int) -> bool:
        """True if output `index` is used."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def host(self, x: Value, why: str) -> np.ndarray:
        """A value on the host; if it is not known there yet, the run is split differently and
        starts again."""
        return self.run.demand(x, f"{why} of {self.op}")

    def tensor(self, x: Value) -> Tensor:
        """A value as a Tensor."""
        made: Tensor = self.run.lift(x)
        return made


def is_host(x: Value) -> bool:
    """True if a value is known on the host."""
    return isinstance(x, np.ndarray)


def lib(*values: Value) -> Any:
    """The namespace (NumPy's or weft's) that computes with these values."""
    return np if all(isinstance(v, np.ndarray) for v in values if v is not None) else weft


def ints(x: Any) -> tuple[int, ...]:
    """A host array, or an attribute, as Python integers."""
    return tuple(int(i) for i in np.asarray(x).reshape(-1))


def scalar(x: np.ndarray) -> Any:
    """The only element of a host array. Raises FileFormatError for more than one."""
    if x.size != 1:
        raise FileFormatError(f"{list(x.shape)} where one number is expected")
    return x.reshape(()).item()
