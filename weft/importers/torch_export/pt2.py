"""Reads a .pt2 file of torch.export.save: a zip of JSON and raw weights, distrusted throughout.

The layout follows torch/export/pt2_archive (PyTorch 2.13); `schema` reads the nodes of its JSON.
The archive's only pickle, its sample inputs, is not read; nothing in it is called.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.core.errors import DTypeError, FileFormatError, WeftError, unreadable
from weft.importers.hf_config import parse_json
from weft.importers.ports import Port, Ref
from weft.importers.torch_export.graph import ExportedProgram, StoredTensor, bounds_of
from weft.importers.torch_export.schema import (
    argument_of,
    body_of,
    held_of,
    name_of,
    port_of,
    scalar_name,
    tree_of,
)

MAX_GRAPH = 1 << 30  # bytes of JSON
SCHEMA = 8
_NUMPY: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype(np.uint8), "int8": np.dtype(np.int8), "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"), "float16": np.dtype("<f2"), "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"), "bool": np.dtype(np.bool_), "bfloat16": bfloat16.numpy,
}  # fmt: skip


def read(path: Path) -> ExportedProgram:
    """The program in the file. Raises FileFormatError for a file that is not a .pt2, is cut short,
    or does not hold together; DTypeError for dtypes that weft lacks."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _File(path, archive).program()
    except OSError as error:
        raise unreadable(path, error) from None
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
        return self.member(f"{base}/{name_of(name)}", self.path.stat().st_size)

    def json(self, name: str) -> Any:
        return parse_json(self.member(name, MAX_GRAPH), f"{self.path}: {name}")

    def program(self) -> ExportedProgram:
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
                results.append(argument_of(given["arg"]))
            elif kind == "buffer_mutation":
                writes.append((name_of(given["buffer_name"]), Ref(name_of(given["arg"]["name"]))))
            else:
                raise FileFormatError(f"{self.path}: results of kind {kind} are not supported")
        (whole,) = [m["signature"] for m in module["module_call_graph"] if m["fqn"] == ""]
        bounds = {
            name_of(name): bounds_of(*(self._bound(name, r[end]) for end in ("min_val", "max_val")))
            for name, r in model["range_constraints"].items()
        }
        arrays, ties, frozen, beside = self._tensors(held)
        return ExportedProgram(
            self.path.stem, body_of(graph), inputs, held, results, writes,
            self._tree(whole["in_spec"]), self._tree(whole["out_spec"]), bounds, arrays, ties,
            frozen,
            [name_of(n) for n in whole.get("forward_arg_names") or ()], beside,
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
        return tree_of(found[1])

    def _inputs(self, graph: Any, signature: Any) -> tuple[list[Port], list[StoredTensor]]:
        inputs, held = [], []
        for spec in signature["input_specs"]:
            ((kind, given),) = spec.items()
            if kind == "user_input":
                inputs.append(port_of(given["arg"], graph))
            elif kind == "parameter":
                held.append(held_of(given, "parameter_name", True, True))
            elif kind == "buffer":
                held.append(held_of(given, "buffer_name", False, bool(given["persistent"])))
            elif kind == "tensor_constant":
                held.append(held_of(given, "tensor_constant_name", False, False))
            elif kind == "constant_input":
                value = argument_of(given["value"])
                inputs.append(Port(name_of(given["name"]), (), constant=True, value=value))
            else:
                raise FileFormatError(f"{self.path}: inputs of kind {kind} are not supported")
        return inputs, held

    def _tensors(
        self, held: list[StoredTensor]
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
                    beside.append(name_of(dotted))
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
                name_of(member.removeprefix(f"{self.folder}/")) for member in self.members
                if member.startswith(f"{base}/") and member not in (name, *files)
                and member[-1] != "/"
            ]  # fmt: skip
        return arrays, ties, frozen, beside

    def _array(self, dotted: str, meta: Any, data: bytes) -> np.ndarray:
        name = scalar_name(meta["dtype"])
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
