"""`weft explain --onnx`: graphs and Programs as an ONNX model, for Netron and similar viewers.

A graph's primitives become ONNX operators if there is one with the same meaning, else operators of
the domain "weft", as composites do. Each launch of a Program is an operator of "weft.kernels". The
content of weights is left out: they are inputs of a graph, and attributes of the operators that
read them in a Program. Several steps form separate parts, with their names before each value's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.cli.explained import ExplainedStep
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import UsageError
from weft.core.install import how
from weft.program.program import BufferRef, Dispatch

if TYPE_CHECKING:
    from weft.graph.ir import Graph, Node
    from weft.program.program import Program

OPSET, DOMAINS = 18, ("weft", "weft.kernels")
INLINE = 1 << 20  # bytes of a constant that is shown with its content
_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "bfloat16": 16,
}  # fmt: skip
# Elementwise primitives mean what the ONNX operator of their name does; these have another there
_NAMES = {"isnan": "IsNaN", "maximum": "Max", "minimum": "Min", "less_equal": "LessOrEqual"}
_WHOLE = ("neg", "abs", "add", "sub", "mul", "maximum", "minimum", "less", "less_equal", "equal")


def model(steps: Mapping[str, ExplainedStep], kernels: bool) -> bytes:
    """The file's bytes: the graph of each step, or its Program (with `kernels`, or if the graph is
    not known). Raises UsageError without the onnx package, CompileError."""
    try:
        import onnx
    except ImportError:
        raise UsageError(f"--onnx needs the onnx package: {how('import')}") from None
    import weft

    made = _Model(onnx.helper)
    for name, step in steps.items():
        prefix = f"{name}/" if len(steps) > 1 else ""
        if step.graph is not None and not kernels:
            _Graph(made, prefix).add(step.graph)
        else:
            _add_program(made, prefix, step.make()[0])
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    opsets += [onnx.helper.make_opsetid(domain, 1) for domain in DOMAINS]
    graph = onnx.helper.make_graph(
        made.nodes, "+".join(steps), made.inputs, made.outputs, made.constants,
        value_info=made.values,
    )  # fmt: skip
    whole = onnx.helper.make_model(
        graph, opset_imports=opsets, producer_name="weft", producer_version=weft.__version__,
        ir_version=8,
    )  # fmt: skip
    try:
        onnx.checker.check_model(whole)
    except onnx.checker.ValidationError as error:
        first = (str(error).strip().splitlines() or ["?"])[0]
        raise UsageError(f"ONNX cannot say this graph: {first[:200]}") from None
    data: bytes = whole.SerializeToString()
    return data


class _Model:
    """The parts of the model's graph."""

    def __init__(self, helper: Any) -> None:
        self.helper = helper
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.values: list[Any] = []
        self.constants: list[Any] = []

    def info(self, name: str, shape: tuple[int, ...], dtype: DType, said: str = "") -> Any:
        return self.helper.make_tensor_value_info(name, _type(dtype), shape, said)

    def constant(self, name: str, value: np.ndarray) -> str:
        """A constant with its content, little-endian as all of ONNX."""
        array = np.ascontiguousarray(value)
        kind = _type(as_dtype(array.dtype))
        self.constants.append(
            self.helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)
        )
        return name


def _type(dtype: DType) -> int:
    return _TYPES[dtype.name]


# -- graphs ---------------------------------------------------------------------------------------


