"""WEFT_VERIFY=1: a compiled function is traced again at each call, and must give the same Graph.

Guards see what a trace read of modules and optimisers. A global, a list in a closure or a NumPy
array that changes after the first call is seen only by tracing again.
"""

from __future__ import annotations

import os

from weft.core.errors import TraceError
from weft.graph.differ import difference
from weft.tensor.entries import CompiledSignature
from weft.tensor.tracing import Traced


def wanted() -> bool:
    """True if WEFT_VERIFY asks for it; "graphs" asks for the compiler's checks alone."""
    return os.environ.get("WEFT_VERIFY", "0") not in ("", "0", "graphs")


def check_same(name: str, entry: CompiledSignature, again: Traced) -> None:
    """Raises TraceError, saying what differs, unless `again` is the trace that `entry` runs."""
    said = difference(again.graph, entry.graph) or _others(entry, again)
    if said is not None:
        raise TraceError(
            f"{name}: its trace changed since it was compiled: {said}. It read something that weft "
            "does not watch (a global, a closure, a list, a NumPy array); pass that as an argument,"
            " keep it in a Tensor, or call weft.compile again after changing it"
        )


def _others(entry: CompiledSignature, again: Traced) -> str | None:
    """Describes what differs besides the Graph: the tensors that it reads, and the numbers it
    returns."""
    new = [again.captured.get(n.attrs["name"]) for n in again.graph.inputs]
    old = [entry.captured.get(n.attrs["name"]) for n in entry.graph.inputs]
    for node, a, b in zip(entry.graph.inputs, new, old):
        if a is not b:
            return f"{node.attrs['name']} is another tensor"
    if repr(again.tree.marks) != repr(entry.tree.marks):
        return "the numbers or the nesting of what it returns are others"
    return None
