"""A file's graph as what runs: nodes in order, constants as arrays, names checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import FileFormatError, WeftError
from weft.importers.onnx.table import Rule
from weft.importers.onnx.values import NAMES, NUMPY, parsed
from weft.importers.ports import Port, label

MOST_NODES = 1_000_000  # most nodes of one file after its functions are inlined


class AttributeRef(NamedTuple):
    """An attribute that takes the value of one of the function around it."""

    name: str


@dataclass
class OnnxNode:
    """One node. `reads` are its inputs and the outer values that its subgraphs read; `dead` the
    names that no later node reads; `rule` replaces the table's rule."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    reads: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    rule: Rule | None = None

    @property
    def place(self) -> str:
        """The name of the node in errors."""
        name = self.name or next(filter(None, self.outputs), "")
        return f"{label(self.op)} {name!r:.80}"


@dataclass
class OnnxGraph:
    """Nodes in an order in which they can run. `free` are names of the graphs around this one,
    `initial` those of the constants that are initializers: what a net has learnt. `held` says which
    constants are tensors of the module, and their dotted names there. `optional` are inputs that
    have an initializer."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: list[OnnxNode]
    constants: dict[str, np.ndarray]
    free: tuple[str, ...] = ()
    initial: frozenset[str] = frozenset()
    held: dict[str, str] = field(default_factory=dict)
    optional: tuple[Port, ...] = ()

    def mark_dead(self) -> None:
        """Says of each node which values are used there for the last time."""
        own = {p.name for p in self.inputs} | {o for n in self.nodes for o in n.outputs if o}
        seen = {p.name for p in self.outputs}
        for node in reversed(self.nodes):
            names = dict.fromkeys([*node.reads, *filter(None, node.outputs)])
            node.dead = tuple(n for n in names if n in own and n not in seen)
            seen.update(names)

    def subgraphs(self) -> Iterator[OnnxGraph]:
        """The graphs of its nodes, at any depth."""
        for node in self.nodes:
            for value in node.attrs.values():
                for graph in value if isinstance(value, list) else [value]:
                    if isinstance(graph, OnnxGraph):
                        yield graph
                        yield from graph.subgraphs()


@dataclass
class OnnxFunction:
    """A function of the file or of ONNX itself: a graph whose inputs have names only."""

    name: str
    graph: OnnxGraph
    versions: dict[str, int]
    defaults: dict[str, Any] = field(default_factory=dict)


class GraphReader:
    """Turns protobuf messages into graphs. `external` reads tensors' data from other files."""

    def __init__(self, external: Any):
        self.external = external
        self.count = 0  # nodes read

    def graph(self, proto: Any, outer: frozenset[str] = frozenset(), where: str = "") -> OnnxGraph:
        """A GraphProto. `outer` are the names of the graphs around it. Raises FileFormatError."""
        _check_names(proto.name)
        name = label(where or proto.name) or "graph"
        if proto.sparse_initializer:
            raise FileFormatError(f"{name}: sparse initializers; make them dense")
        constants: dict[str, np.ndarray] = {}
        for tensor in proto.initializer:
            _check_names(tensor.name)
            if not tensor.name or tensor.name in constants:
                raise FileFormatError(f"{name}: two initializers are called {tensor.name!r:.80}")
            constants[tensor.name] = self._tensor(tensor, f"initializer {tensor.name!r:.80}")
        inputs = [_port(v) for v in proto.input]
        known = {*constants}
        for port in inputs:
            if port.name in known - constants.keys() or not port.name:
                raise FileFormatError(f"{name}: two inputs are called {port.name!r:.80}")
            known.add(port.name)
        plain = tuple(p for p in inputs if p.name not in constants)  # the rest have their value
        optional = tuple(p for p in inputs if p.name in constants)
        outputs = tuple(_port(v) for v in proto.output)
        made = self._graph(name, plain, outputs, proto.node, constants, known, outer)
        return replace(made, optional=optional)

    def function(self, proto: Any) -> OnnxFunction:
        """A FunctionProto. Raises FileFormatError."""
        names = [*proto.input]
        _check_names(proto.name, proto.domain, *names, *proto.output)
        if len({*names}) != len(names) or "" in names:
            raise FileFormatError(f"function {proto.name!r:.80}: inputs {names!r:.200}")
        inputs = tuple(Port(n) for n in names)
        known = {*names, *(o for n in proto.node for o in n.output)}
        results = list(proto.output)
        # ONNX's own models leave out results that are not wanted
        while results and results[-1] not in known:
            results.pop()
        outputs = tuple(Port(n) for n in results)
        graph = self._graph(proto.name, inputs, outputs, proto.node, {}, {*names}, frozenset())
        defaults = {
            a.name: self._attribute(a, frozenset(), proto.name) for a in proto.attribute_proto
        }
        return OnnxFunction(proto.name, graph, versions(proto.opset_import), defaults)

    def _graph(
        self, name: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...], protos: Any,
        constants: dict[str, np.ndarray], known: set[str], outer: frozenset[str],
    ) -> OnnxGraph:  # fmt: skip
        initial = frozenset(constants)
        self.count += len(protos)
        if self.count > MOST_NODES:
            raise FileFormatError(f"{name}: more than {MOST_NODES} nodes")
        made: set[str] = set()
        for proto in protos:
            for output in filter(None, proto.output):
                if output in known or output in made:
                    raise FileFormatError(f"{name}: two values are called {output!r:.80}")
                made.add(output)
        inner = frozenset(outer | known | made)
        read = [self._node(p, inner) for p in protos]
        rest = [n for n in read if not self._constant(n, constants)]
        nodes = _ordered(name, rest, known | outer | constants.keys())
        last = {p.name for p in outputs}
        missing = last - inner
        if missing:
            raise FileFormatError(f"{name}: nothing computes the output {min(missing)!r:.80}")
        free = dict.fromkeys(n for node in nodes for n in node.reads if n not in known | made)
        free |= dict.fromkeys(n for n in last if n not in known | made)
        found = OnnxGraph(name, inputs, outputs, nodes, constants, tuple(free), initial)
        found.mark_dead()
        return found

    def _constant(self, node: OnnxNode, constants: dict[str, np.ndarray]) -> bool:
        """True if a node is a constant; it then joins `constants`."""
        if (node.domain, node.op) != ("", "Constant") or len(node.attrs) != 1:
            return False
        (key, value), *_ = node.attrs.items()
        if isinstance(value, AttributeRef) or key == "sparse_value" or len(node.outputs) != 1:
            return False
        constants[node.outputs[0]] = as_array(key, value)
        return True

    def _node(self, proto: Any, names: frozenset[str]) -> OnnxNode:
        _check_names(proto.op_type, proto.domain, proto.name, *proto.input, *proto.output)
        place = f"{label(proto.op_type)} {proto.name or next(iter(proto.output), '')!r:.80}"
        attrs: dict[str, Any] = {}
        for a in proto.attribute:
            _check_names(a.name, a.ref_attr_name)
            if a.name in attrs:
                raise FileFormatError(f"{place}: two attributes are called {a.name!r:.80}")
            attrs[a.name] = self._attribute(a, names, place)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        inner = [
            n for v in attrs.values() for g in (v if isinstance(v, list) else [v])
            if isinstance(g, OnnxGraph) for n in g.free
        ]  # fmt: skip
        reads = tuple(dict.fromkeys([*filter(None, proto.input), *inner]))
        return OnnxNode(
            proto.op_type, domain, proto.name, tuple(proto.input), tuple(proto.output), attrs, reads
        )

    def _attribute(self, a: Any, names: frozenset[str], place: str) -> Any:
        what = f"attribute {a.name!r:.40} of {place}"
        if a.ref_attr_name:
            return AttributeRef(a.ref_attr_name)
        match a.type:
            case 1:
                return float(a.f)
            case 2:
                return int(a.i)
            case 3:
                return _text(a.s, what)
            case 4:
                return self._tensor(a.t, what)
            case 5:
                return self.graph(a.g, names, f"{place}.{label(a.name)}")
            case 6:
                return [float(f) for f in a.floats]
            case 7:
                return [int(i) for i in a.ints]
            case 8:
                return [_text(s, what) for s in a.strings]
            case 10:
                return [self.graph(g, names, f"{place}.{label(a.name)}") for g in a.graphs]
            case 13:
                return a.tp
        raise FileFormatError(f"{what}: a kind of value that weft does not read ({a.type})")

    def _tensor(self, tensor: Any, what: str) -> np.ndarray:
        try:
            return parsed(tensor, what, self.external)
        except WeftError:
            raise
        except (ValueError, OverflowError) as error:
            raise FileFormatError(f"{what}: {error}") from None


