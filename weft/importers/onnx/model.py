"""An ONNX model as something to call: arrays in, tensors out."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import CallError, DTypeError, ShapeError
from weft.core.foreign import is_foreign, shared_array
from weft.importers.onnx.functions import Functions
from weft.importers.onnx.graph import Graph, Node, Port
from weft.importers.onnx.run import Frame, NeedsValue, Run
from weft.importers.onnx.table import Value
from weft.importers.onnx.values import HOST_ONLY, NAMES, numpy_type
from weft.tensor.base import CURRENT
from weft.tensor.compiled import Compiled
from weft.tensor.core import Tensor

BOUND = 64  # elements up to which an input that decides shapes becomes part of the signature
KEPT = 64  # sets of host values for which compiled functions are kept


class OnnxModel:
    """A model of `from_onnx`. `inputs` and `outputs` are its Ports: name, type, shape.

    Called with arrays in the order of the inputs, or by their names, it gives the output, or a
    tuple of them, as Tensors on the device. Between nodes that need values (NonZero, a loop whose
    end depends on data) whole stretches are compiled once per signature; `weft run-onnx` shows
    where. Raises CallError for other inputs, ShapeError and DTypeError where they do not fit.
    """

    def __init__(
        self, graph: Graph, functions: Functions, versions: Mapping[str, int], device: Any
    ):
        self.inputs, self.outputs = graph.inputs, graph.outputs
        self.device = device  # None: the CPU
        self._graph, self._functions, self._versions = graph, functions, versions
        self._constants = functions.constants(graph)
        self._bound: dict[str, str] = {}  # inputs that are part of the signature, and why
        self._alone: dict[int, str] = {}  # nodes that run by themselves, and why
        self._stretches: dict[tuple[int, int], _Stretch] = {}
        self._eager = _host_types(graph)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The constants that are on the device, by name."""
        return dict(self._functions.weights)

    def __repr__(self) -> str:
        ports = (", ".join(map(str, p)) for p in (self.inputs, self.outputs))
        return f"OnnxModel({') -> ('.join(ports)})"

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        given = self._given(arrays, named)
        while True:
            try:
                return self._attempt(given)
            except NeedsValue as need:
                if CURRENT.trace is not None:
                    raise
                self._rearrange(need, given)

    def where(self) -> list[tuple[str, str]]:
        """What runs where, as far as calls have shown: (what, how and why)."""
        home = "cpu" if self.device is None else self.device.info.id
        if self._eager:
            return [("all nodes", f"one by one on {home}: {self._eager}")]
        rows = [
            (f"input {name}", f"part of the signature: {why}") for name, why in self._bound.items()
        ]
        for (start, stop), stretch in sorted(self._stretches.items()):
            count = f"{stop - start} nodes from {self._graph.nodes[start].place}"
            rows.append((count, f"compiled for {home}, {stretch.programs()} programs"))
        for at, why in sorted(self._alone.items()):
            rows.append((self._graph.nodes[at].place, f"by itself on {home}: {why}"))
        return rows

    def report(self) -> str:
        """How the stretches compiled so far."""
        found = [c.report() for s in self._stretches.values() for c in s.compiled.values()]
        return "\n\n".join(filter(None, found))

    # -- one call

    def _given(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Value]:
        """The inputs by name, checked."""
        wanted = ", ".join(map(str, self.inputs))
        given = dict(zip((p.name for p in self.inputs), arrays))
        names = {p.name for p in self.inputs}
        extra = [n for n in named if n not in names or n in given]
        if len(arrays) > len(self.inputs) or extra:
            what = f"no input {extra[0]!r} is left" if extra else f"{len(arrays)} inputs"
            raise CallError(f"{what}; expected ({wanted})")
        given |= named
        missing = [p.name for p in self.inputs if p.name not in given]
        if missing:
            raise CallError(f"input {missing[0]!r:.80} is missing; expected ({wanted})")
        return {p.name: self._taken(p, given[p.name]) for p in self.inputs}

    def _taken(self, port: Port, x: Any) -> Value:
        if port.kind != "tensor":
            return self._nested(port, x)
        if isinstance(x, Tensor):
            _check(port, x.dtype.numpy, x.shape)
            return x if self.device is None or x.is_traced else x.to(self.device)
        wanted = numpy_type(port.code, f"input {port.name!r:.80}")
        if is_foreign(x):
            x = shared_array("a model", x)
        array = x if isinstance(x, np.ndarray | np.generic) else np.asarray(x, wanted)
        _check(port, array.dtype, array.shape)
        return self._place(port.name, np.asarray(array))

    def _nested(self, port: Port, x: Any) -> Value:
        """A sequence or an optional value."""
        if isinstance(x, list | tuple):
            return [self._place("", np.asarray(item)) for item in x]
        return None if x is None else self._place("", np.asarray(x))

    def _place(self, name: str, array: np.ndarray) -> Value:
        if name in self._bound or array.dtype in HOST_ONLY:
            return array
        here = self._eager or self.device is not None
        return Run(self._functions, self.device, None if here else {}).lift(array)

    def _attempt(self, given: dict[str, Value]) -> Any:
        frame = Frame({**self._constants, **given}, self._versions)
        nodes = self._graph.nodes
        if self._eager:
            Run(self._functions, self.device).nodes(nodes, frame, 0)
        else:
            start = 0
            for stop in [*sorted(self._alone), len(nodes)]:
                if stop > start:
                    self._stretch(start, stop)(frame)
                if stop < len(nodes):
                    Run(self._functions, self.device).nodes(nodes[stop : stop + 1], frame, stop)
                start = stop + 1
        made = [self._result(p, frame.find(p.name)) for p in self.outputs]
        return made[0] if len(made) == 1 else tuple(made)

    def _stretch(self, start: int, stop: int) -> _Stretch:
        if (start, stop) not in self._stretches:
            self._stretches[start, stop] = _Stretch(self, start, stop)
        return self._stretches[start, stop]

    def _rearrange(self, need: NeedsValue, given: dict[str, Value]) -> None:
        """Makes small inputs that decide a value part of the signature, or lets the node that
        wants it run by itself, after those before it."""
        inputs = [n for n in need.names if n in given]
        small = [n for n in inputs if isinstance(given[n], Tensor) and given[n].size <= BOUND]
        if need.names and len(small) == len(need.names):
            for name in small:
                self._bound[name] = need.why
                given[name] = given[name].numpy()
        else:
            self._alone[need.at] = need.why
            self._stretches.clear()

    def _result(self, port: Port, x: Value) -> Any:
        """An output as a Tensor; on the CPU of the type that the file declares."""
        if isinstance(x, list):
            return [self._result(Port(port.name, 0, None), v) for v in x]
        if x is None:
            return None
        if isinstance(x, np.ndarray):
            try:
                dt.as_dtype(x.dtype)
            except DTypeError:
                return x  # of a type that only NumPy has
            if CURRENT.trace is not None or self.device is not None:
                return Run(
                    self._functions, self.device, None if CURRENT.trace is None else {}
                ).lift(x)
            x = Tensor(np.array(x))
        if self.device is None and not x.is_traced and port.code == 7 and x.dtype is dt.int32:
            x = Tensor(x.numpy().astype(np.int64))
        return x


