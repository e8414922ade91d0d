"""Running a graph's nodes in order: at once, or inside a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import (
    DTypeError,
    FileFormatError,
    LimitError,
    OutOfMemoryError,
    ShapeError,
    WeftError,
)
from weft.graph.ir import Graph as WeftGraph, Node as WeftNode, toposort
from weft.importers.onnx.functions import Functions
from weft.importers.onnx.graph import MOST_NODES, OnnxFunction, OnnxGraph, OnnxNode, attributes
from weft.importers.onnx.longs import Beyond32, Longs, fits
from weft.importers.onnx.table import TABLE, NodeCall, Rule, Value
from weft.importers.onnx.values import HOST_ONLY
from weft.ops.tape import plain
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor

MOST_TEXT = 800  # characters of an error, which may repeat long lists of the file's
SMALL = 4096  # most elements for which known values are computed on the host
_FOREIGN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)


class NeedsValue(Exception):
    """A node wants a value that is only known once the nodes before it have run. `names` are the
    values at the start of the trace that decide it; `at` is the node's number."""

    def __init__(self, names: frozenset[str], at: int, why: str):
        super().__init__(why)
        self.names, self.at, self.why = names, at, why


def _aligned(op: str, attrs: Mapping[str, Any], a: Value, b: Value) -> Value:
    """The second operand as opset 6 broadcasts it: aligned with the axes of a from `axis` on, or
    from the channels on."""
    axis = (
        1 if op == "PRelu" and b.ndim == 1 else attrs.get("axis") if "broadcast" in attrs else None
    )
    if axis is None or not b.ndim:
        return b
    behind = a.ndim - axis % max(a.ndim, 1) - b.ndim
    if behind < 0:
        raise ShapeError(f"{list(b.shape)} from axis {axis} of {list(a.shape)} on")
    return b.reshape((*b.shape, *([1] * behind)))


