"""Reads a .pt2 file of torch.export.save: a zip of JSON and raw weights, distrusted throughout.

The layout follows torch/export/pt2_archive and torch/_export/serde/schema.py (PyTorch 2.13, schema
8). The archive's only pickle, its sample inputs, is not read; nothing in it is called.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import DType, bfloat16
from weft.core.errors import DTypeError, FileFormatError, WeftError
from weft.importers.hf_config import parse_json
from weft.importers.ports import Port, Ref, Size
from weft.importers.torch_export.graph import (
    PLACEMENT,
    Body,
    Call,
    Held,
    Program,
    bounds_of,
    dtype_of,
    place_of,
)
from weft.importers.torch_export.sizes import size_of

_PLAIN = ("as_int", "as_bool", "as_string", "as_ints", "as_bools", "as_strings", "as_int_lists")
MAX_GRAPH = 1 << 30  # bytes of JSON
SCHEMA = 8
_SCALARS = (
    "unknown", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool", "bfloat16",
)  # fmt: skip
_NUMPY: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype(np.uint8), "int8": np.dtype(np.int8), "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"), "float16": np.dtype("<f2"), "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"), "bool": np.dtype(np.bool_), "bfloat16": bfloat16.numpy,
}  # fmt: skip


def read(path: Path) -> Program:
    """The program in the file. Raises FileFormatError for a file that is not a .pt2, is cut short,
    or does not hold together; DTypeError for dtypes that weft lacks."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _File(path, archive).program()
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except zipfile.BadZipFile as error:
        raise FileFormatError(
            f"{path}: not a whole .pt2 file ({error}); save it again with torch.export.save"
        ) from None
    except (EOFError, NotImplementedError, RuntimeError) as error:  # from zipfile, or recursion
        if isinstance(error, WeftError):
            raise
        raise FileFormatError(f"{path}: cannot be read: {str(error)[:100]}") from None
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        if isinstance(error, WeftError):
            raise
        raise FileFormatError(
            f"{path}: its model.json is not as torch.export.save writes it: "
            f"{type(error).__name__} {str(error)[:100]}"
        ) from None


