"""The value inside a Tensor, and rules by which operands of different origin meet.

A Tensor holds one of three things: a NumPy array (eager on the CPU: the oracle), a DeviceArray
(eager on a device) or a graph Node (inside a traced function). While a function is traced, a Tensor
from outside that takes part in an op is captured: it becomes a named weight, or state once it is
assigned to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DeviceError, DTypeError, ShapeError, TraceError, UsageError
from weft.core.lines import user_line
from weft.graph.ir import Node, Shape
from weft.ops.batching import Batched
from weft.ops.primitive import innermost, is_wrapper, reads_values
from weft.ops.rules import axis_of
from weft.ops.tape import Tracked, plain, recording
from weft.program.array import DeviceArray
from weft.program.device import HOST
from weft.program.values import program_array
from weft.tensor import views
from weft.tensor.current import CURRENT as CURRENT

if TYPE_CHECKING:
    from weft.program.device import Device
    from weft.tensor.device import StateArray
    from weft.tensor.hooks import GradientHooks
    from weft.tensor.views import ViewRule

Value = Any  # np.ndarray, DeviceArray, Node, or Tracked or Batched around one of them
Number = bool | int | float
T = TypeVar("T", bound="TensorBase")


class Size(int):
    """A number of elements, NumPy's `size`, that is PyTorch's `size` if it is called."""

    _shape: tuple[int, ...]

    def __new__(cls, shape: tuple[int, ...]) -> Size:
        made = super().__new__(cls, math.prod(shape))
        made._shape = shape
        return made

    def __call__(self, dim: int | None = None) -> Any:
        """Returns the shape, or the size of the axis `dim`."""
        return self._shape if dim is None else self._shape[axis_of("size", dim, len(self._shape))]

    def __reduce__(self) -> Any:
        return int, (int(self),)


class TensorBase:
    """The value inside a Tensor and what is known of it without looking: shape, dtype, device."""

    __slots__ = (
        "__weakref__",
        "_grad",
        "_home",
        "_hooks",
        "_leaf",
        "_store",
        "_tape",
        "_value",
        "_view",
        "_views",
        "_weak",
        "name",
    )
    __array_ufunc__ = None  # NumPy arrays leave mixed expressions to Tensor

    def __init__(self, value: Value, name: str = "") -> None:
        if isinstance(value, TensorBase):
            value = value.value
        self._tape: Tracked | None = None  # the computation of the content, if it is recorded
        if isinstance(value, Tracked):
            self._tape, value = value, value.value
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if isinstance(value, np.ndarray):
            as_dtype(value.dtype)  # refuses dtypes that weft does not have
            if CURRENT.trace is not None:
                value = ops.as_node(program_array(value, "a constant"))  # of the Graph
        elif not isinstance(value, Node | DeviceArray) and not is_wrapper(value):
            raise UsageError(
                f"Tensor() wraps a NumPy array, not {type(value).__name__}; use weft.tensor(...)"
            )
        self._value = value
        self._view: ViewRule | None = None  # how the content follows from another tensor's
        self._views: dict[int, Any] | None = None  # weak references to this tensor's views
        self._home: StateArray | None = None  # a Program's state buffer that `_value` shows
        self._leaf = False  # True if a tape starts here
        self._hooks: GradientHooks | None = None  # what is called with a leaf's gradient
        self._grad: TensorBase | None = None
        self._store: TensorBase | None = None  # where compiled functions keep the gradient
        self._weak = False  # True for a Python number as a tensor: it may meet any device
        self.name = name

    @property
    def shape(self) -> Shape:
        """The size of each axis."""
        shape: Shape = self._value.shape
        return shape

    @property
    def dtype(self) -> DType:
        """The element type; in a trace, int32 for an outside int64."""
        known = as_dtype(self._value.dtype)
        return dt.int32 if known is dt.int64 and self._is_outside() else known

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Size:
        """The number of elements. Called, as in PyTorch, it gives the shape: size(), size(0)."""
        return Size(self.shape)

    @property
    def is_traced(self) -> bool:
        """True if this is a value of a function being traced (no content yet), or mapped."""
        return isinstance(self._value, Node) or is_wrapper(self._value)

    def _in_trace(self) -> bool:
        """True if this is a value of a trace."""
        if type(self._value) is np.ndarray:
            return False
        return isinstance(self._value, Node) or isinstance(innermost(self._value), Node)

    @property
    def device(self) -> str:
        """The place of the content: "cpu", "vulkan:0", ...; "traced" inside a traced function."""
        if (home := place(self)) is not None:
            return home.info.id
        return "traced" if self.is_traced else HOST

    # -- derivatives

    @property
    def requires_grad(self) -> bool:
        """True if computations from this tensor are recorded for differentiation."""
        if CURRENT.trace is not None and not self._in_trace():
            CURRENT.trace.facts.tensor(self)
        return self._leaf or self._tape is not None

    @property
    def grad(self) -> TensorBase | None:
        """The sum of the gradients that `backward` found for this leaf; None before."""
        if CURRENT.trace is not None:
            CURRENT.trace.reads_grad(self)
        return self._grad

    @grad.setter
    def grad(self, value: TensorBase | None) -> None:
        if value is not None and (value.shape != self.shape or value.dtype != self.dtype):
            raise ShapeError(f"grad: {value._known()} for {self._known()}")
        if CURRENT.trace is not None:
            CURRENT.trace.writes_grad(self)
        self._grad = value

    # -- the value

    @property
    def value(self) -> Value:
        """The operand for ops: while tracing, a Node (an outside tensor is captured); with a tape
        around it where gradients are recorded."""
        if self._view is not None and self._is_outside():
            return views.derived(self)
        if self._leaf and recording():
            return Tracked(self._plain(), owner=self)
        if self._tape is not None and recording(self._tape.level):
            if CURRENT.trace is None and self._in_trace():
                self._escaped()
            if CURRENT.trace is not None and not self._in_trace():
                raise TraceError(
                    f"{self._known()} was computed outside of the traced function from tensors "
                    "that require gradients; detach() it, or compute it inside"
                )
            return self._tape
        return self._plain()

    def _is_outside(self) -> bool:
        """True while a trace runs that this tensor does not belong to."""
        return CURRENT.trace is not None and not self._in_trace()

    def _plain(self) -> Value:
        trace = CURRENT.trace
        if self._view is not None and self._is_outside():
            return plain(views.derived(self))
        if self._in_trace():
            if trace is None:
                self._escaped()
            return self._value
        if trace is not None:
            return self._value if is_wrapper(self._value) else trace.capture(self)
        if self._home is not None and isinstance(self._value, np.ndarray):
            return self._value.copy()  # a view of it would change when the Program runs
        return self._value

    def _content(self) -> tuple[Any, int]:
        """Equal (in its parts, by identity) as long as nothing was written to the tensor."""
        if CURRENT.trace is not None:
            return self._plain(), 0
        content = self._value if self._home is None else self._home
        return content, getattr(content, "version", 0)

    def _escaped(self) -> NoReturn:
        made = innermost(self._value).where
        where = f" (made at {made})" if made else ""
        raise TraceError(
            f"a traced tensor {self._known()}{where} was used after its trace ended; "
            "return it from the traced function instead"
        )

    def _known(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"

    def _host(self, use: str) -> np.ndarray:
        """The content on the host, or TraceError saying that `use` needs a value."""
        reads_values()
        if isinstance(self._value, Batched):
            raise TraceError(
                f"{user_line() or 'mapped function'}: {use} needs the value of {self._known()}, "
                "which differs between the examples of a mapped function (vmap); choose with "
                "weft.where, or do this outside"
            )
        if is_wrapper(self._value):
            return self._wrap(self._value.value)._host(use)
        if CURRENT.trace is not None or isinstance(self._value, Node):
            raise TraceError(
                f"{user_line() or 'traced function'}: {use} needs the value of {self._known()}, "
                "but only shapes are known while tracing; choose with weft.where, or do this "
                "outside the traced function"
            )
        if isinstance(self._value, DeviceArray):
            return self._value.numpy()
        array: np.ndarray = self._value
        return array

    def _wrap(self, value: Value) -> Self:
        return type(self)(value)

    def _fresh(self) -> Self:
        """The same content and history in a tensor of its own: no write reaches the other."""
        out = self._wrap(self.value)
        out._weak = self._weak
        return out


def tensor_of(cls: type[TensorBase], array: np.ndarray) -> Any:
    """Returns the same as `cls(array)` for an array of one of weft's dtypes outside of traces, but
    faster."""
    made: Any = object.__new__(cls)
    made._value = array
    made._tape = made._home = made._grad = made._store = None
    made._view = made._views = made._hooks = None
    made._leaf = made._weak = False
    made.name = ""
    return made


def values(op: str, tensors: Sequence[TensorBase]) -> Any:
    """The operands for one op, all on one device; raises DeviceError naming two that differ."""
    found = [t.value for t in tensors]
    if CURRENT.trace is None:
        check_devices(op, tensors)
    return found


def check_devices(op: str, tensors: Sequence[TensorBase]) -> None:
    """Raises DeviceError unless all are in one place."""
    placed = [t for t in tensors if not t._weak]
    for t in placed[1:]:
        if place(t) is not place(first := placed[0]):
            raise DeviceError(
                f"{op}: {first._known()} is on {first.device} and {t._known()} on {t.device}; move "
                f'one with .to("{first.device}") or .to("{t.device}")'
            )


def place(t: TensorBase) -> Device | None:
    """The Device that holds the content; None for host memory."""
    if isinstance(t._value, DeviceArray):
        return t._value.device
    inside = innermost(t._value) if is_wrapper(t._value) else None
    return inside.device if isinstance(inside, DeviceArray) else None


def run(like: T, op: str, *tensors: TensorBase, **attrs: Any) -> T:
    """One primitive on tensors that already fit, as a tensor of `like`'s class; of numbers in
    disguise another."""
    out = like._wrap(ops.bind(op, *values(op, tensors), **attrs))
    out._weak = all(t._weak for t in tensors)
    return out


# -- promotion ----------------------------------------------------------------------------------


def scalar_dtype(op: str, number: Number, dtype: DType) -> DType:
    """The dtype of `number` (a weak Python scalar) with a tensor of `dtype`: the tensor's, unless
    the number is of a higher kind (then int32 or float32). Raises DTypeError when an integer does
    not fit."""
    if isinstance(number, bool):
        return dtype
    if isinstance(number, float):
        return dtype if dtype.is_float else dt.float32
    wanted = dt.int32 if dtype.kind == "bool" else dtype
    if wanted.is_int:
        info = np.iinfo(wanted.numpy)
        if not info.min <= number <= info.max:
            raise DTypeError(
                f"{op}: {number} does not fit {wanted.name} ({info.min}..{info.max}); cast the "
                "tensor to a wider dtype first"
            )
    return wanted


def default_float(dtype: DType) -> DType:
    """`dtype` when it is a float, else float32: what division and functions of reals return."""
    return dtype if dtype.is_float else dt.float32


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """The common shape under NumPy's broadcasting rules, or ShapeError."""
    if len(shapes) == 2 and shapes[0] == shapes[1]:
        return shapes[0]
    rank = max(len(s) for s in shapes)
    out = [1] * rank
    for s in shapes:
        for i, d in enumerate(s, rank - len(s)):
            if d != 1 and out[i] not in (1, d):
                given = " and ".join(str(list(s)) for s in shapes)
                raise ShapeError(
                    f"{op}: shapes {given} do not broadcast: axis {i - rank} has {out[i]} and {d}; "
                    "sizes must be equal or 1"
                )
            out[i] = d if out[i] == 1 else out[i]
    return tuple(out)
