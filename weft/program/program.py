"""Program: the compiled form that every device runs. Data only; running it needs no compiler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np

from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.kernel.ir import Kernel
from weft.program.formula import Formula
from weft.program.gemm import Gemm
from weft.program.recipe import Recipe

BufferRole = Literal["input", "output", "state", "weight", "const", "arena"]


@dataclass(frozen=True, slots=True, eq=False)
class BufferSpec:
    """One buffer of a Program. `nbytes` is the allocation; shape and dtype describe its content
    (the arena is uint8). A "const" carries its `value`."""

    name: str
    role: BufferRole
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    value: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class BufferRef:
    """`nbytes` of buffer number `buffer`, from byte `offset` (a multiple of 256 in the arena)."""

    buffer: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run kernel number `kernel` with `args`, one per Kernel.buffers entry, in order."""

    kernel: int
    args: tuple[BufferRef, ...]
    label: str = ""  # graph ops that it computes, for reports


@dataclass(frozen=True, slots=True)
class Library(Dispatch):
    """A Dispatch whose result is also a matrix product. A device with its vendor's library may let
    it compute `gemm` of `args`; any other device runs the kernel."""

    gemm: Gemm = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Copy:
    src: BufferRef
    dst: BufferRef
    label: str = ""


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill with a repeated byte."""

    dst: BufferRef
    byte: int = 0
    label: str = ""


Step = Dispatch | Copy | Fill


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Buffers, kernels and steps, in execution order. `scalars` names the slots of the scalar
    buffer (int32). `inputs` and `outputs` are buffer numbers in call order (an input that is a
    runtime scalar is not a buffer: see `scalars`)."""

    name: str
    buffers: tuple[BufferSpec, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    scalars: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = (
            f"{len(self.kernels)} kernels, {len(self.steps)} steps, {len(self.buffers)} buffers"
        )
        return f"Program({self.name!r}, {counts})"

    @property
    def scalar_ranges(self) -> dict[str, tuple[int, int]]:
        """Runtime scalars that count rows of inputs -> (0, the most rows that such an input has).
        All others may be any int32."""
        shapes = {self.buffers[i].name: self.buffers[i].shape for i in self.inputs}
        found: dict[str, tuple[int, int]] = {}
        for name, scalar in self.meta.get("rows", {}).items():
            found[scalar] = (0, max(shapes[name][0], found.get(scalar, (0, 0))[1]))
        return found

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        """The recipes of weight buffers that do not hold a weight unchanged, by buffer name."""
        found: Mapping[str, Recipe] = self.meta.get("recipes", {})
        return found

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """Names of weight buffers -> how they are worked out from weights."""
        found: Mapping[str, Formula] = self.meta.get("formulas", {})
        return found

    def sources(self, buffer: str) -> tuple[str, ...]:
        """Returns the weights that make up the weight buffer of this name: often itself."""
        if buffer in self.formulas:
            return self.formulas[buffer].names
        return (self.recipes[buffer].whole if buffer in self.recipes else buffer,)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a zip file (or into an existing folder); see weft.program.serial."""
        from weft.program import serial

        serial.save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Program:
        """Reads what `save` wrote. Raises FileFormatError for anything else."""
        from weft.program import serial

        return serial.load(path)
