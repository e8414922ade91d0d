"""compile_graph: the one list of passes from a traced graph to a Program."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from weft.compile import limits
from weft.compile.channels_last import channels_last
from weft.compile.codes import PAIR, POOL, convolve_codes, is_call
from weft.compile.derive import derive
from weft.compile.grouping import Partition, partition
from weft.compile.interleave import interleave
from weft.compile.numbers import share
from weft.compile.plan import Ready, UnwritableError, build_program
from weft.compile.refused import Refusals
from weft.compile.report import CompileReport
from weft.compile.split import split
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Graph, Node
from weft.ops.check import verify
from weft.program.program import Program
from weft.templates.group import Group
from weft.templates.registry import claimed_by
from weft.transform.fold import fold
from weft.transform.inline import inline
from weft.transform.join import join_pads
from weft.transform.prune import cse, dce
from weft.transform.reduce import split_reductions
from weft.transform.scan import split_scans
from weft.transform.select_rows_early import select_rows_early
from weft.transform.sink_reshapes import sink_reshapes
from weft.transform.split_for_gpu import split_decoding, split_k

Pass = Callable[[Graph, Caps], Graph]


def _kept(node: Node, caps: Caps) -> bool:
    """True if a call should not be inlined (yet)."""
    return is_call(node, "conv", POOL, *PAIR) or claimed_by(node, caps) is not None


PASSES: tuple[tuple[str, Pass], ...] = (
    ("inline", lambda g, caps: inline(g, lambda node: _kept(node, caps))),
    ("fold", lambda g, caps: fold(g)),
    ("convolve codes", convolve_codes),
    ("channels last", channels_last),
    ("fold what is left", lambda g, caps: fold(g)),
    ("derive weights", derive),
    ("cse", lambda g, caps: cse(g)),
    ("join pads", lambda g, caps: join_pads(g)),
    ("select rows early", lambda g, caps: select_rows_early(g)),
    ("split reductions", lambda g, caps: split_reductions(g, caps.max_turns)),
    ("split scans", split_scans),
    ("split decoding", lambda g, c: split_decoding(g, lambda n: claimed_by(n, c) is not None)),
    ("sink reshapes", lambda g, caps: sink_reshapes(g)),
    (
        "split k",
        lambda g, caps: split_k(g) if caps.subgroup else g,
    ),  # keeps the many cores of GPUs busy
    ("fold again", lambda g, caps: fold(g)),
    ("split for limits", split),
    ("cse again", lambda g, caps: cse(g)),
    ("interleave weights", interleave),
    ("dce", lambda g, caps: dce(g)),
)


def simplify_graph(graph: Graph, caps: Caps, report: CompileReport | None = None) -> Graph:
    """The graph after every pass of PASSES; `report` notes its size before and after each. With
    WEFT_VERIFY set each pass's graph is verified: CompileError names the pass that broke it."""
    size = len(graph.nodes()) if report is not None else 0
    checked = os.environ.get("WEFT_VERIFY", "0") not in ("", "0")
    sound: dict[int, Node] = {}
    if checked:
        verify(graph, sound)
    for name, run in PASSES:
        graph = run(graph, caps)
        if checked:
            _verify_after(name, graph, sound)
        if report is not None:
            before, size = size, len(graph.nodes())
            report.passes.append((name, before, size))
    return graph


def _verify_after(name: str, graph: Graph, sound: dict[int, Node]) -> None:
    try:
        verify(graph, sound)
    except CompileError as error:
        raise CompileError(f"after pass {name!r}: {error}") from None


def compile_graph(
    graph: Graph, caps: Caps, name: str = "main", ready: Ready | None = None
) -> Program:
    """The Program that computes `graph` on a target with these Caps. `meta["report"]` says how.
    `ready` hears of each kernel as soon as there is one.

    Raises DTypeError for a dtype that the target lacks, LimitError for sizes beyond it (both name
    the nodes), CompileError where a template cannot do a group.
    """
    report, refused = CompileReport(name, caps.name), Refusals()
    small = _simplified(graph, caps, name, report)
    passes = list(report.passes)
    first: UnwritableError | None = None
    while True:
        parts = _partitioned(small, caps, refused)
        report = CompileReport(name, caps.name, list(passes))
        report.stored = dict(Counter(parts.reasons.values()))
        groups = share(parts.groups, caps)
        try:
            return build_program(small, groups, caps, report, ready)
        except UnwritableError as unwritable:
            first = first or unwritable
            if not refused.learn(unwritable.group):
                raise first.error from first.__cause__


def groups_of(graph: Graph, caps: Caps) -> list[Group]:
    """The groups that `graph` becomes, each to be one kernel. Raises as compile_graph."""
    return _partitioned(_simplified(graph, caps, graph.name, None), caps, Refusals()).groups


def _simplified(graph: Graph, caps: Caps, name: str, report: CompileReport | None) -> Graph:
    limits.check_dtypes(graph, caps)
    small = simplify_graph(graph, caps, report)
    return Graph(small.inputs, small.outputs, small.assigns, name, small.meta)


def _partitioned(small: Graph, caps: Caps, refused: Refusals) -> Partition:
    kinds: dict[int, str | None] = {}

    def claimed(node: Node) -> str | None:
        if id(node) not in kinds:
            kinds[id(node)] = claimed_by(node, caps)
        return kinds[id(node)]

    return partition(small, caps, claimed, refused)
