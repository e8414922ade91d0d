"""Splits work so that it fills a GPU: one kernel would leave most of its cores idle.

Decoding over a long cache has one group of threads per row and key/value head, and the whole
context would take as long as one processor needs. So it is done in parts that are merged.

A GPU computes one block of results of a product per group of threads. The gradient of a small
weight has too few blocks for the GPU's cores, but K (the tokens of a batch) is long. So each span
(core/order) becomes a product of its own, and a second kernel adds the spans in ascending order.
One kernel would add them in the same order, so no bit changes. Only x transposed times g is split,
where M and N are the weight's axes.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core import dtypes as dt
from weft.core.order import KEY_SPAN, SPAN, STREAM_ROWS
from weft.graph.ir import Graph, Node, results
from weft.ops.attention import beside, cache_shape
from weft.ops.graph_listener import make_node
from weft.transform.rebuild import make, remake, rewrite

_LENGTH = 1024  # positions of a cache: a shorter one is read before a second kernel starts
GROUPS = 128  # groups of threads that keep a large GPU busy
BLOCK = 128  # rows and columns of results per group
MOST = 512  # most blocks of results that are stored: 64 KiB each


def split_decoding(graph: Graph, claimed: Callable[[Node], bool]) -> Graph:
    """The graph with `cached_attention` of few rows over long caches in parts, where a template
    has `claimed` the call that computes them. A part is a span of keys: sums stay as they are."""
    return rewrite(
        graph, lambda node, inputs: _decoding_split(remake(node, inputs), claimed), _reads_cache
    )


def _reads_cache(node: Node) -> bool:
    return node.op == "call" and node.attrs["name"] == "cached_attention"


def _decoding_split(node: Node, claimed: Callable[[Node], bool]) -> Node:
    if not _reads_cache(node) or 0 in node.shape:
        return node
    more = node.inputs[5:]
    length = cache_shape(node.inputs[1], more)[2]
    sinks = beside(more)[2]  # sinks belong to the whole, not to its parts
    if node.shape[0] > STREAM_ROWS or length <= _LENGTH or sinks:
        return node
    params = {**node.attrs["params"], "part": KEY_SPAN}
    attrs = {"name": "cached_attention_parts", "params": params}
    parts = make_node("call", node.inputs, attrs, node.where)
    if not claimed(parts):
        return node
    merge = {"name": "attention_merge", "params": {}}
    merged = make_node("call", results(parts), merge, node.where)
    return merged if node.dtype is merged.dtype else make("cast", merged, dtype=node.dtype)


# -- products ----------------------------------------------------------------------------------


def split_k(graph: Graph) -> Graph:
    """The graph with each long product of a transposed value done span by span."""
    return rewrite(
        graph, lambda node, inputs: _split(remake(node, inputs)), lambda node: node.op == "dot"
    )


def slices(m: int, n: int, k: int) -> int:
    """Returns the number of spans to compute separately, or 1 where that does not pay."""
    groups, spans = -(-m // BLOCK) * -(-n // BLOCK), k // SPAN
    pays = k % SPAN == 0 and 2 * groups <= GROUPS and groups * spans <= MOST
    return spans if pays and spans > 1 else 1


def _split(node: Node) -> Node:
    if node.op != "dot" or len(node.shape) != 2:
        return node
    a, b = node.inputs
    (m, k), n = a.shape, b.shape[1]
    if a.op != "transpose" or not a.dtype.is_float or m <= STREAM_ROWS or min(m, n, k) == 0:
        return node
    count = slices(m, n, k)
    if count == 1:
        return node
    (x,) = a.inputs
    left = make("reshape", x, shape=(count, SPAN, m))
    left = make("transpose", left, perm=(0, 2, 1))
    right = make("reshape", b, shape=(count, SPAN, n))
    partial = make("dot", left, right, where=node.where, out_dtype=dt.float32)
    spans = [_span(partial, i) for i in range(count)]
    total = spans[0]
    for span in spans[1:]:
        total = make("add", total, span, where=node.where)
    return total if node.dtype == dt.float32 else make("cast", total, dtype=node.dtype)


def _span(partial: Node, i: int) -> Node:
    """[m, n] sums of span number i."""
    m, n = partial.shape[1:]
    one = make("slice", partial, starts=(i, 0, 0), stops=(i + 1, m, n), steps=(1, 1, 1))
    return make("reshape", one, shape=(m, n))
