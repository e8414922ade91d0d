"""The output layer alone: from the residual stream to logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft import ops
from weft.core.dtypes import DType, float32
from weft.graph.ir import Graph
from weft.models.arch.config import DecoderConfig
from weft.models.arch.decoder import output
from weft.models.arch.hooks import INFERENCE
from weft.models.arch.layers import Pass
from weft.models.arch.matrices import matrices

Value = Any  # np.ndarray or graph Node


def forward(c: DecoderConfig, w: Mapping[str, Value], x: Value) -> Value:
    """Returns logits float32 [N, vocab] of a residual stream x float32 [N, stream], as after the
    last layer: the final norm and the output layer."""
    return output(Pass(c, matrices(c.forms, w), {}, None, INFERENCE), x)  # type: ignore[arg-type]


def unembed_graph(
    c: DecoderConfig, weights: Mapping[str, tuple[tuple[int, ...], DType]], rows: int
) -> Graph:
    """Returns the Graph of `forward` for at most `rows` rows (the scalar "n") of the input "x"."""
    with ops.building():
        x = ops.input_node("x", (rows, c.stream), float32, "input", rows="n")
        bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
        logits = forward(c, bound, x)
    return Graph((x, *bound.values()), (logits,), (), f"{c.family}.unembed", {"frozen": True})