def as_array(key: str, value: Any) -> np.ndarray:
    """The value of a Constant's attribute. Raises FileFormatError."""
    if key not in ("value", "value_int", "value_ints", "value_float", "value_floats"):
        raise FileFormatError(f"a Constant with {key!r:.40}; weft reads numbers")
    return np.asarray(value, np.int64 if "int" in key else np.float32 if "float" in key else None)


def versions(imports: Any) -> dict[str, int]:
    """Domain -> opset. Raises FileFormatError for one that is named twice."""
    found: dict[str, int] = {}
    for entry in imports:
        _check_names(entry.domain)
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if domain in found and found[domain] != entry.version:
            raise FileFormatError(f"opsets {found[domain]} and {entry.version} of {domain!r:.80}")
        found[domain] = entry.version
    return found


def _check_names(*names: Any) -> None:
    """Raises FileFormatError for one that protobuf could not read as text."""
    wrong = [n for n in names if not isinstance(n, str)]
    if wrong:
        raise FileFormatError(f"the name {wrong[0]!r:.80} is not UTF-8")


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise FileFormatError(f"{what}: not UTF-8") from None


def _port(value: Any) -> Port:
    _check_names(value.name)
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Port(value.name, kind=(kind or "unknown").removesuffix("_type"))
    tensor = value.type.tensor_type
    code = tensor.elem_type
    other = "tensor" if code in NUMPY or not code else NAMES.get(code, f"type {code}")
    shape = tuple(map(_size, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Port(value.name, shape, NUMPY.get(code), kind=other)


def _size(dim: Any) -> int | str | None:
    which = dim.WhichOneof("value")
    if which == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return (dim.dim_param or None) if which == "dim_param" else None


def _ordered(name: str, nodes: list[OnnxNode], known: set[str] | frozenset[str]) -> list[OnnxNode]:
    """The nodes, each after those whose values it reads. Raises FileFormatError for names that
    nothing gives, and for nodes that wait for each other."""
    seen = set(known)
    for node in nodes:
        if not seen.issuperset(node.reads):
            break
        seen.update(node.outputs)
    else:
        return nodes  # The nodes are in the order that ONNX requires.
    maker = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    waiting: list[int] = []
    users: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for n in node.reads:
            if n not in maker and n not in known:
                raise FileFormatError(f"{name}: {node.place} reads {n!r:.80}, which nothing gives")
        needs = {maker[n] for n in node.reads if n in maker}
        waiting.append(len(needs))
        for j in needs:
            users.setdefault(j, []).append(i)
    ready = [i for i in range(len(nodes)) if not waiting[i]][::-1]
    done: list[OnnxNode] = []
    while ready:
        i = ready.pop()
        done.append(nodes[i])
        for j in reversed(users.get(i, [])):
            waiting[j] -= 1
            if not waiting[j]:
                ready.append(j)
    if len(done) < len(nodes):
        stuck = next(n for n, w in zip(nodes, waiting) if w)
        raise FileFormatError(
            f"{name}: {stuck.place} waits for its own result: the graph has a cycle"
        )
    return done


def attributes(node: OnnxNode, around: Mapping[str, Any]) -> dict[str, Any]:
    """A node's attributes, those of the function around it in place of references."""
    found = {}
    for name, value in node.attrs.items():
        if isinstance(value, AttributeRef):
            if value.name not in around:
                continue  # the caller left it out, so the operator's default applies
            value = around[value.name]
        found[name] = value
    return found
