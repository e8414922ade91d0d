"""Eager ops on a device: each runs a one-op Program from a cache; memory stays on the device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft import ops
from weft.backends import registry
from weft.backends.base import Device
from weft.core import dtypes as dt
from weft.core.dtypes import as_dtype
from weft.core.errors import DTypeError, LimitError
from weft.graph.ir import Graph, Node
from weft.ops.primitive import PRIMITIVES, Aval, aval, register_listener
from weft.program.array import DeviceArray
from weft.program.session import Arena, Session

CACHE = 512  # one-op Programs kept
_EDGE = {dt.int64: "int32", dt.float64: "float32"}


def open_device(target: Any) -> Device | None:
    """The Device meant by a name or a Device; None for the CPU, whose eager tensors live in NumPy.
    Raises DeviceError for one that is missing."""
    if isinstance(target, str) and target.strip().lower() in ("cpu", "cpu:0"):
        return None
    device = registry.get(target)
    return None if device.kind == "cpu" else device


class _Alias(DeviceArray):
    """Another shape of an array's memory; it keeps the array alive, so its buffer is not reused."""

    __slots__ = ("owner",)

    def __init__(self, owner: DeviceArray, shape: tuple[int, ...]):
        super().__init__(owner.buffer, shape, owner.dtype)
        self.owner = owner


class StateArray(DeviceArray):
    """A Program's state: its content changes when the Program runs, so nothing may alias it."""

    __slots__ = ()


def check_dtype(dtype: dt.DType, device: Device) -> None:
    """Raises DTypeError, saying what to cast to, for a dtype that the device cannot hold."""
    if not device.supports(dtype):
        other = _EDGE.get(dtype, "float32")
        raise DTypeError(
            f'{device.info.id} cannot hold {dtype.name}; cast first: .astype("{other}")'
        )


def upload(device: Device, array: np.ndarray) -> DeviceArray:
    """A copy of a host array on the device. Raises DTypeError, LimitError, OutOfMemoryError."""
    dtype = as_dtype(array.dtype)
    check_dtype(dtype, device)
    if array.nbytes > device.caps.max_buffer_bytes:
        raise LimitError(
            f"a tensor of {array.nbytes} bytes is over the limit of {device.info.id}: "
            f"{device.caps.max_buffer_bytes} bytes per buffer; split it"
        )
    buffer = device.alloc(array.nbytes)
    if array.nbytes:
        device.write(buffer, np.ascontiguousarray(array))
    return DeviceArray(buffer, array.shape, dtype)


class DeviceListener:
    """Runs a bound op on the device of its operands."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Any, Session] = OrderedDict()
        self._arenas: dict[int, Arena] = {}

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> DeviceArray:
        device = next(x.device for x in inputs if isinstance(x, DeviceArray))
        avals = tuple(aval(x) for x in inputs)
        out = PRIMITIVES[op].abstract(*avals, **attrs)
        check_dtype(out.dtype, device)
        if 0 in out.shape:
            return DeviceArray(device.alloc(0), out.shape, out.dtype)
        if op == "reshape" and not isinstance(inputs[0], StateArray):
            return _Alias(inputs[0], out.shape)
        splats = tuple(_is_splat(x) for x in inputs)
        operands = [
            upload(device, x[(0,) * x.ndim]) if splat else
            upload(device, x) if isinstance(x, np.ndarray) else x
            for x, splat in zip(inputs, splats)
        ]  # fmt: skip
        key = (id(device), op, _freeze(attrs), avals, splats)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self._compile(device, op, attrs, avals, splats)
            if len(self._sessions) > CACHE:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(key)
        return session.run_device(operands)[0]

    def _compile(
        self,
        device: Device,
        op: str,
        attrs: Mapping[str, Any],
        avals: tuple[Aval, ...],
        splats: tuple[bool, ...],
    ) -> Session:
        from weft.compile.passes import compile_graph

        nodes, operands = [], []
        for i, (a, splat) in enumerate(zip(avals, splats)):
            node = ops.input_node(f"x{i}", () if splat else a.shape, a.dtype)
            nodes.append(node)
            operands.append(ops.broadcast(node, a.shape) if splat else node)
        out = ops.make_node(op, tuple(operands), dict(attrs), "")
        graph = Graph(tuple(nodes), (out,), name=_label(op, attrs, out))
        program = compile_graph(graph, device.caps, graph.name)
        arena = self._arenas.setdefault(id(device), Arena(device))
        return Session(program, device, arena=arena)


def _label(op: str, attrs: Mapping[str, Any], out: Node) -> str:
    return str(attrs["name"]) if op == "call" else op


def _is_splat(x: Any) -> bool:
    """Whether a host operand is one number repeated (a Python scalar that was broadcast)."""
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
