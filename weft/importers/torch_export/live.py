"""Reading an ExportedProgram that is in memory: by its public attributes, nothing executed."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.errors import DTypeError, FileFormatError
from weft.host.foreign import shared_array
from weft.importers.ports import DerivedSize, Port, Ref
from weft.importers.torch_export.graph import (
    PLACEMENT,
    CallNode,
    CallSequence,
    ExportedProgram,
    StoredTensor,
    bounds_of,
    dtype_of,
    place_of,
)
from weft.importers.torch_export.sizes import size_of


def read(program: Any, name: str) -> ExportedProgram:
    """The Program described by the ExportedProgram. Raises DTypeError for dtypes that weft
    lacks."""
    signature, graph = program.graph_signature, program.graph
    body = body_of(program.graph_module)
    nodes = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    inputs, held = [], []
    for spec in signature.input_specs:
        kind = spec.kind.name
        if kind == "USER_INPUT":
            inputs.append(_port(spec.arg, nodes))
        elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            persistent = kind == "PARAMETER" or (kind == "BUFFER" and spec.persistent is not False)
            held.append(StoredTensor(spec.arg.name, spec.target, kind == "PARAMETER", persistent))
        else:
            raise FileFormatError(f"{name}: inputs of kind {kind} are not supported")
    values = _leaf_values(graph)
    results, writes = [], []
    for spec, value in zip(signature.output_specs, values, strict=True):
        kind = spec.kind.name
        if kind == "BUFFER_MUTATION":
            writes.append((spec.target, value))
        elif kind == "USER_OUTPUT":
            results.append(value)
        else:
            raise FileFormatError(f"{name}: results of kind {kind} are not supported")
    arrays, ties, frozen = _tensors(program, held)
    tensors = {**program.state_dict, **program.constants}
    beside = [n for n, v in tensors.items() if n not in arrays and hasattr(v, "data_ptr")]
    return ExportedProgram(
        name, body, inputs, held, results, writes,
        _tree(program.call_spec.in_spec), _tree(program.call_spec.out_spec),
        {str(s): bounds_of(_int(r.lower), _int(r.upper))
         for s, r in program.range_constraints.items()},
        arrays, ties, frozen, _argument_names(program), beside,
    )  # fmt: skip


def _int(bound: Any) -> int | None:
    """A bound of PyTorch's; None for its infinities."""
    text = str(bound)
    return int(text) if text.lstrip("-").isdigit() and len(text) < 19 else None


def _argument_names(program: Any) -> list[str]:
    for entry in program.module_call_graph:
        if not entry.fqn and entry.signature is not None:
            return list(entry.signature.forward_arg_names or ())
    return []


def _port(arg: Any, nodes: Mapping[str, Any]) -> Port:
    if arg.name not in nodes or type(arg).__name__ == "ConstantArgument":
        return Port(arg.name, (), constant=True, value=arg.value)
    meta = nodes[arg.name].meta["val"]
    if not hasattr(meta, "shape"):
        return Port(arg.name, ()) if not isinstance(meta, int | float | bool | str) else (
            Port(arg.name, (), constant=True, value=meta)
        )  # fmt: skip
    return Port(arg.name, tuple(_size(s) for s in meta.shape), dtype_of(str(meta.dtype)))


def _size(size: Any) -> int | str | DerivedSize:
    if isinstance(size, int):
        return size
    import sympy

    return size_of(sympy.srepr(size.node.expr))


