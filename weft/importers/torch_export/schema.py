"""Reads the parts of a .pt2 file's model.json: names, arguments, nodes, and the graphs within.

They follow torch/_export/serde/schema.py (PyTorch 2.13, schema 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.dtypes import DType
from weft.core.errors import FileFormatError
from weft.importers.hf_config import parse_json
from weft.importers.ports import DerivedSize, Port, Ref
from weft.importers.torch_export.graph import (
    PLACEMENT,
    CallNode,
    CallSequence,
    StoredTensor,
    dtype_of,
    place_of,
)
from weft.importers.torch_export.sizes import size_of

_PLAIN = ("as_int", "as_bool", "as_string", "as_ints", "as_bools", "as_strings", "as_int_lists")
_SCALARS = (
    "unknown", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool", "bfloat16",
)  # fmt: skip


def scalar_name(code: Any) -> str:
    known = isinstance(code, int) and 0 <= code < len(_SCALARS)
    return _SCALARS[code] if known else f"dtype {code}"


def tree_of(tree: Any) -> dict[str, Any]:
    context = tree["context"]
    keys = parse_json(context.encode(), "a tree's context") if isinstance(context, str) else None
    children = [tree_of(c) for c in tree["children_spec"]]
    keys = keys if isinstance(keys, list) else None
    return {"type": tree["type"], "context": keys, "children_spec": children}


def name_of(text: Any) -> str:
    """A name of the file's, which is shown in errors and on terminals."""
    if not isinstance(text, str) or not text.isprintable() or len(text) > 1000:
        raise FileFormatError(f"a name in the file is {ascii(text)[:80]}; expected printable text")
    return text


def held_of(given: Any, key: str, trained: bool, persistent: bool) -> StoredTensor:
    return StoredTensor(name_of(given["arg"]["name"]), name_of(given[key]), trained, persistent)


def port_of(arg: Any, graph: Any) -> Port:
    ((kind, given),) = arg.items()
    if kind == "as_tensor":
        meta = graph["tensor_values"][given["name"]]
        sizes = tuple(_size(s) for s in meta["sizes"])
        return Port(name_of(given["name"]), sizes, dtype_of(scalar_name(meta["dtype"])))
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        return Port(name_of(given["as_name"]), ())
    raise FileFormatError(f"an input of kind {kind} is not supported")


def _size(size: Mapping[str, Any]) -> int | str | DerivedSize:
    if "as_int" in size:
        return int(size["as_int"])
    return size_of(str(size["as_expr"]["expr_str"]))


# -- the graph


def body_of(graph: Any) -> CallSequence:
    inputs = [argument_of(a) for a in graph["inputs"]]
    calls = [_call(node) for node in graph["nodes"]]
    names = [a.name for a in inputs if isinstance(a, Ref)]
    return CallSequence(names, calls, [argument_of(a) for a in graph["outputs"]])


def _call(node: Any) -> CallNode:
    args, kwargs = [], {}
    for given in node["inputs"]:
        if given["kind"] == 1:
            args.append(argument_of(given["arg"]))
        elif given["name"] not in PLACEMENT:
            kwargs[name_of(given["name"])] = argument_of(given["arg"])
    data = node.get("metadata") or {}
    stack = data.get("nn_module_stack", "").split(";")[-1].split(",")
    where = name_of(place_of(data.get("stack_trace"), stack[1] if len(stack) > 1 else ""))
    target = name_of(node["target"]).removeprefix("torch.ops.")
    return CallNode(target, args, kwargs, _outputs(node["outputs"]), where)


def _outputs(outputs: Any) -> str | tuple[str, ...]:
    if len(outputs) == 1:
        ((kind, given),) = outputs[0].items()
        if kind == "as_tensors":
            return tuple(name_of(t["name"]) for t in given)
        return _out_name(kind, given)
    return tuple(_out_name(*next(iter(o.items()))) for o in outputs) or ""


def _out_name(kind: str, given: Any) -> str:
    if kind == "as_none":
        return ""
    return name_of(given["name"] if kind == "as_tensor" else given["as_name"])


def argument_of(arg: Any) -> Any:
    """A value of the schema's union: {"as_int": 3}, {"as_tensor": {"name": "x"}}, ..."""
    ((kind, given),) = arg.items()
    if kind in ("as_none", "as_device", "as_layout", "as_memory_format"):
        return None
    if kind == "as_tensor":
        return Ref(name_of(given["name"]))
    if kind == "as_tensors":
        return [Ref(name_of(t["name"])) for t in given]
    if kind in _PLAIN:
        return given
    if kind == "as_float":
        return float(given)  # infinities are strings
    if kind == "as_floats":
        return [float(x) for x in given]
    if kind == "as_scalar_type":
        return _dtype(given)
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        return _symbol(given)
    if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
        return [_symbol(x) for x in given]
    if kind in ("as_optional_tensor", "as_optional_tensors", "as_nested_tensors"):
        return [argument_of(a) for a in given] if isinstance(given, list) else argument_of(given)
    if kind == "as_graph":
        return body_of(given["graph"])
    raise FileFormatError(f"an argument of kind {kind} is not supported")


def _symbol(given: Mapping[str, Any]) -> Any:
    return Ref(name_of(given["as_name"])) if "as_name" in given else next(iter(given.values()))


def _dtype(code: int) -> DType:
    return dtype_of(scalar_name(code))
