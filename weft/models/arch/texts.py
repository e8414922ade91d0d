"""A traced decoder that keeps nothing of earlier tokens: the logits of a whole text."""

from __future__ import annotations

from collections.abc import Mapping

from weft import ops
from weft.core.dtypes import DType, int32
from weft.graph.ir import Graph
from weft.models.arch.config import DecoderConfig
from weft.models.arch.hooks import INFERENCE
from weft.models.arch.layers import AdapterRows, Pass, Value, Weights
from weft.models.arch.matrices import matrices
from weft.models.arch.traced import traced_logits
from weft.models.arch.whole import TrainingPast
from weft.ops.picks import first_rows


def text_forward(
    c: DecoderConfig, w: Weights, ids: Value, last: Value, adapter: Value | None = None
) -> Value:
    """Returns logits float32 [R, vocab] of the rows `last` int32 [R] of a text, ids int32 [N].
    `adapter` [1] is the number of its adapter, c.adapters for none; None if the model lacks
    adapters."""
    n = ops.aval(ids).shape[0]
    pos, chosen = ops.iota((n,), 0, int32), None
    if adapter is not None:
        some = ops.less(adapter, c.adapters)
        counts = ops.mul(ops.cast(some, int32), n)
        chosen = AdapterRows(first_rows(ops.remainder(adapter, c.adapters), counts), some)
    p = Pass(c, matrices(c.forms, w), {}, TrainingPast(c, 1, n), INFERENCE, chosen=chosen)
    return traced_logits(p, ids, pos, last)


def text_graph(
    c: DecoderConfig, weights: Mapping[str, tuple[tuple[int, ...], DType]], length: int, rows: int
) -> Graph:
    """Returns the Graph of `text_forward` for a text of `length` tokens, with inputs "ids"
    [length], "last" [rows] and, if the model has adapters, "adapter" [1]."""
    with ops.building():
        sizes = {"ids": length, "last": rows, **({"adapter": 1} if c.adapters else {})}
        given = {k: ops.input_node(k, (n,), int32, "input") for k, n in sizes.items()}
        bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
        logits = text_forward(c, bound, *given.values())
    name = f"{c.family}.text{length}"
    return Graph((*given.values(), *bound.values()), (logits,), (), name, {"frozen": True})
