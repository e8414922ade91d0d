"""The Graphs of the two steps of a model with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.graph.ir import Graph, Node
from weft.models.arch.seq2seq import Rows, decode, encode, states
from weft.models.arch.seq2seq_config import Seq2SeqConfig

Avals = Mapping[str, tuple[tuple[int, ...], DType]]


def encoder_graph(c: Seq2SeqConfig, weights: Avals, slots: int, shape: tuple[int, ...]) -> Graph:
    """Returns the Graph of `seq2seq.encode` for an input "given" of this shape, with inputs
    "length" and "at"."""
    count = c.positions(shape)
    with ops.building():
        given = ops.input_node("given", shape, float32 if c.hears else int32)
        length = ops.input_node("length", (2 if c.samples else 1,), int32)
        at = ops.input_node("at", (count * c.heads,), int32)
        bound, state = _bound(c, weights, slots, "cross_")
        out, new = encode(c, bound, given, length, at, state)
    return _graph(c, "encode", (given, length, at), bound, state, (out,), new)


def decoder_graph(
    c: Seq2SeqConfig,
    weights: Avals,
    slots: int,
    rows: int,
    last: bool,
    heads: Sequence[tuple[int, int]] = (),
) -> Graph:
    """Returns the Graph of `seq2seq.decode` for this number of rows. The inputs have
    the names of the fields of Rows, and with `last` logits are of 8 rows alone."""
    with ops.building():
        sizes = {"ids": rows, "slot": rows, "place": rows, "seen": rows, "at": rows * c.heads}
        sizes |= {"last": 8} if last else {}
        given = {name: ops.input_node(name, (size,), int32) for name, size in sizes.items()}
        bound, state = _bound(c, weights, slots, "")
        out, new, maps = decode(c, bound, Rows(**given), state, heads)
    outs = (out,) if maps is None else (out, maps)
    return _graph(c, f"step.{rows}", tuple(given.values()), bound, state, outs, new)


def _bound(
    c: Seq2SeqConfig, weights: Avals, slots: int, prefix: str
) -> tuple[dict[str, Node], dict[str, Node]]:
    """Returns the nodes of the weights, and of the state whose names begin with a prefix."""
    bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
    kept = {k: v for k, v in states(c, slots).items() if k.startswith(prefix)}
    return bound, {k: ops.input_node(k, *v, "state") for k, v in kept.items()}


def _graph(
    c: Seq2SeqConfig, name: str, inputs: Sequence[Node], bound: Mapping[str, Node],
    state: Mapping[str, Node], outs: tuple[Node, ...], new: Mapping[str, Node],
) -> Graph:  # fmt: skip
    ins = (*inputs, *bound.values(), *state.values())
    assigns = tuple((state[k], new[k]) for k in new)
    return Graph(ins, outs, assigns, f"{c.family}.{name}", {"frozen": True})
