"""Memory as the kernel language sees it: arguments, outputs and local arrays with their shapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.kernel import expr as kb, ir
from weft.kernel.ir import BOOL, I32, Expr, Type
from weft.kernel.values import COMPUTED, Operand, Value, operand

if TYPE_CHECKING:
    from weft.kernel.language import KernelWriter

LANES = (1, 2, 4)


class Memory:
    """An argument, an output, or an array of the group ("shared") or of the thread ("private").

    `x[i, j]` reads an element, with an index for each axis; `x[i, j] = value` writes one. `x.flat`
    is the same memory with one axis. Narrow numbers become float32 or int32 when they are read, and
    are cast back when they are stored.
    """

    __slots__ = ("_source", "shape", "writer")

    def __init__(
        self, writer: KernelWriter, source: ir.Buffer | ir.Array, shape: tuple[int, ...]
    ) -> None:
        self.writer, self._source, self.shape = writer, source, shape

    @property
    def dtype(self) -> DType:
        """The dtype of the elements in memory."""
        return self._source.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def flat(self) -> Memory:
        """The same memory with one axis, row-major."""
        return Memory(self.writer, self._source, (self.size,))

    def load(self, index: Any, mask: Any = None, lanes: int = 1) -> Value:
        """The element at `index` (a value or a tuple of them). With `lanes` 2 or 4: as many
        consecutive elements of the last axis. Where `mask` is False nothing is read and the value
        is 0."""
        source = self._source
        if isinstance(source, ir.Buffer) and source.access == "w":
            raise UsageError(
                f"{source.name} is an output, which a kernel only writes: keep the value, or use "
                "k.shared(...)"
            )
        if lanes not in LANES:
            raise UsageError(f"lanes={lanes!r}; expected 1, 2 or 4")
        where = self._mask(mask, lanes)
        found = kb.load(source, self._address(index), lanes, where)
        wide = _widened(source.dtype)
        return Value(self.writer, self.writer.builder.let(kb.cast(found, wide), "element"))

    def store(self, index: Any, value: Operand, mask: Any = None) -> None:
        """Writes `value` at `index`; the lanes of a value go to consecutive elements. Where `mask`
        is False nothing is written."""
        target = self._source
        if isinstance(target, ir.Buffer) and target.access == "r":
            raise UsageError(f"{target.name} is an argument, which a kernel only reads")
        wide = _widened(target.dtype)
        stored = operand(value, Type(wide))
        if stored.type.dtype is not wide:
            raise DTypeError(
                f"{target.name} takes {wide.name}, not {stored.type.dtype.name}: cast the value"
            )
        at, where = self._address(index), self._mask(mask, stored.type.lanes)
        b = self.writer.builder
        b.store(target, at, kb.cast(stored, target.dtype), where)

    def __getitem__(self, index: Any) -> Value:
        return self.load(index)

    def __setitem__(self, index: Any, value: Operand) -> None:
        self.store(index, value)

    def __iter__(self) -> Any:
        raise UsageError(f"{self!r}: use `with k.loop({self.shape[0] if self.shape else 1}) as i:`")

    def __repr__(self) -> str:
        return f"<{self._source.name}: {self.dtype.name}{list(self.shape)} of a kernel>"

    def _mask(self, mask: Any, lanes: int) -> Expr | None:
        if mask is None:
            return None
        return kb.splat(condition(mask), lanes)

    def _address(self, index: Any) -> Expr:
        """The place of an element, row-major."""
        at = index if isinstance(index, tuple) else (index,)
        if len(at) != self.ndim:
            raise ShapeError(
                f"{self!r} takes an index for each of its {self.ndim} axes, got {len(at)}; "
                "x.flat[i] counts all elements"
            )
        place: Expr = kb.const(0)
        stride = self.size
        for axis, (i, n) in enumerate(zip(at, self.shape)):
            stride = stride // n if n else 0
            if isinstance(i, int) and not isinstance(i, bool) and not 0 <= i < n:
                raise ShapeError(f"{self!r}: index {i} of axis {axis} is out of range")
            if not isinstance(i, Value | int):
                raise UsageError(f"{self!r}: an index is an integer, not {i!r}")
            part = operand(i, I32)
            if part.type != I32:
                raise DTypeError(f"{self!r}: an index is a plain int32, not {i!r}; cast the index")
            place = kb.binary("add", place, kb.binary("mul", part, stride))
        return place


def _widened(dtype: DType) -> DType:
    """The dtype in which a kernel computes with elements of `dtype`."""
    return dt.float32 if dtype.is_float else dtype if dtype in COMPUTED else dt.int32


def condition(value: Operand) -> Expr:
    """A condition's expression. Raises DTypeError for anything but bool."""
    found = operand(value, BOOL) if isinstance(value, Value | bool) else None
    if found is None or found.type.dtype is not dt.bool_:
        raise DTypeError(f"a condition is a comparison, not {value!r}")
    return found
