"""Files that hold another framework's graph, as the commands show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.core.errors import TraceError, UsageError

if TYPE_CHECKING:
    from weft.importers.imported import Imported
    from weft.importers.onnx.model import OnnxModel
    from weft.tensor.tracing import Traced


def imported(path: str) -> Imported | OnnxModel:
    """The module in the file at `path`."""
    from weft.importers import from_onnx, from_torch

    return from_onnx(path) if path.endswith(".onnx") else from_torch(path)


def traced(path: str, sizes: Mapping[str, int], quant: str | None = None) -> Traced:
    """The graph of the file at `path`; see `traced_module`."""
    return traced_module(path, imported(path), sizes, quant)


def traced_module(
    path: str, module: Imported | OnnxModel, sizes: Mapping[str, int], quant: str | None = None
) -> Traced:
    """The graph of a file's module for these sizes by name (others: an ONNX file's 1, else the
    least that is allowed), with its linear weights packed by the scheme `quant`. Raises UsageError
    for one that decides by values what it computes."""
    if quant is not None:
        from weft.quantize.imported import quantize_imported

        module = quantize_imported(module, quant)
    try:
        return module.traced(sizes)
    except TraceError as error:
        raise UsageError(f"{path}: {error}; a file holds one Program") from None


def summary(module: Imported | OnnxModel, as_json: bool) -> str:
    """Inputs, results, weights and operators: aligned text, or one JSON object."""
    found = module.summary()
    if as_json:
        return json.dumps(found)
    lines = [found["name"]]
    for label in ("inputs", "results", "writes"):
        if label == "results" or found[label]:
            parts = found[label]
            shown = parts if isinstance(parts, list) else [json.dumps(parts)]
            lines += [f"  {label if i == 0 else '':<11}{part}" for i, part in enumerate(shown)]
    size = f"{found['parameters']:,} in {found['bytes'] / 1e6:,.1f} MB with buffers"
    lines.append(f"  {'parameters':<11}{size}")
    count = sum(found["ops"].values())
    lines.append(f"  {'steps':<11}{count} of {len(found['ops'])} operators")
    return "\n".join(lines + [f"  {n:>9}  {op}" for op, n in found["ops"].items()])
