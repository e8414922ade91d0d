"""Eager ops on a device: each runs a one-op Program from a cache; memory stays on the device."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft import ops
from weft.backends import registry
from weft.core import dtypes as dt
from weft.core.dtypes import as_dtype
from weft.core.errors import DTypeError, LimitError
from weft.graph.ir import Graph, results
from weft.host.forks import lock_of
from weft.ops.primitive import PRIMITIVES, Aval, aval, register_listener
from weft.program.arena import Arena
from weft.program.array import DeviceArray
from weft.program.device import HOST, Device
from weft.program.program import Program
from weft.program.session import Session

CACHE = 512  # one-op Programs kept
SMALL = 1 << 20  # bytes of operands and result up to which a one-op Session is kept
_EDGE = {dt.int64: "int32", dt.int16: "int32", dt.uint16: "int32", dt.uint64: "uint32"}


def open_device(target: Any) -> Device | None:
    """The Device meant by a name or a Device; None for the CPU, whose eager tensors live in NumPy.
    Raises DeviceError for one that is missing."""
    if isinstance(target, str) and target.strip().lower() in (HOST, f"{HOST}:0"):
        return None
    device = registry.get(target)
    return None if device.is_host else device


class _Alias(DeviceArray):
    """Another shape of an array's memory; it keeps the array alive, so its buffer is not reused."""

    __slots__ = ("owner",)

    def __init__(self, owner: DeviceArray, shape: tuple[int, ...]):
        super().__init__(owner.buffer, shape, owner.dtype)
        self.owner = owner


class StateArray(DeviceArray):
    """A Program's state: its content changes when the Program runs, so nothing may alias it; a tape
    that holds it compares `version`, how often it was written."""

    __slots__ = ("name", "version")

    def __init__(self, plain: DeviceArray, name: str):
        super().__init__(plain.buffer, plain.shape, plain.dtype)
        self.name = name
        self.version = 0

    def __repr__(self) -> str:
        return f"{self.name!r} {self.dtype.name}{list(self.shape)}"


def check_dtype(dtype: dt.DType, device: Device, what: str = "") -> None:
    """Raises DTypeError, saying what to cast to, for a dtype that the device cannot hold. The
    message starts with `what`."""
    if not device.supports(dtype):
        other = _EDGE.get(dtype, "float32")
        raise DTypeError(
            f'{what}{device.info.id} cannot hold {dtype.name}; cast first: .astype("{other}")'
        )


def upload(device: Device, array: np.ndarray) -> DeviceArray:
    """A copy of a host array on the device. Raises DTypeError, LimitError, OutOfMemoryError."""
    dtype = as_dtype(array.dtype)
    check_dtype(dtype, device)
    if array.nbytes > device.caps.max_buffer_bytes:
        raise LimitError(
            f"a tensor of {array.nbytes} bytes is over the limit of {device.info.id}: "
            f"{device.caps.max_buffer_bytes} bytes per buffer; split the tensor"
        )
    buffer = device.alloc(array.nbytes)
    if array.nbytes:
        device.write(buffer, np.ascontiguousarray(array))
    return DeviceArray(buffer, array.shape, dtype)


class DeviceListener:
    """Runs a bound op on the device of its operands.

    A Session keeps buffers for its inputs and output, so only Sessions of small ops are cached. For
    a large op the listener caches the Program and binds its operands as weights, without a copy.
    """

    def __init__(self) -> None:
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._sessions: OrderedDict[Any, Session] = OrderedDict()
        self._arenas: dict[Device, Arena] = {}
        self._lock = lock_of(self)  # Sessions and the arena are shared: one op at a time

    def forget(self) -> None:
        """Drops what was compiled: the next op compiles again."""
        with self._lock:
            self._programs.clear()
            self._sessions.clear()

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        avals = tuple(aval(x) for x in inputs)
        out = PRIMITIVES[op].abstract(*avals, **attrs)
        with self._lock:
            if isinstance(out, tuple):
                return tuple(self._bind(op, inputs, attrs, avals, out))
            return self._bind(op, inputs, attrs, avals, (out,))[0]

    def _bind(
        self,
        op: str,
        inputs: tuple[Any, ...],
        attrs: Mapping[str, Any],
        avals: tuple[Aval, ...],
        outs: tuple[Aval, ...],
    ) -> Sequence[DeviceArray]:
        device = next(x.device for x in inputs if isinstance(x, DeviceArray))
        for out in outs:
            check_dtype(out.dtype, device)
        if all(0 in out.shape for out in outs):
            return [DeviceArray(device.alloc(0), out.shape, out.dtype) for out in outs]
        if op == "reshape" and not isinstance(inputs[0], StateArray):
            return [_Alias(inputs[0], outs[0].shape)]
        splats = tuple(_is_splat(x) for x in inputs)
        operands = [_on_device(device, x, splat) for x, splat in zip(inputs, splats)]
        given = sum(math.prod(out.shape) * out.dtype.itemsize for out in outs)
        small = sum(x.nbytes for x in operands) + given <= SMALL
        key = (device, op, _freeze(attrs), avals, splats, small)
        session = self._sessions.get(key) if small else None
        if session is not None:
            self._sessions.move_to_end(key)
            return session.run_device(operands)
        program = self._programs.get(key)
        if program is None:
            role = "input" if small else "weight"
            program = one_op(device, op, attrs, avals, splats, role)
            _remember(self._programs, key, program)
        arena = self._arenas.setdefault(device, Arena(device))
        if not small:
            weights = {f"x{i}": x for i, x in enumerate(operands)}
            return Session(program, device, weights, arena=Arena(device)).run_device()
        session = Session(program, device, arena=arena)
        _remember(self._sessions, key, session)
        return session.run_device(operands)


def _remember(cache: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    cache[key] = value
    if len(cache) > CACHE:
        cache.popitem(last=False)


def _on_device(device: Device, x: Any, splat: bool) -> DeviceArray:
    """An operand as a device array; of a repeated number, just the number."""
    if isinstance(x, DeviceArray):
        return x
    return upload(device, x[(0,) * x.ndim] if splat else x)


def one_op(
    device: Device,
    op: str,
    attrs: Mapping[str, Any],
    avals: tuple[Aval, ...],
    splats: tuple[bool, ...],
    role: str,
) -> Program:
    """The Program of one op; of operands in `splats` it takes just the number."""
    from weft.compile import compile_graph

    nodes, operands = [], []
    for i, (a, splat) in enumerate(zip(avals, splats)):
        node = ops.input_node(f"x{i}", () if splat else a.shape, a.dtype, role)
        nodes.append(node)
        operands.append(ops.broadcast(node, a.shape) if splat else node)
    out = ops.make_node(op, tuple(operands), dict(attrs), "")
    name = str(attrs["name"]) if op == "call" else op
    return compile_graph(Graph(tuple(nodes), results(out), name=name), device.caps, name)


def _is_splat(x: Any) -> bool:
    """True if a host operand is one number repeated (a Python scalar that was broadcast)."""
    return isinstance(x, np.ndarray) and not any(x.strides) and x.size > 0


def _freeze(value: Any) -> Any:
    """Attributes as a hashable key."""
    if isinstance(value, Mapping):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value


DEVICES = DeviceListener()
register_listener(DeviceArray, DEVICES)
register_listener(_Alias, DEVICES)
register_listener(StateArray, DEVICES)