class _Graph:
    def __init__(self, made: _Model, prefix: str) -> None:
        self.made, self.prefix = made, prefix
        self.names: dict[int, str] = {}

    def add(self, graph: Graph) -> None:
        """Adds a graph's nodes; a state is an input, and its new value an output."""
        from weft.graph.ir import toposort
        from weft.transform.rebuild import label

        for n, node in enumerate(toposort((*graph.inputs, *graph.roots()))):
            name = self.names[id(node)] = f"{self.prefix}{label(node)}.{n}"
            if node.op == "input":
                name = self.names[id(node)] = self.prefix + node.attrs["name"]
                role = str(node.attrs["role"])
                self.made.inputs.append(self.made.info(name, node.shape, node.dtype, role))
            elif node.op == "const" and node.nbytes <= INLINE:
                self.made.constant(name, node.attrs["value"])
            elif node.op != "result":
                self._node(node, name)
        results = [(f"out{i}", x) for i, x in enumerate(graph.outputs)]
        results += [(f"{state.attrs['name']}.new", x) for state, x in graph.assigns]
        for name, node in results:
            out = self.prefix + name
            self._emit("Identity", [self.names[id(node)]], out, "")
            self.made.outputs.append(self.made.info(out, node.shape, node.dtype))

    def _node(self, node: Node, name: str) -> None:
        inputs = [self.names[id(x)] for x in node.inputs]
        said = node.where
        found = _standard(node)
        outputs = [name]
        self.made.values.append(self.made.info(name, node.shape, node.dtype))
        if found is not None:
            op, attrs, operands = found
            inputs += [self.made.constant(f"{name}/{i}", x) for i, x in enumerate(operands)]
            self._emit(op, inputs, name, said, **attrs)
            return
        op, attrs = node.op, {k: _plain(v) for k, v in node.attrs.items()}
        if node.op == "call":
            op = str(attrs.pop("name"))
            assert node.body is not None
            outputs += [f"{name}.{i}" for i in range(1, len(node.body.outputs))]
        attrs |= {"dtype": node.dtype.name} if node.op in ("iota", "const") else {}
        self.made.nodes.append(
            self.made.helper.make_node(
                op,
                inputs,
                outputs,
                name,
                said,
                "weft",
                **attrs,
            )
        )

    def _emit(self, op: str, inputs: list[str], name: str, said: str, **attrs: Any) -> None:
        self.made.nodes.append(self.made.helper.make_node(op, inputs, [name], name, said, **attrs))


Standard = tuple[str, dict[str, Any], list[np.ndarray]]  # operator, attributes, further operands


def _standard(node: Node) -> Standard | None:
    """The ONNX operator that means the same as a primitive, where there is one."""
    from onnx.defs import has

    from weft.transform.rebuild import kind_of

    whole = bool(node.inputs) and not node.inputs[-1].dtype.is_float
    op = _NAMES.get(node.op, node.op.capitalize())
    if kind_of(node) == "elementwise" and node.op not in _RULES and has(op):
        odd = whole and node.op not in (*_WHOLE, "where")  # ONNX has the others for floats
        return None if odd else (op, {}, [])
    rule = _RULES.get(node.op)
    return None if rule is None else rule(node)


def _ints(values: Any) -> np.ndarray:
    return np.asarray(values, np.int64)


def _reshape(node: Node) -> Standard:
    return "Reshape", {"allowzero": 1}, [_ints(node.shape)]


def _slice(node: Node) -> Standard:
    a = node.attrs
    ends = [z if z >= 0 else -(1 << 31) for z in a["stops"]]  # before the first, going backwards
    return "Slice", {}, [_ints(x) for x in (a["starts"], ends, range(len(ends)), a["steps"])]


def _pad(node: Node) -> Standard:
    sides = _ints([*node.attrs["low"], *node.attrs["high"]])
    return "Pad", {}, [sides, np.asarray(node.attrs["value"], node.dtype.numpy)]


def _dot(node: Node) -> Standard | None:
    a, b = node.inputs
    same = a.dtype == b.dtype == node.dtype and node.dtype.is_float
    return ("MatMul", {}, []) if same and len(a.shape) == len(b.shape) >= 2 else None


_RULES: dict[str, Callable[[Any], Standard | None]] = {
    "cast": lambda n: ("Cast", {"to": _type(n.dtype)}, []),
    "reshape": _reshape,
    "transpose": lambda n: ("Transpose", {"perm": list(n.attrs["perm"])}, []),
    "broadcast": lambda n: ("Expand", {}, [_ints(n.shape)]),
    "slice": _slice,
    "pad": _pad,
    "concat": lambda n: ("Concat", {"axis": n.attrs["axis"]}, []),
    "sum": lambda n: ("ReduceSum", {"keepdims": 0}, [_ints(n.attrs["axes"])]),
    "max": lambda n: ("ReduceMax", {"keepdims": 0}, [_ints(n.attrs["axes"])]),
    "gather": lambda n: ("Gather", {"axis": n.attrs["axis"]}, []),
    "dot": _dot,
}