def _check(port: Port, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raises DTypeError or ShapeError unless an array is what an input is declared as."""
    wanted = numpy_type(port.code, f"input {port.name!r:.80}")
    if dtype != wanted and not {dtype, wanted} == {np.dtype(np.int32), np.dtype(np.int64)}:
        raise DTypeError(f"input {port} is {dtype}; give {NAMES[port.code]}")
    sizes = port.shape
    if sizes is None:
        return
    fits = len(sizes) == len(shape) and all(
        not isinstance(want, int) or want == have for want, have in zip(sizes, shape)
    )
    if not fits:
        raise ShapeError(f"input {port} has the shape {list(shape)}")


def _host_types(graph: Graph) -> str:
    """Why a graph runs on the host node by node: it has types that no device has."""
    for port in graph.inputs:
        if port.kind == "tensor" and port.code in (4, 5, 11, 13):
            return f"input {port.name!r:.80} is {NAMES[port.code]}"
    for inner in (graph, *graph.subgraphs()):
        for name, array in inner.constants.items():
            if array.dtype == np.float64 and array.size > 1:
                return f"constant {name!r:.80} is float64"
        for node in inner.nodes:
            if node.op == "Cast" and node.attrs.get("to") == 11:
                return f"{node.place} gives float64"
    return ""


class _Stretch:
    """Nodes start..stop of a model, compiled: once for each set of host values among their operands
    (a Compiled each), which has a Program for each signature."""

    def __init__(self, model: OnnxModel, start: int, stop: int):
        self.model, self.start = model, start
        self.nodes: list[Node] = model._graph.nodes[start:stop]
        made = {o for n in self.nodes for o in n.outputs if o}
        later = {r for n in model._graph.nodes[stop:] for r in n.reads}
        later |= {p.name for p in model.outputs}
        self.gives = [
            n for n in dict.fromkeys(o for x in self.nodes for o in x.outputs) if n in later
        ]
        reads = dict.fromkeys(r for n in self.nodes for r in n.reads)
        self.reads = [r for r in reads if r not in made and r not in model._constants]
        self.compiled: OrderedDict[Any, Any] = OrderedDict()
        self.static: dict[Any, dict[str, Value]] = {}  # what is known without running
        self.hollow: set[Any] = set()  # where that is all

    def programs(self) -> int:
        """How many Programs there are by now."""
        return sum(len(c.programs()) for c in self.compiled.values())

    def __call__(self, frame: Frame) -> None:
        """Runs the nodes on a frame's values, and adds what they give to it."""
        values = {n: frame.find(n) for n in self.reads}
        names = [n for n, v in values.items() if isinstance(v, Tensor)]
        fixed = {n: v for n, v in values.items() if not isinstance(v, Tensor)}
        key = tuple((n, _hashable(v)) for n, v in fixed.items())
        if key not in self.compiled:
            if len(self.compiled) >= KEPT:
                self.compiled.popitem(last=False)
                self.static = {k: v for k, v in self.static.items() if k[0] in self.compiled}
            fn = self._traced(key, names, fixed)
            self.compiled[key] = Compiled(fn, self.model.device or "cpu", frozen=True)
        self.compiled.move_to_end(key)
        operands = [values[n] for n in names]
        signature = key, tuple((x.shape, _narrow(x.dtype)) for x in operands)
        if signature not in self.hollow:
            try:
                frame.values.update(self.compiled[key](*operands))
            except _NothingToRun:
                self.hollow.add(signature)
        frame.values.update(self.static[signature])

    def _traced(self, key: Any, names: list[str], fixed: dict[str, Value]) -> Callable[..., Any]:
        model = self.model

        def stretch(*tensors: Tensor) -> dict[str, Any]:
            traced = {id(t._value): n for n, t in zip(names, tensors)}
            run = Run(model._functions, model.device, traced)
            frame = Frame(
                {**model._constants, **fixed, **dict(zip(names, tensors))}, model._versions
            )
            run.nodes(self.nodes, frame, self.start)
            made = {n: frame.values[n] for n in self.gives}
            shapes = tuple((t.shape, _narrow(t.dtype)) for t in tensors)
            self.static[key, shapes] = {n: v for n, v in made.items() if not _on_device(v)}
            given = {n: v for n, v in made.items() if _on_device(v)}
            if not given:
                raise _NothingToRun
            return given

        return stretch


class _NothingToRun(Exception):
    """A stretch all of whose values are known on the host."""


def _on_device(x: Value) -> bool:
    """Whether a value is computed by the Program (a list: as a whole)."""
    return isinstance(x, Tensor) or (isinstance(x, list) and any(map(_on_device, x)))


def _narrow(dtype: dt.DType) -> dt.DType:
    return dt.int32 if dtype is dt.int64 else dtype


def _hashable(x: Value) -> Any:
    if isinstance(x, np.ndarray):
        return (x.shape, x.dtype.str, x.tobytes())
    return tuple(map(_hashable, x)) if isinstance(x, list) else None if x is None else id(x)


def random_input(port: Port, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    """Numbers for an input: sizes by name where the file leaves them open (1 by default)."""
    dtype = numpy_type(port.code, f"input {port.name!r:.80}")
    shape = [d if isinstance(d, int) else sizes.get(str(d), 1) for d in port.shape or ()]
    if math.prod(shape) > 1 << 28:
        raise ShapeError(f"input {port}: {shape} is more than weft makes up; give it")
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.random(shape).astype(dtype) if dtype != np.bool_ else rng.random(shape) < 0.5
