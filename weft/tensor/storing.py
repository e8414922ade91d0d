"""Writing a compiled function to one file: its Program, the weights it reads, in their buffers'
order. stored.py reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.core.caps import Caps
from weft.core.errors import DTypeError, LimitError, UsageError
from weft.graph.ir import Graph
from weft.host.records import to_data
from weft.program import bundle, serial
from weft.program.bundle import Bundle
from weft.program.values import program_array
from weft.program.weights import Ordered
from weft.tensor.core import Tensor
from weft.tensor.program_cache import vouch
from weft.tensor.stored import NAME


def save_graph(
    graph: Graph,
    captured: Mapping[str, Tensor],
    path: Path,
    device: str,
    caps: Caps,
    flags: Mapping[str, Any] = {},
    beside: bool = False,
) -> Bundle:
    """Writes a traced graph, compiled for `caps` (which `device` names), with the values that the
    tensors it reads have now, which never change from then on. What was written. Raises UsageError
    for a graph that assigns to state, DTypeError or LimitError for one that the device cannot run
    whole (a file never holds some of several parts), CompileError, StorageError."""
    import weft
    from weft.compile.passes import compile_graph

    if graph.assigns:
        name = graph.assigns[0][0].attrs["name"]
        raise UsageError(f"{graph.name} assigns to {name!r}; a file holds functions without state")
    frozen = replace(graph, meta={**graph.meta, "frozen": True})
    try:
        program = compile_graph(frozen, caps, name=graph.name)
    except (DTypeError, LimitError) as error:
        raise type(error)(
            f"{error}; a file holds one Program for one device, not the parts of partition=True: "
            f"nothing was written; save it for a device that runs all of {graph.name} (cpu)"
        ) from None
    weights = {n.attrs["name"]: n for n in graph.inputs if n.attrs["role"] == "weight"}
    arrays = {
        name: program_array(captured[name].numpy(), f"tensor {name!r}").astype(
            node.dtype.numpy, copy=False
        )
        for name, node in weights.items()
    }
    head = {
        "kind": "function", "weft": weft.__version__, "name": graph.name, "device": device,
        "caps": to_data(caps), "flags": dict(flags),
    }  # fmt: skip
    data = serial.dumps(program)
    found = Bundle(head, {NAME: data}, Ordered({NAME: program}, arrays))
    bundle.write(found, path, beside)
    vouch(data, program)
    return found
