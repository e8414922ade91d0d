"""Splits decoding over a long cache into parts that are merged.

One group of a GPU per row and key/value head would leave most of the GPU idle. The whole context
would take as long as one of its processors needs.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core.order import KEY_SPAN, STREAM_ROWS
from weft.graph.ir import Graph, Node, results
from weft.ops.attention import beside, cache_shape
from weft.ops.graph_listener import make_node
from weft.transform.rebuild import make, remake, rewrite

_LENGTH = 1024  # positions of a cache: a shorter one is read before a second kernel starts


def split_decoding(graph: Graph, claimed: Callable[[Node], bool]) -> Graph:
    """The graph with `cached_attention` of few rows over long caches in parts, where a template
    has `claimed` the call that computes them. A part is a span of keys: sums stay as they are."""
    return rewrite(graph, lambda node, inputs: _split(remake(node, inputs), claimed))


def _split(node: Node, claimed: Callable[[Node], bool]) -> Node:
    if node.op != "call" or node.attrs["name"] != "cached_attention" or 0 in node.shape:
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
