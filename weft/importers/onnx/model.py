"""An ONNX model as a Module: arrays in, tensors out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

import numpy as np

from weft.core import dtypes as dt, text
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, TraceError, UsageError
from weft.core.packed import Form
from weft.importers.foreign import CompiledFunctions, Foreign, LinearWeight
from weft.importers.onnx.functions import Functions
from weft.importers.onnx.graph import OnnxFunction, OnnxGraph
from weft.importers.onnx.inputs import as_array, host_types, sizes_of
from weft.importers.onnx.linear import linear_weights, with_packed
from weft.importers.onnx.longs import Beyond32, fits, refuse
from weft.importers.onnx.run import Frame, GraphRun, NeedsValue
from weft.importers.onnx.stretch import Stretch, traced_names
from weft.importers.onnx.table import Value
from weft.importers.onnx.values import HOST_ONLY
from weft.importers.onnx.weights import Constants, hold_constants
from weft.importers.ports import Port, label, named
from weft.program.device import Device
from weft.tensor.autograd import no_grad
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.tensor.device import open_device
from weft.tensor.tracing import Spec, Traced, trace_call

BOUND = 64  # elements up to which an input that decides shapes becomes part of the signature


class _Kept(CompiledFunctions):
    def __init__(self) -> None:
        super().__init__()
        self.stretches: dict[tuple[int, int, Any], Stretch] = {}


class OnnxModel(Foreign):
    """A model of `from_onnx`. `inputs` and `outputs` are its Ports: name, shape, dtype. `metadata`
    is what the file says of itself, by name.

    A call takes arrays in the order of the inputs, or by their names. It gives the output, or a
    tuple of outputs, as Tensors on the device. If the file lists an initializer among its inputs, a
    call may pass it by name.

    Between nodes that need values (NonZero, a loop whose end depends on data) whole stretches are
    compiled once per signature; `weft run` shows them. Raises CallError for other inputs,
    ShapeError and DTypeError if they do not fit.
    """

    _kept: _Kept

    def __init__(
        self, name: str, graph: OnnxGraph, local: Mapping[tuple[str, str], OnnxFunction],
        versions: Mapping[str, int], device: Device | None = None,
        metadata: Mapping[str, str] | None = None,
    ):  # fmt: skip
        super().__init__(name, graph.inputs)
        self.metadata = dict(metadata or {})
        self._kept = _Kept()
        self._home, self._versions = device, dict(versions)
        self._bound: dict[str, str] = {}  # inputs that are part of the signature, and why
        self._alone: dict[int, str] = {}  # nodes that run by themselves, and why
        self._node_by_node = host_types(graph)
        self._held_longs = hold_constants(self, [graph, *(f.graph for f in local.values())], device)
        ports = (*graph.inputs, *graph.optional)
        self.longs = {p.name for p in ports if p.dtype == np.int64}  # values of int64
        self.regraph(graph, local)

    def regraph(self, graph: OnnxGraph, local: Mapping[tuple[str, str], OnnxFunction]) -> None:
        """Another graph for the same module; what it reads is there already."""
        self.graph, self.functions = graph, Functions(dict(local), self.tensor)
        self.functions.longs = self._held_longs
        self._kept = _Kept()

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs of a call."""
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs of a call."""
        return self.graph.outputs

    @property
    def constants(self) -> Constants:
        """The graph's constants by their names in the file."""
        return Constants(self.graph, self.tensor)

    @property
    def device(self) -> Device | None:
        """The device that it runs on (None: the CPU)."""
        return self.place() if self.graph.held else self._home

    @property
    def weights(self) -> dict[str, Tensor]:
        """The parameters and buffers by their dotted names."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def to(self, target: Any) -> Self:
        """Moves the module to a device. Raises UsageError for a dtype: a graph says its types."""
        if isinstance(target, DType):
            raise UsageError(f"{self._name}: an ONNX graph says its types; convert the file")
        self._home = open_device(target)
        return super().to(target)

    def extra_repr(self) -> str:
        ports = (", ".join(p.text() for p in ports) for ports in (self.inputs, self.outputs))
        return f"{label(self._name)}: ({') -> ('.join(ports)}), {len(self.graph.nodes)} nodes"

    def frame(self, values: dict[str, Value]) -> Frame:
        """The values of a run that begins with these, and the constants."""
        return Frame(values, self._versions, Frame(self.constants, self._versions))

    # -- linear weights

    def linear_weights(self) -> list[LinearWeight]:
        return linear_weights(self.graph)

    def reads_packed(self, forms: Mapping[str, tuple[LinearWeight, Form]]) -> None:
        self.regraph(with_packed(self.graph, forms), self.functions.local)

    # -- one call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        optional = {p.name: p for p in self.graph.optional}
        instead = {n: kwargs.pop(n) for n in optional.keys() & kwargs.keys()}
        for name in instead.keys() - set(self.constants):
            raise UsageError(f"{self._name}: {name!r:.80} is packed; it cannot be given")
        given = {**named(self._name, self.inputs, {}, args, kwargs), **instead}
        try:
            return self._run(given)
        except Beyond32:
            if self.device is not None or CURRENT.trace is not None:
                raise
        return self._exact(given)

    def _ports(self, given: Mapping[str, Any]) -> list[Port]:
        """The inputs of a call, with the initializers that it gives another value."""
        return [*self.inputs, *(p for p in self.graph.optional if p.name in given)]

    def _exact(self, given: Mapping[str, Any]) -> Any:
        """Node by node on the host, with 64-bit integers."""
        run = GraphRun(self.functions, None, None, True, True)
        taken = {p.name: self._taken(p, given[p.name], run) for p in self._ports(given)}
        for name in self.longs & taken.keys():
            run.longs.mark(taken[name])
        frame = self.frame(taken)
        run.nodes(self.graph.nodes, frame, 0)
        return self._results(frame)

    def _run(self, given: Mapping[str, Any]) -> Any:
        taken = {p.name: self._taken(p, given[p.name]) for p in self._ports(given)}
        if CURRENT.trace is not None:
            return self._part(taken)
        if self._node_by_node or self.records(taken.values()):
            return self._recorded(taken)
        with no_grad():
            made = self._compiled(taken)
        return self.evaluated(made, lambda: self._recorded(taken))

    def _taken(self, port: Port, x: Any, run: GraphRun | None = None) -> Value:
        if port.kind in ("sequence", "optional"):
            if isinstance(x, list | tuple):
                return [self._placed("", np.asarray(item)) for item in x]
            return None if x is None else self._placed("", np.asarray(x))
        array = as_array(port, x)
        if isinstance(array, np.ndarray):
            return self._placed(port.name, array) if run is None else run.lift(array)
        device = self.device
        return array if device is None or array.is_traced else array.to(device)

    def _placed(self, name: str, array: np.ndarray) -> Value:
        few = array.size <= BOUND  # a number beyond 32 bits, such as a slice's end, stays here
        if name in self._bound or array.dtype in HOST_ONLY or (few and not fits(array)):
            return array
        return GraphRun(self.functions, self.device, None, bool(self._node_by_node)).lift(array)

    def _part(self, given: dict[str, Value]) -> Any:
        """Runs as part of a larger trace."""
        if self._node_by_node:
            raise TraceError(f"{self._name} runs node by node: {self._node_by_node}")
        frame, trace = self.frame(given), CURRENT.trace
        run = GraphRun(self.functions, self.device, traced_names(given))
        for name in self.longs & given.keys():
            run.longs.mark(given[name])
        try:
            run.nodes(self.graph.nodes, frame, 0)
        except NeedsValue as need:
            raise TraceError(
                f"{self._name}: {need.why}: what it computes depends on values, which a trace does "
                "not have"
            ) from need
        flags = run.longs.verdict()
        if trace is not None and flags is not None:
            trace.check(flags, partial(refuse, [place for place, _ in run.longs.checks]))
        return self._results(frame)

    def _recorded(self, given: dict[str, Value]) -> Any:
        """Node by node."""
        frame = self.frame(given)
        run = GraphRun(self.functions, self.device, None, bool(self._node_by_node))
        for name in self.longs & given.keys():
            run.longs.mark(given[name])
        run.nodes(self.graph.nodes, frame, 0)
        run.longs.settle()
        return self._results(frame)

    def _compiled(self, given: dict[str, Value]) -> Any:
        """Whole stretches compiled, between nodes that run by themselves."""
        while True:
            try:
                frame = self.frame(dict(given))
                self._stretches(frame)
                return self._results(frame)
            except NeedsValue as need:
                self._rearrange(need, given)

    def _stretches(self, frame: Frame) -> None:
        nodes, device = self.graph.nodes, self.device
        given = frozenset(p.name for p in self.graph.optional if p.name in frame.values)
        start = 0
        for stop in [*sorted(self._alone), len(nodes)]:
            if stop > start:
                self._stretch(start, stop, device, given)(frame)
            if stop < len(nodes):
                run = GraphRun(self.functions, device, None, device is None)
                for name in self.longs.intersection(nodes[stop].reads) & frame.values.keys():
                    run.longs.mark(frame.values[name])
                run.nodes(nodes[stop : stop + 1], frame, stop)
                run.longs.settle()
                found = {n: frame.values.get(n) for n in nodes[stop].outputs}
                self.longs.update(n for n, v in found.items() if run.longs.holds(v))
            start = stop + 1

    def _stretch(
        self, start: int, stop: int, device: Device | None, given: frozenset[str]
    ) -> Stretch:
        key = start, stop, (device, given)
        found = self._kept.stretches.get(key)
        if found is None:
            found = self._kept.stretches[key] = Stretch(self, start, stop, given)
        return found

    def _rearrange(self, need: NeedsValue, given: dict[str, Value]) -> None:
        """Makes small inputs that decide a value part of the signature, or lets the node that
        wants it run by itself, after those before it."""
        inputs = [n for n in need.names if n in given]
        small = [n for n in inputs if isinstance(given[n], Tensor) and given[n].size <= BOUND]
        if need.names and len(small) == len(need.names):
            for name in small:
                self._bound[name] = need.why
                host = given[name].numpy()
                given[name] = host.astype(np.int64) if name in self.longs else host
        else:
            self._alone[need.at] = need.why
            self._kept.stretches.clear()

    def _results(self, frame: Frame) -> Any:
        made = [self._result(p, frame.find(p.name)) for p in self.outputs]
        return made[0] if len(made) == 1 else tuple(made)

    def _result(self, port: Port, x: Value) -> Any:
        """An output as a Tensor; on the CPU of the type that the file declares."""
        if isinstance(x, list):
            return [self._result(Port(port.name), v) for v in x]
        if x is None:
            return None
        if isinstance(x, np.ndarray):
            try:
                dt.as_dtype(x.dtype)
            except DTypeError:
                return x  # The type exists only in NumPy.
            if CURRENT.trace is not None or self.device is not None:
                return GraphRun(self.functions, self.device, None).lift(x)
            x = Tensor(np.array(x))
        wide = port.dtype == np.int64 and x.dtype is dt.int32
        if wide and self.device is None and not x.is_traced:
            x = Tensor(x.numpy().astype(np.int64))
        return x

    # -- what it is

    def traced(self, sizes: Mapping[str, int] | None = None) -> Traced:
        """Its trace for these sizes by name, 1 for others. Raises TraceError where what it computes
        depends on values, UsageError for a name that no open size has."""
        self.want_open(sizes or {})
        shapes = {p.name: sizes_of(p, sizes or {}) for p in self.inputs}
        dtypes = {p.name: _program_dtype(p) for p in self.inputs}
        specs = [Spec(shapes[n], dtypes[n], n) for n in shapes]
        return trace_call(self, specs, self._name, lambda tensors: self(*tensors))

    def summary(self) -> dict[str, Any]:
        """The facts of `Foreign.facts`."""
        ops = Counter(f"{n.domain}.{n.op}" if n.domain else n.op for n in self.graph.nodes)
        return self.facts([p.text() for p in self.outputs], dict(ops.most_common()), ())

    def where(self) -> list[tuple[str, str]]:
        """The place of each part, as far as calls have shown it: (part, its way to run and the
        reason)."""
        device, nodes = self.device, self.graph.nodes
        home = "cpu" if device is None else device.info.id
        if self._node_by_node:
            return [("all nodes", f"one by one on {home}: {self._node_by_node}")]
        rows = [
            (f"input {name}", f"part of the signature: {why}") for name, why in self._bound.items()
        ]
        for (start, stop, _), stretch in sorted(self._kept.stretches.items(), key=_first):
            count = f"{text.counted(stop - start, 'node')} from {nodes[start].place}"
            made = text.counted(stretch.programs(), "Program")
            rows.append((count, f"compiled for {home}, {made}"))
        for at, why in sorted(self._alone.items()):
            rows.append((nodes[at].place, f"by itself on {home}: {why}"))
        return rows

    def report(self) -> str:
        """The reports of the stretches that were compiled so far."""
        stretches = self._kept.stretches.values()
        return "\n\n".join(
            filter(None, (c.report() for s in stretches for c in s.compiled.values()))
        )


def _first(item: tuple[Any, Any]) -> tuple[int, int]:
    start, stop, _ = item[0]
    return start, stop


def _program_dtype(port: Port) -> DType:
    found = as_dtype(np.dtype(np.float32) if port.dtype is None else port.dtype)
    return dt.int32 if found is dt.int64 else found
