"""Per-layer inputs (Gemma's per-layer embeddings), added to the residual stream: each is a part of
one wide embedding plus a projection of the token's usual embedding."""

from __future__ import annotations

from dataclasses import replace

from weft import ops
from weft.models.arch.layers import Pass, Value, activate, embedded


def with_layer_inputs(p: Pass, ids: Value, x: Value) -> Pass:
    """Returns the pass with the inputs of all layers side by side, float32 [N, layers *
    layer_input], for tokens ids[N] with embeddings x[N, hidden]."""
    c = p.c
    if not c.layer_input:
        return p
    if c.layer_vocab:
        ids = ops.where(ops.less(ids, c.layer_vocab), ids, 0)
    own = embedded(p.w["layer_embed"], ids, c.layer_input**0.5, c.embed_scale_rounded)
    seen = ops.mul(p.project("layer_proj", x), c.hidden**-0.5)
    seen = p.norm("layer_proj_norm", ops.reshape(seen, (-1, c.layers, c.layer_input)))
    both = ops.add(ops.reshape(seen, ops.aval(own).shape), own)
    return replace(p, inputs=ops.mul(both, 2**-0.5))


def layer_input(p: Pass, i: int, x: Value) -> Value:
    """Returns what layer i's input adds to x[N, hidden]."""
    c = p.c
    rows, start = ops.aval(x).shape[0], i * c.layer_input
    own = ops.slice_(p.inputs, (0, start), (rows, start + c.layer_input))
    h = ops.mul(activate(c.act, p.project(f"{i}.input_gate", x)), own)
    return p.norm(f"{i}.input_post", p.project(f"{i}.input_proj", h))