def _plain(value: Any) -> Any:
    """An attribute as ONNX has them: numbers, text, or lists of one of them."""
    if isinstance(value, bool | int | float | str):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, tuple) and value and all(type(v) is int for v in value):
        return list(value)
    return str(value)[:1000]


# -- Programs -------------------------------------------------------------------------------------


def _add_program(made: _Model, prefix: str, program: Program) -> None:
    """Adds a node per step; a value is a place in memory from a step that writes it on."""
    names: dict[tuple[int, int], str] = {}
    for i, b in enumerate(program.buffers):
        if b.role in ("input", "state"):
            name = names[i, 0] = prefix + b.name
            made.inputs.append(made.info(name, b.shape, b.dtype, b.role))
    for number, step in enumerate(program.steps):
        if isinstance(step, Dispatch):
            kernel = program.kernels[step.kernel]
            op = kernel.name.rpartition("_")[0] or kernel.name
            uses = [(r, str(b.access)) for r, b in zip(step.args, kernel.buffers)]
            facts: dict[str, Any] = {"kernel": kernel.name, "flops": kernel.flops}
            facts["bytes"] = kernel.bytes
        else:
            op, facts = type(step).__name__, {"bytes": step.dst.nbytes}
            source = getattr(step, "src", None)
            uses = [(step.dst, "w"), *([] if source is None else [(source, "r")])]
        facts["weights"] = [_held(program, r) for r, _ in uses if _is_held(program, r)]
        facts = {k: v for k, v in facts.items() if v != []}
        reads = [_name(names, r, prefix) for r, access in uses
                 if access != "w" and not _is_held(program, r)]  # fmt: skip
        writes: list[str] = []
        for place, access in uses:
            if access != "r":
                name = names[place.buffer, place.offset] = f"{prefix}step{number}.{len(writes)}"
                writes.append(name)
        made.nodes.append(
            made.helper.make_node(
                op, reads, writes, f"{prefix}{number}", step.label, "weft.kernels", **facts
            )
        )
    for i in program.outputs:
        b = program.buffers[i]
        _finish(made, names, i, prefix, b.name, b.shape, b.dtype)
    for i, b in enumerate(program.buffers):
        if b.role == "state" and names[i, 0] != prefix + b.name:
            _finish(made, names, i, prefix, f"{b.name}.new", b.shape, b.dtype)


def _finish(
    made: _Model, names: Mapping[tuple[int, int], str], buffer: int, prefix: str, name: str,
    shape: tuple[int, ...], dtype: DType,
) -> None:  # fmt: skip
    """An output of the model. A buffer that is written in parts is named by the last of them."""
    parts = [found for (b, _), found in names.items() if b == buffer]
    out = prefix + name
    made.nodes.append(made.helper.make_node("Result", parts, [out], out, domain="weft.kernels"))
    made.outputs.append(made.info(out, shape, dtype))


def _is_held(program: Program, ref: BufferRef) -> bool:
    return program.buffers[ref.buffer].role in ("weight", "const")


def _held(program: Program, ref: BufferRef) -> str:
    b = program.buffers[ref.buffer]
    return f"{b.name} {b.dtype.name}{list(b.shape)}"


def _name(names: dict[tuple[int, int], str], ref: BufferRef, prefix: str) -> str:
    """The value at a place: what was written there, or just before it in the same buffer."""
    if (ref.buffer, ref.offset) in names:
        return names[ref.buffer, ref.offset]
    before = [at for b, at in names if b == ref.buffer and at <= ref.offset]
    return names[ref.buffer, max(before)] if before else ""  # "" means that no step wrote the place
