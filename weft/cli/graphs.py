"""Files that hold another framework's graph, as the commands show them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.importers.imported import Imported


def imported(path: str) -> Imported:
    """The module in the file at `path`."""
    from weft.importers import from_torch

    return from_torch(path)


def summary(module: Imported, as_json: bool) -> str:
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