class Frame:
    """The values of one graph by name; what it lacks is looked up in the graph around it."""

    def __init__(
        self, values: Mapping[str, Value], versions: Mapping[str, int], outer: Frame | None = None,
        attrs: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        self.values: Any = values  # a dict; the module's constants, outermost, are only read
        self.versions, self.outer = versions, outer
        around: Mapping[str, Any] = {} if outer is None else outer.attrs
        self.attrs: Mapping[str, Any] = around if attrs is None else attrs

    def find(self, name: str) -> Value:
        """The value of a name, here or in a graph around this one."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.values:
                return frame.values[name]
            frame = frame.outer
        raise FileFormatError(f"the value {name!r:.80} is not defined before its use")


class GraphRun:
    """One run of nodes. `traced` names the values at the start of a trace, by their nodes' ids;
    None where values are computed at once. `wide`: with int64 and float64, which the host has."""

    def __init__(
        self, functions: Functions, device: Any, traced: dict[int, str] | None = None,
        wide: bool = False, exact: bool = False,
    ):  # fmt: skip
        self.functions, self.device, self.traced, self.wide = functions, device, traced, wide
        self.exact = exact  # True if values that represent int64 become int64
        self.longs = Longs()
        for dotted in functions.longs:
            self.longs.mark(functions.tensor(dotted))
        self.at = 0  # the number of the outermost graph's node in progress
        self.count = 0  # nodes run so far

    # -- nodes

    def nodes(self, nodes: Sequence[OnnxNode], frame: Frame, start: int | None = None) -> None:
        """Runs nodes in order; `start` numbers those of the outermost graph."""
        for i, node in enumerate(nodes):
            if start is not None:
                self.at = start + i
            self.spend(1)
            values = [frame.find(n) if n else None for n in node.inputs]
            if self.exact:
                values = [self._long(v) for v in values]
            try:
                made = self._node(node, frame, values)
            except WeftError as error:
                text = str(error)[:MOST_TEXT]
                known = text.startswith("node ")
                raise (error if known else type(error)(f"node {node.place}: {text}")) from error
            except MemoryError as error:
                raise OutOfMemoryError(f"node {node.place}: {str(error)[:200]}") from error
            except _FOREIGN as error:
                first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                raise ShapeError(f"node {node.place}: its operands do not fit: {first}") from error
            for name, value in zip(node.outputs, made):
                if name:
                    frame.values[name] = np.asarray(value) if np.isscalar(value) else value
            for name in node.dead:
                frame.values.pop(name, None)

    def _node(self, node: OnnxNode, frame: Frame, values: list[Value]) -> Sequence[Value]:
        attrs = attributes(node, frame.attrs)
        function = self.functions.local.get((node.domain, node.op))
        rule = node.rule or (TABLE.get((node.domain, node.op)) if function is None else None)
        if rule is not None:
            version = frame.versions.get(node.domain, 1)
            if version < 7 and not node.domain and len(values) == 2:
                values[1] = _aligned(node.op, attrs, *values)
            call = NodeCall(node.op, attrs, version, node.outputs, self, frame, node.domain)
            with np.errstate(all="ignore"):
                made = self.apply(rule, call, values)
                if rule is not node.rule:
                    made = self.longs.after(node.place, call, rule, values, made)
            return made if isinstance(made, tuple) else (made,)
        if function is None:
            version = frame.versions.get(node.domain, 1)
            function = self.functions.body(node, attrs, version, values)
        return self.call(function, attrs, values)

    def _long(self, x: Value) -> Value:
        """Results that represent int64, as int64."""
        long = isinstance(x, Tensor) and x.dtype is dt.int32 and self.longs.holds(x)
        return x.cast(dt.int64) if long else x

    def apply(self, rule: Rule, call: NodeCall, values: list[Value]) -> Any:
        """The result of a rule's function; each operand is first converted to the kind that the
        rule wants."""
        wanted = range(len(values)) if -1 in rule.host else rule.host
        for i in wanted:
            if i < len(values) and isinstance(values[i], Tensor):
                values[i] = call.host(values[i], f"operand {i}")
        if rule.raw:
            return rule.fn(call, *values)
        rest = [v for i, v in enumerate(values) if i not in wanted and v is not None]
        here = rule.either and all(isinstance(v, np.ndarray) for v in rest)
        if here and (all(v.size <= SMALL for v in rest) or any(v.dtype in HOST_ONLY for v in rest)):
            return rule.fn(call, *values)
        lifted = [v if i in wanted else self.lift(v) for i, v in enumerate(values)]
        return rule.fn(call, *lifted)

    def call(
        self, function: OnnxFunction, attrs: Mapping[str, Any], values: Sequence[Value]
    ) -> list[Value]:
        """A function's results."""
        graph = function.graph
        if len(values) > len(graph.inputs):
            raise FileFormatError(f"{len(values)} operands for {len(graph.inputs)} of the function")
        given = dict.fromkeys(p.name for p in graph.inputs)
        given |= {p.name: v for p, v in zip(graph.inputs, values)}
        frame = Frame(given, function.versions, None, {**function.defaults, **attrs})
        return self.graph(graph, frame)

    def subgraph(self, graph: OnnxGraph, outer: Frame, values: list[Value]) -> list[Value]:
        """The results of a branch or a loop's body."""
        if len(values) != len(graph.inputs):
            raise FileFormatError(f"{graph.name}: {len(values)} values, {len(graph.inputs)} inputs")
        given = {p.name: v for p, v in zip(graph.inputs, values)}
        return self.graph(graph, Frame(given, outer.versions, outer))

    def graph(self, graph: OnnxGraph, frame: Frame) -> list[Value]:
        """The outputs of a graph whose inputs the frame holds."""
        frame.values.update(self.functions.constants(graph))
        self.nodes(graph.nodes, frame)
        return [frame.find(p.name) for p in graph.outputs]

    # -- values

    def device_dtype(self, dtype: np.dtype) -> DType:
        """The element type that represents `dtype` here: int32 for int64 anywhere but in host
        memory. Raises DTypeError for one that only the host has."""
        if dtype in HOST_ONLY:
            raise DTypeError(f"{dtype.name} is computed on the host alone, by few operators")
        made = as_dtype(dtype)
        if made is dt.int64 and not self.wide:
            return dt.int32
        if made is dt.float64 and not self.wide:
            raise DTypeError("float64 is computed on the host alone; cast the model to float32")
        return made

    def lift(self, x: Value) -> Value:
        """A host array as a Tensor where this run computes. Raises DTypeError for one of a type,
        or with integers, that only the host has."""
        if not isinstance(x, np.ndarray):
            return x
        dtype = self.device_dtype(x.dtype)
        many = [s == 0 and d > 1 for s, d in zip(x.strides, x.shape)]
        if any(many) and x.size:  # one element represents many
            base = x[tuple(slice(0, 1) if m else slice(None) for m in many)]
            return self.lift(np.ascontiguousarray(base)).expand(x.shape)
        if dtype is dt.int32 and not fits(x):
            low, high = int(x.min()), int(x.max())
            raise Beyond32(
                f"a tensor holds {high if high >= 1 << 31 else low}: weft stores ONNX's int64 as "
                f"int32 on devices, and this number is too large for int32"
            )
        made = Tensor(np.ascontiguousarray(x.astype(dtype.numpy, copy=False)).reshape(x.shape))
        eager = self.traced is None and CURRENT.trace is None
        return made.to(self.device) if self.device is not None and eager else made

    def demand(self, x: Value, why: str) -> np.ndarray:
        """A value on the host. Raises NeedsValue where the nodes before have to run first."""
        found = self._demand(x, why)
        narrow = isinstance(x, Tensor) and found.dtype == np.int32 and self.longs.holds(x)
        return found.astype(np.int64) if narrow else found

    def _demand(self, x: Value, why: str) -> np.ndarray:
        if isinstance(x, np.ndarray):
            return x
        if not isinstance(x, Tensor):
            raise FileFormatError(f"{why} is {'a sequence' if isinstance(x, list) else 'missing'}")
        value = x._value
        if not isinstance(value, WeftNode):
            if CURRENT.trace is not None:  # an outside tensor may be assigned to later
                CURRENT.trace.guard(lambda: x._value is value)
            return np.asarray(value if isinstance(value, np.ndarray) else value.numpy())
        if self.traced is None:
            raise NeedsValue(frozenset(), self.at, why)
        node = plain(x.value)
        inputs = [n for n in toposort((node,)) if n.op == "input"]
        if not inputs:
            made: np.ndarray = ops.evaluate(WeftGraph((), (node,)), [])[0]
            return made
        names = frozenset(self.traced[id(n)] for n in inputs if id(n) in self.traced)
        raise NeedsValue(names, self.at, why)

    def spend(self, nodes: int) -> None:
        """Counts nodes run. Raises LimitError for more than MOST_NODES."""
        self.count += nodes
        if self.count > MOST_NODES:
            raise LimitError(f"more than {MOST_NODES} nodes in one run, loops written out")

    def alone(self, why: str) -> None:
        """Says that the node in progress cannot be part of a trace. Raises NeedsValue there."""
        if self.traced is not None:
            raise NeedsValue(frozenset(), self.at, why)
