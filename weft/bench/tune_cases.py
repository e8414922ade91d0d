"""The cases that `weft tune` measures: products of given sizes, or the groups of a model's
steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft import ops
from weft.compile import tuning
from weft.compile.passes import groups_of
from weft.compile.signature import signature
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.errors import UsageError
from weft.graph.ir import Graph
from weft.templates.group import Group

Size = tuple[int, int, int]  # rows, columns, terms of a product


@dataclass(frozen=True)
class TuneCase:
    """One group to be tuned, its class, and the same with other rows where it can be made."""

    label: str
    group: Group
    shapes: str
    other: Group | None = None


def parse_sizes(text: str) -> list[Size]:
    """ "512..2048" (powers of two, square), "512", "512x2048x1024" (rows, columns, terms), or a
    comma list of them. Raises UsageError for anything else."""
    found: list[Size] = []
    try:
        for part in text.split(","):
            ends = [int(n) for n in part.split("..")] if ".." in part else []
            if ends:
                first, last = ends
                squares = [first << i for i in range(16) if 0 < first << i <= last]
                found += [(n, n, n) for n in squares]
                continue
            sides = [int(n) for n in part.split("x")]
            m, n, k = sides * 3 if len(sides) == 1 else sides
            found.append((m, n, k))
    except ValueError:
        found = []
    if not found or any(not 0 < n <= 65536 for size in found for n in size):
        raise UsageError(f"--sizes takes 512..4096, 512 or 64x4096x1024, not {text!r}")
    return found


def product_cases(
    kinds: Sequence[str], sizes: Sequence[Size], dtypes: Sequence[DType], caps: Caps
) -> list[TuneCase]:
    """Returns products of the given sizes: as matmul with the right operand in both orders, as
    matvec (one row) with the rows of a checkpoint's weight. Sizes that become another kind are left
    out."""
    found = []
    for kind in kinds:
        for m, n, k in sizes:
            rows = 1 if kind == "matvec" else m
            for dtype in dtypes:
                for lies in ("nk",) if kind == "matvec" else ("kn", "nk"):
                    case = _product(kind, (rows, n, k), dtype, lies, caps)
                    found += [case] if case is not None else []
    return found


def _product(kind: str, size: Size, dtype: DType, lies: str, caps: Caps) -> TuneCase | None:
    m, n, k = size
    group = _only(_graph(m, n, k, dtype, lies), caps, kind)
    if group is None:
        return None
    other = _only(_graph(m // 2 + 1 if m > 1 else 3, n, k, dtype, lies), caps, kind)
    label = f"{m}x{n}x{k} {dtype.name} {lies}"
    return TuneCase(label, group, tuning.shape_class(group), other)


def _graph(m: int, n: int, k: int, dtype: DType, lies: str) -> Graph:
    shape = (n, k) if lies == "nk" else (k, n)
    x, w = ops.input_node("x", (m, k), dtype), ops.input_node("w", shape, dtype)
    with ops.building():
        out = ops.dot(x, ops.transpose(w, (1, 0)) if lies == "nk" else w)
    return Graph((x, w), (out,), name="tune")


def _only(graph: Graph, caps: Caps, kind: str) -> Group | None:
    groups = [g for g in groups_of(graph, caps) if g.kind == kind]
    return groups[0] if len(groups) == 1 else None


def model_cases(graphs: Mapping[str, Graph], kinds: Sequence[str], caps: Caps) -> list[TuneCase]:
    """The groups of a model's steps, equal ones once."""
    found: dict[str, TuneCase] = {}
    for step, graph in graphs.items():
        for group in groups_of(graph, caps):
            if group.kind in kinds and not group.in_place:
                label = f"{step} {group.name} {list(group.outputs[0].shape)}"
                case = TuneCase(label, group, tuning.shape_class(group))
                found.setdefault(signature(group), case)
    return list(found.values())