class _File:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        self.members = {i.filename: i for i in archive.infolist()}
        models = [n for n in self.members if n.count("/") == 2 and "/models/" in n]
        if len(models) != 1 or not models[0].endswith(".json"):
            raise FileFormatError(
                f"{path}: holds {len(models)} models, expected one that torch.export.save of "
                "PyTorch 2.13 wrote; load others with torch.export.load and give the program"
            )
        self.model = models[0]
        self.folder = self.model.split("/")[0]

    def member(self, name: str, limit: int) -> bytes:
        """A member, which is as long as it says and not longer than the file."""
        info = self.members.get(name)
        if info is None:
            raise FileFormatError(f"{self.path}: {name!r} is missing")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
            raise FileFormatError(
                f"{self.path}: {name!r} is compressed or has {info.file_size} bytes; expected a "
                f"stored member of at most {limit}"
            )
        data = self.archive.read(info)
        if len(data) != info.file_size:
            raise FileFormatError(f"{self.path}: {name!r} is cut short")
        return data

    def weight(self, base: str, name: Any) -> bytes:
        """A member in the folder of the weights' config."""
        return self.member(f"{base}/{_name(name)}", self.path.stat().st_size)

    def json(self, name: str) -> Any:
        return parse_json(self.member(name, MAX_GRAPH), f"{self.path}: {name}")

    def program(self) -> Program:
        model = self.json(self.model)
        version = model["schema_version"]["major"]
        order = f"{self.folder}/byteorder"
        if version != SCHEMA or (order in self.members and self.member(order, 64) != b"little"):
            raise FileFormatError(
                f"{self.path}: schema {version}, expected {SCHEMA} in little-endian order; load it "
                "with torch.export.load and give from_torch the program"
            )
        module = model["graph_module"]
        graph, signature = module["graph"], module["signature"]
        inputs, held = self._inputs(graph, signature)
        results, writes = [], []
        for spec in signature["output_specs"]:
            ((kind, given),) = spec.items()
            if kind == "user_output":
                results.append(_argument(given["arg"]))
            elif kind == "buffer_mutation":
                writes.append((_name(given["buffer_name"]), Ref(_name(given["arg"]["name"]))))
            else:
                raise FileFormatError(f"{self.path}: results of kind {kind} are not supported")
        (whole,) = [m["signature"] for m in module["module_call_graph"] if m["fqn"] == ""]
        bounds = {
            _name(name): bounds_of(*(self._bound(name, r[end]) for end in ("min_val", "max_val")))
            for name, r in model["range_constraints"].items()
        }
        arrays, ties, frozen, beside = self._tensors(held)
        return Program(
            self.path.stem, _body(graph), inputs, held, results, writes,
            self._tree(whole["in_spec"]), self._tree(whole["out_spec"]), bounds, arrays, ties,
            frozen,
            [_name(n) for n in whole.get("forward_arg_names") or ()], beside,
        )  # fmt: skip

    def _bound(self, name: str, value: Any) -> int | None:
        """One end of a size's range; None without a bound."""
        if value is not None and type(value) is not int:
            raise FileFormatError(
                f"{self.path}: range_constraints of {name!r:.80} hold {value!r:.40}; expected "
                "whole numbers; save it again with torch.export.save"
            )
        return value

    def _tree(self, text: str) -> dict[str, Any]:
        found = parse_json(text.encode(), f"{self.path}: a tree")
        if not isinstance(found, list) or len(found) != 2 or found[0] != 1:
            raise FileFormatError(f"{self.path}: a tree of arguments in an unknown form")
        return _parsed_tree(found[1])

    def _inputs(self, graph: Any, signature: Any) -> tuple[list[Port], list[Held]]:
        inputs, held = [], []
        for spec in signature["input_specs"]:
            ((kind, given),) = spec.items()
            if kind == "user_input":
                inputs.append(_port(given["arg"], graph))
            elif kind == "parameter":
                held.append(_held(given, "parameter_name", True, True))
            elif kind == "buffer":
                held.append(_held(given, "buffer_name", False, bool(given["persistent"])))
            elif kind == "tensor_constant":
                held.append(_held(given, "tensor_constant_name", False, False))
            elif kind == "constant_input":
                value = _argument(given["value"])
                inputs.append(Port(_name(given["name"]), (), constant=True, value=value))
            else:
                raise FileFormatError(f"{self.path}: inputs of kind {kind} are not supported")
        return inputs, held

    def _tensors(
        self, held: list[Held]
    ) -> tuple[dict[str, np.ndarray], dict[str, str], set[str], list[str]]:
        """Arrays by dotted name, which of them share storage with which, what is frozen, and what
        is not read."""
        arrays: dict[str, np.ndarray] = {}
        ties: dict[str, str] = {}
        frozen: set[str] = set()
        beside: list[str] = []
        first: dict[str, str] = {}
        used = {h.dotted for h in held}
        for kind in ("weights", "constants"):
            base = f"{self.folder}/data/{kind}"
            name = f"{base}/model_{kind}_config.json"
            config = self.json(name)["config"] if name in self.members else {}
            files = {f"{base}/{entry['path_name']}" for entry in config.values()}
            stored: dict[str, bytes] = {}
            for dotted, entry in config.items():
                if entry["use_pickle"] and dotted in used:
                    raise FileFormatError(f"{self.path}: tensor {dotted!r} is pickled; not read")
                meta = entry["tensor_meta"]
                if entry["use_pickle"] or meta is None:
                    beside.append(_name(dotted))
                    continue
                file = f"{base}/{entry['path_name']}"
                if file not in stored:
                    stored[file] = self.weight(base, entry["path_name"])
                arrays[dotted] = self._array(dotted, meta, stored[file])
                if arrays[dotted].size:
                    ties[dotted] = first.setdefault(f"{file} {meta}", dotted)
                if not meta["requires_grad"]:
                    frozen.add(dotted)
            beside += [
                _name(member.removeprefix(f"{self.folder}/")) for member in self.members
                if member.startswith(f"{base}/") and member not in (name, *files)
                and member[-1] != "/"
            ]  # fmt: skip
        return arrays, ties, frozen, beside

    def _array(self, dotted: str, meta: Any, data: bytes) -> np.ndarray:
        name = _scalar_name(meta["dtype"])
        dtype = _NUMPY.get(name)
        if dtype is None:
            raise DTypeError(f"{self.path}: tensor {dotted!r} is {name}, which weft does not have")
        shape = [int(s["as_int"]) for s in meta["sizes"]]
        strides = [int(s["as_int"]) for s in meta["strides"]]
        offset = int(meta["storage_offset"]["as_int"])
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides))
        whole = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
        bad = min([*shape, *strides, offset], default=0) < 0 or len(shape) != len(strides)
        if bad or len(shape) > 32 or (0 not in shape and last >= whole.size):
            raise FileFormatError(
                f"{self.path}: tensor {dotted!r} {shape} with strides {strides} at {offset} does "
                f"not lie in its {len(data)} bytes"
            )
        if 0 in shape:
            return np.zeros(shape, dtype)
        steps = [s * dtype.itemsize for s in strides]
        view = np.lib.stride_tricks.as_strided(whole[offset:], shape, steps, writeable=False)
        if math.prod(shape) > whole.size:
            raise FileFormatError(f"{self.path}: tensor {dotted!r} {shape} repeats its elements")
        return np.ascontiguousarray(view).reshape(shape)