def _tensors(
    program: Any, held: list[StoredTensor]
) -> tuple[dict[str, np.ndarray], dict[str, str], set[str]]:
    """Arrays by dotted name, which of them share storage with which, and what is frozen."""
    arrays: dict[str, np.ndarray] = {}
    ties: dict[str, str] = {}
    frozen: set[str] = set()
    first: dict[Any, str] = {}
    for h in held:
        state = program.state_dict
        value = state[h.dotted] if h.dotted in state else program.constants[h.dotted]
        try:
            arrays[h.dotted] = shared_array("from_torch", value.detach().cpu().contiguous())
        except DTypeError as error:
            raise DTypeError(f"tensor {h.dotted!r}: {error}") from None
        dtype_of(str(value.dtype))
        key = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        if value.numel():
            ties[h.dotted] = first.setdefault(key, h.dotted)
        if not value.requires_grad:
            frozen.add(h.dotted)
    for other, value in program.state_dict.items():
        if other not in arrays:
            known = next((d for k, d in first.items() if k[0] == value.data_ptr()
                          and k[1] == tuple(value.shape)), None)  # fmt: skip
            if known is not None:
                arrays[other], ties[other] = arrays[known], known
    return arrays, ties, frozen


def _tree(spec: Any) -> dict[str, Any]:
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    context = spec.context if isinstance(spec.context, list) else None
    kind = f"{spec.type.__module__}.{spec.type.__qualname__}"
    return {"type": kind, "context": context, "children_spec": [_tree(c) for c in children]}


# -- the graph


def _leaf_values(graph: Any) -> list[Any]:
    (output,) = [n for n in graph.nodes if n.op == "output"]
    return [_value(x, None) for x in output.args[0]]


def body_of(module: Any) -> CallSequence:
    """The nodes of a GraphModule; `getitem`s of a node with several results become its names."""
    graph = module.graph
    inputs: list[str] = []
    calls: list[CallNode] = []
    outputs: list[Any] = []
    folded: set[Any] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "output":
            given = node.args[0]
            outputs = [_value(x, module) for x in (given if isinstance(given, list | tuple)
                                                   else (given,))]  # fmt: skip
        elif node.op == "call_function" and node not in folded:
            out: str | tuple[str, ...] = node.name
            if (names := _parts(node)) is not None:
                out = names
                folded.update(node.users)
            calls.append(_call(node, out, module))
    return CallSequence(inputs, calls, outputs)


def _parts(node: Any) -> tuple[str, ...] | None:
    """The names of the results of a node that has several, where they are only taken apart."""
    value = node.meta.get("val")
    taken = all(u.target is operator.getitem and isinstance(u.args[1], int) for u in node.users)
    if not isinstance(value, list | tuple) or not taken:
        return None
    names = [""] * len(value)
    for user in node.users:
        if names[user.args[1]]:  # taken twice
            return None
        names[user.args[1]] = user.name
    return tuple(names)


def _call(node: Any, out: str | tuple[str, ...], module: Any) -> CallNode:
    args = [_value(x, module) for x in node.args]
    kwargs = {k: _value(x, module) for k, x in node.kwargs.items() if k not in PLACEMENT}
    stack = node.meta.get("nn_module_stack") or {}
    path = [v[0] for v in stack.values() if v[0]] if isinstance(stack, dict) else []
    where = place_of(node.meta.get("stack_trace"), path[-1] if path else "")
    if "val" in node.meta and node.meta["val"] is None:
        out = ""
    return CallNode(_target(node.target), args, kwargs, out, where)


def _target(target: Any) -> str:
    module = getattr(target, "__module__", "")
    if module in ("_operator", "math"):
        return f"{module}.{target.__name__}"
    kind = type(target).__name__
    if kind == "OpOverload":
        return str(target)
    if "torch._ops" in str(type(target)) or hasattr(target, "dispatch"):
        return f"higher_order.{target.name() if callable(target.name) else target.__name__}"
    return f"torch.{target.__name__}"


def _value(x: Any, module: Any) -> Any:
    """An argument without anything of PyTorch's."""
    kind = type(x).__name__
    if kind == "Node":
        return body_of(getattr(module, x.target)) if x.op == "get_attr" else Ref(x.name)
    if isinstance(x, list | tuple):
        return [_value(v, module) for v in x]
    if isinstance(x, dict):
        return {k: _value(v, module) for k, v in x.items()}
    if kind == "dtype":
        return dtype_of(str(x))
    if kind in ("device", "layout", "memory_format"):
        return None
    if kind == "SymInt":
        raise FileFormatError(f"the graph has the symbolic size {x} as a plain value")
    return x
