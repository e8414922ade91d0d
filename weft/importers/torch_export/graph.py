"""An exported program as both readers give it: PyTorch's calls by name, nothing of PyTorch's own.

Arguments are Refs, numbers, strings, weft's dtypes, None, lists of them, and Bodies (the graphs of
higher-order operators).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError
from weft.importers.ports import Port

# PyTorch's dtypes that have one here; its 64-bit integers are int32
DTYPES: dict[str, DType] = {
    "bool": dt.bool_, "uint8": dt.uint8, "int8": dt.int8, "int32": dt.int32, "uint32": dt.uint32,
    "int64": dt.int32, "float16": dt.float16, "bfloat16": dt.bfloat16, "float32": dt.float32,
    "float64": dt.float64,
}  # fmt: skip
# keyword arguments about the place and layout of values, which weft chooses
PLACEMENT = frozenset(("device", "layout", "pin_memory", "memory_format", "non_blocking",
                       "generator", "requires_grad"))  # fmt: skip


@dataclass(slots=True)
class CallNode:
    """One node: `target` is "aten.add.Tensor", "_operator.mul" or "higher_order.cond"; `out` its
    name, a tuple of the names of its results, or "" where it has none."""

    target: str
    args: list[Any]
    kwargs: dict[str, Any]
    out: str | tuple[str, ...]
    where: str = ""


@dataclass(slots=True)
class CallSequence:
    """Calls in order, from values named `inputs` to `outputs` (Refs and constants)."""

    inputs: list[str]
    calls: list[CallNode]
    outputs: list[Any]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A parameter, buffer or constant of the program: the value that represents it, its dotted
    name, and flags: it is a parameter, the state dict has it."""

    value: str
    dotted: str
    parameter: bool
    persistent: bool


@dataclass(slots=True)
class ExportedProgram:
    """A whole exported program. `results` are the values of the user's outputs in order, nested as
    `out_tree` says; `writes` (dotted name of a buffer, value). Trees are PyTorch's: {"type":
    name or None of a leaf, "context": ..., "children_spec": [...]}."""

    name: str
    body: CallSequence
    inputs: list[Port]
    held: list[StoredTensor]
    results: list[Any]
    writes: list[tuple[str, Any]]
    in_tree: Mapping[str, Any]
    out_tree: Mapping[str, Any]
    bounds: dict[str, tuple[int, int | None]]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)  # dotted name -> the first of its storage
    frozen: set[str] = field(default_factory=set)  # parameters that are not trained
    argument_names: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)  # tensors of the file that it does not name


def dtype_of(name: str) -> DType:
    """The dtype for PyTorch's "float32" or "torch.float32". Raises DTypeError for another."""
    found = DTYPES.get(name.removeprefix("torch."))
    if found is None:
        raise DTypeError(f"weft lacks PyTorch's {name}; cast the tensor before the export")
    return found


def place_of(stack_trace: str | None, module_stack: str = "") -> str:
    """The place in the user's code at which a node was made: "layers.0.attention (model.py:12)"."""
    found = re.findall(r'File "([^"\n]*)", line (\d+)', stack_trace or "")
    line = ""
    if found:
        path, number = found[-1]
        file = path.replace("\\", "/").rpartition("/")[2]
        line = f"{file}:{number}"
    return f"{module_stack} ({line})" if module_stack and line else module_stack or line


def bounds_of(least: int | None, most: int | None) -> tuple[int, int | None]:
    """A size's bounds. PyTorch assumes sizes of at least 2 if it is not told otherwise, and runs 1
    as well, so a least of 2 is 1 here."""
    low = 0 if least is None else int(least)
    return (1 if low == 2 else low), None if most is None else int(most)