def _scalar_name(code: Any) -> str:
    known = isinstance(code, int) and 0 <= code < len(_SCALARS)
    return _SCALARS[code] if known else f"dtype {code}"


def _parsed_tree(tree: Any) -> dict[str, Any]:
    context = tree["context"]
    keys = parse_json(context.encode(), "a tree's context") if isinstance(context, str) else None
    children = [_parsed_tree(c) for c in tree["children_spec"]]
    keys = keys if isinstance(keys, list) else None
    return {"type": tree["type"], "context": keys, "children_spec": children}


def _name(text: Any) -> str:
    """A name of the file's, which is shown in errors and on terminals."""
    if not isinstance(text, str) or not text.isprintable() or len(text) > 1000:
        raise FileFormatError(f"a name in the file is {ascii(text)[:80]}; expected printable text")
    return text


def _held(given: Any, key: str, trained: bool, persistent: bool) -> Held:
    return Held(_name(given["arg"]["name"]), _name(given[key]), trained, persistent)


def _port(arg: Any, graph: Any) -> Port:
    ((kind, given),) = arg.items()
    if kind == "as_tensor":
        meta = graph["tensor_values"][given["name"]]
        sizes = tuple(_size(s) for s in meta["sizes"])
        return Port(_name(given["name"]), sizes, dtype_of(_scalar_name(meta["dtype"])))
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        return Port(_name(given["as_name"]), ())
    raise FileFormatError(f"an input of kind {kind} is not supported")


def _size(size: Mapping[str, Any]) -> int | str | Size:
    if "as_int" in size:
        return int(size["as_int"])
    return size_of(str(size["as_expr"]["expr_str"]))


# -- the graph


def _body(graph: Any) -> Body:
    inputs = [_argument(a) for a in graph["inputs"]]
    calls = [_call(node) for node in graph["nodes"]]
    names = [a.name for a in inputs if isinstance(a, Ref)]
    return Body(names, calls, [_argument(a) for a in graph["outputs"]])


def _call(node: Any) -> Call:
    args, kwargs = [], {}
    for given in node["inputs"]:
        if given["kind"] == 1:
            args.append(_argument(given["arg"]))
        elif given["name"] not in PLACEMENT:
            kwargs[_name(given["name"])] = _argument(given["arg"])
    data = node.get("metadata") or {}
    stack = data.get("nn_module_stack", "").split(";")[-1].split(",")
    where = _name(place_of(data.get("stack_trace"), stack[1] if len(stack) > 1 else ""))
    target = _name(node["target"]).removeprefix("torch.ops.")
    return Call(target, args, kwargs, _outputs(node["outputs"]), where)


def _outputs(outputs: Any) -> str | tuple[str, ...]:
    if len(outputs) == 1:
        ((kind, given),) = outputs[0].items()
        if kind == "as_tensors":
            return tuple(_name(t["name"]) for t in given)
        return _out_name(kind, given)
    return tuple(_out_name(*next(iter(o.items()))) for o in outputs) or ""


def _out_name(kind: str, given: Any) -> str:
    if kind == "as_none":
        return ""
    return _name(given["name"] if kind == "as_tensor" else given["as_name"])


def _argument(arg: Any) -> Any:
    """A value of the schema's union: {"as_int": 3}, {"as_tensor": {"name": "x"}}, ..."""
    ((kind, given),) = arg.items()
    if kind in ("as_none", "as_device", "as_layout", "as_memory_format"):
        return None
    if kind == "as_tensor":
        return Ref(_name(given["name"]))
    if kind == "as_tensors":
        return [Ref(_name(t["name"])) for t in given]
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
        return [_argument(a) for a in given] if isinstance(given, list) else _argument(given)
    if kind == "as_graph":
        return _body(given["graph"])
    raise FileFormatError(f"an argument of kind {kind} is not supported")


def _symbol(given: Mapping[str, Any]) -> Any:
    return Ref(_name(given["as_name"])) if "as_name" in given else next(iter(given.values()))


def _dtype(code: int) -> DType:
    return dtype_of(_scalar_name(code))
