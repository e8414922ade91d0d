"""The decoder: one function for every family, on arrays (the NumPy oracle), graph Nodes or values
on a tape.

`layer.py` has a layer; the config chooses its mixer and its feed-forward, whose variants are data.

Rows are flattened: row n is one token. In serving (`forward`), it is `ids[n]` at position `pos[n]`
of sequence slot `slot[n]`: a prefill passes many rows of one slot, a decode step one row per slot.
New keys and values are written into the caches, then each row attends to its slot's rows up to its
own position. In training (`train_forward`), the rows are whole sequences side by side, and
attention needs no cache. The rest of the code is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.core.errors import UsageError
from weft.graph.ir import Graph, Node
from weft.models.arch.altup import joined, spread
from weft.models.arch.cached import CachedPast, StepRows
from weft.models.arch.config import DecoderConfig
from weft.models.arch.hooks import INFERENCE, TrainingHooks
from weft.models.arch.inputs import columns, kv_counts, states
from weft.models.arch.layer import layer
from weft.models.arch.layer_inputs import with_layer_inputs
from weft.models.arch.layers import (
    AdapterRows,
    Pass,
    Past,
    Value,
    Weights,
    embedded,
    keep,
    product,
    rounded,
)
from weft.models.arch.matrices import matrices
from weft.models.arch.picture_rows import PictureRows, nodes, turned_tables
from weft.models.arch.places import Visit
from weft.models.arch.whole import TrainingPast
from weft.ops.picks import first_rows


def forward(
    c: DecoderConfig, w: Weights, rows: StepRows, state: Mapping[str, Value],
    gather: Callable[[Value], Value] | None = None, hooks: TrainingHooks = INFERENCE,
) -> tuple[Value, dict[str, Value]]:  # fmt: skip
    """Returns logits float32 [N or R, vocab] and the new state, by the names of `inputs.states`.

    If other machines compute the last layers (`c.run`), returns the residual stream instead of
    logits. If columns are divided, `gather` returns all ranks' columns for this rank's [N, M].
    Raises UsageError for a model that reads whole texts (`texts`).
    """
    if c.traced is not None and c.traced.whole:
        raise UsageError(f'{c.family} was loaded with cache="none"; this needs steps with a cache')
    past = CachedPast(c, rows, state, hooks)
    heads, at = next(iter(rows.at.items()))
    places = ops.reshape(at, (-1, heads))
    real = ops.less_equal(0, ops.slice_(places, (0, 0), (ops.aval(places).shape[0], 1)))
    chosen = None if rows.adapter is None else _chosen(c, rows.adapter, real)
    more = {"real": real, "gather": gather, "chosen": chosen}
    more |= {"pictures": rows.pictures, "turns": rows.turns}
    logits = body(c, w, rows.ids, rows.pos, past, hooks, rows.last, rows.x, **more)
    return logits, {name: past.new[name] for name in state}


def hooks_of(visit: Visit, inputs: Mapping[str, Value], last: Value | None) -> TrainingHooks:
    """Returns the hooks of a pass that reads and changes values; `inputs` as `Places.inputs`
    says."""
    visit.begin(inputs, last)
    return TrainingHooks(place=visit, mapped=visit.mapped)


def _chosen(c: DecoderConfig, number: Value, real: Value) -> AdapterRows:
    """Returns the adapters of rows, `number` int32 [N] or [1]. The adapter products skip padding
    and rows without an adapter."""
    some = ops.less(number, c.adapters)
    rows = ops.reshape(ops.cast(real, int32), (ops.aval(number).shape[0], -1))
    counts = ops.mul(ops.sum_(rows, 1), ops.cast(some, int32))
    return AdapterRows(first_rows(ops.remainder(number, c.adapters), counts), some)


def train_forward(
    c: DecoderConfig,
    w: Weights,
    ids: Value,
    training: TrainingHooks = INFERENCE,
    packed: bool = False,
    pictures: PictureRows | None = None,
    turns: Value | None = None,
) -> Value:
    """Returns logits float32 [B * T, vocab] of whole sequences ids int32 [B, T], each from position
    0. With `packed`, an id given as ~id begins another document, which is computed as if it were
    alone. `pictures` has rows with vectors of pictures, whose spans count from their sequence's
    beginning, `turns` int32 [B * T, 3] the rotary positions."""
    pos, past = whole(c, *ops.aval(ids).shape)
    if packed:
        first = ops.less(ids, 0)
        place = ops.iota(ops.aval(ids).shape, 1, int32)
        start = ops.reshape(ops.scan(ops.where(first, place, 0), "max", 1), (-1,))
        ids, pos = ops.where(first, ops.sub(-1, ids), ids), ops.sub(pos, start)
        past = TrainingPast(c, past.batch, past.length, start)
    if pictures is not None:
        past = replace(past, span=pictures.span)
    more: dict[str, Any] = {"pictures": pictures, "turns": turns}
    return body(c, w, ops.reshape(ids, (-1,)), pos, past, training, **more)


def embed_forward(c: DecoderConfig, w: Weights, ids: Value) -> Value:
    """Returns the input of layer 0, the residual stream float32 [B * T, hidden], for ids int32 [B,
    T]."""
    pos, _ = whole(c, *ops.aval(ids).shape)
    return _embed(c, w, ops.reshape(ids, (-1,)), pos)


def layer_forward(
    c: DecoderConfig, w: Weights, i: int, x: Value, length: int, training: TrainingHooks = INFERENCE
) -> Value:
    """Returns layer i alone applied to the residual stream x[B * length, hidden] of whole
    sequences."""
    pos, past = whole(c, ops.aval(x).shape[0] // length, length)
    return layer(_pass(c, w, pos, past, training), i, x)


def whole(c: DecoderConfig, batch: int, length: int) -> tuple[Value, TrainingPast]:
    """Returns the positions of whole sequences side by side, and their past."""
    pos = ops.const(np.tile(np.arange(length, dtype=np.int32), batch))
    return pos, TrainingPast(c, batch, length)


def _pass(
    c: DecoderConfig, w: Weights, pos: Value, past: Past, training: TrainingHooks,
    turns: Value | None = None, **more: Any,
) -> Pass:  # fmt: skip
    if turns is not None:
        tables = turned_tables(c, w, pos, turns)
    else:
        names = [name for name in w if name.startswith("rope.") or name == "query_growth"]
        tables = {name: ops.gather(w[name], pos) for name in names}
    return Pass(c, w, tables, past, training, **more)


def body(
    c: DecoderConfig, w: Weights, ids: Value, pos: Value, past: Past, training: TrainingHooks,
    last: Value | None = None, x: Value | None = None, pictures: PictureRows | None = None,
    turns: Value | None = None, **more: Any,
) -> Value:  # fmt: skip
    """Returns logits of the rows (of rows `last` if given) at positions `pos`; `c.run` limits the
    parts that are computed, as in `forward`."""
    w = matrices(c.forms, w)
    if c.traced is not None:
        from weft.models.arch.traced import traced_logits  # brings the importer's operators

        logits = traced_logits(Pass(c, w, {}, past, training, **more), ids, pos, last)
        return training.place("logits", logits)
    if x is None:
        x = _embed(c, w, ids, pos)
        x = x if pictures is None else pictures.embedded(x)
        x = training.place("embed", (training.drop or keep)(x))
    told = ids if pictures is None else pictures.told(c, ids)
    p = with_layer_inputs(_pass(c, w, pos, past, training, turns, **more), told, x)
    x = x if c.altup is None else spread(p, x)
    for i in c.here:
        x = p.at(f"{i}.out", training.layer(i, partial(layer, p, i), x))
        x = x if pictures is None else pictures.deepened(c, i, x)
    if last is not None:
        x = ops.gather(x, last)
    return output(p, x) if c.run is None or c.run.ends else x


def output(p: Pass, x: Value) -> Value:
    """Applies the output layer to the residual stream x[N, hidden]."""
    c, w = p.c, p.w
    head = "head" if "head" in w else "embed"
    x = x if c.altup is None else joined(p, x)
    h = p.at("norm", p.norm("norm", x))
    logits = product(c, w, head, rounded(c, head, h), w.get("head.b"))
    if c.logit_divisor != 1.0:
        logits = ops.div(logits, c.logit_divisor)
    if c.logit_scale != 1.0:
        logits = ops.mul(logits, c.logit_scale)
    if c.logit_softcap:
        logits = ops.mul(ops.tanh(ops.mul(logits, 1.0 / c.logit_softcap)), c.logit_softcap)
    return p.at("logits", logits)


def _embed(c: DecoderConfig, w: Weights, ids: Value, pos: Value) -> Value:
    """Returns token (and learned position) embeddings of the rows, float32 [N, hidden]."""
    x = embedded(w["embed"], ids, c.embed_scale, c.embed_scale_rounded)
    if not c.ropes:
        x = ops.add(x, ops.cast(ops.gather(w["pos"], pos), float32))
    return x


def decoder_graph(
    c: DecoderConfig,
    weights: Mapping[str, tuple[tuple[int, ...], DType]],
    rows: int,
    slots: int,
    pages: int,
    context: int,
    one: bool,
    last: bool,
    name: str,
    gather: Callable[[Value], Value] | None = None,
    visit: Visit | None = None,
    pictured: bool = False,
) -> Graph:
    """Returns the Graph of one step of at most `rows` rows (the scalar "n" is their number) over
    `pages` pages, assigned to `slots` sequences of `context` positions by the input "table" [slots,
    columns]. With `one` all rows belong to one sequence. The input "where" [rows, 2] has the slot
    and the position of each row, in one binding: WebGPU has few.

    With `last` it returns the logits of one row, given by the input "last" [1]; else of all rows.
    `weights` gives each role's shape and dtype. A part of a model (`c.run`) without the embedding
    has the input "x" [rows, hidden] instead of "ids". `gather`: see `forward`. If the model has
    adapters, the input "adapter" chooses them, with `one` for all rows [1]. The values that a
    `visit` reads are further outputs, float32 [rows, ...]. With `pictured`, rows may have a
    picture's vectors.
    """

    def given(label: str, size: int, bound: str | None = "n") -> Node:
        return ops.input_node(label, (size,), int32, "input", rows=bound)

    with ops.building():
        where = ops.input_node("where", (rows, 2), int32, "input", rows="n")
        slot, place = (
            ops.reshape(ops.slice_(where, (0, i), (rows, i + 1)), (rows,)) for i in range(2)
        )
        embeds = c.run is None or c.run.embeds
        wide = (rows, c.hidden), float32, "input"
        fed = given("ids", rows) if embeds else ops.input_node("x", *wide, rows="n")
        at = {g: given(f"at.{g}", rows * g, None) for g in kv_counts(c)}
        near = {g: given(f"window_at.{g}", rows * g, None) for g in kv_counts(c, window=True)}
        end = given("last", 1, None) if last else None
        by = given("adapter", *(1, None) if one else (rows, "n")) if c.adapters else None
        table = ops.input_node("table", (slots, columns(context)), int32, "input")
        sliding = ops.input_node("window_table", table.shape, int32, "input") if near else None
        ids, x = (fed, None) if embeds else (None, fed)
        bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
        kept = states(c, slots, context, pages).items()
        state = {k: ops.input_node(k, *what, "state") for k, what in kept}
        shown, given_too = nodes(c, rows) if pictured else (None, [])
        turns = None
        if c.turns_by:
            turns = ops.input_node("turns", (rows, 3), int32, "input", rows="n")
            given_too.append(turns)
        step = StepRows(ids, slot, place, at, table, end, x, by, near, sliding, shown, turns)
        wanted = {} if visit is None else visit.places.inputs(rows)
        changed = {k: ops.input_node(k, s, d, "input", rows=n) for k, (s, d, n) in wanted.items()}
        hooks = INFERENCE if visit is None else hooks_of(visit, changed, end)
        logits, new = forward(c, bound, step, state, gather, hooks)
    assigns = tuple((state[k], new[k]) for k in state)
    ins = [fed, where, *at.values(), table]
    ins += [*near.values(), *(more for more in (sliding, end, by) if more is not None)]
    ins += [*changed.values(), *given_too]
    outs = (logits, *(() if visit is None else visit.results()))
    return Graph((*ins, *bound.values(), *state.values()), outs, assigns, name, {"frozen": True})
