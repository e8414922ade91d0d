"""A layer of a decoder: norm, mixer, residual, norm, feed-forward, residual.

The config chooses mixer and feed-forward (`mixers.py`, `feed_forward.py`); one of them may be
"none", and then its norm and residual are left out too.
"""

from __future__ import annotations

from collections.abc import Callable

from weft import ops
from weft.core.dtypes import float32
from weft.models.arch.altup import alternating, learned_residual
from weft.models.arch.feed_forward import FEED_FORWARDS
from weft.models.arch.layer_inputs import layer_input
from weft.models.arch.layers import Pass, Value, keep
from weft.models.arch.mixers import MIXERS


def layer(p: Pass, i: int, x: Value) -> Value:
    """Applies layer i to the residual stream x[N, hidden]."""
    c = p.c
    if c.altup is not None:
        return alternating(p, i, x, lambda one: _parts(p, i, one))
    x = _parts(p, i, x)
    if c.layer_input:
        x = ops.add(x, layer_input(p, i, x))
    if c.layer_scale:
        scalar = ops.cast(p.w[f"{i}.scalar"], float32)
        x = ops.mul(x, ops.broadcast(scalar, ops.aval(x).shape))
    return x


def _parts(p: Pass, i: int, x: Value) -> Value:
    """Applies the mixer and the feed-forward of layer i, each with its residual."""
    c = p.c
    mixer, feed_forward = MIXERS[c.mixer(i)], FEED_FORWARDS[c.feed_forward(i)]
    if c.parallel and mixer is not None and feed_forward is not None:
        h = one = p.norm(f"{i}.attn_norm", x)
        if c.parallel == "two norms":
            h = p.norm(f"{i}.mlp_norm", x)
        drop = p.training.drop or keep
        one = p.at(f"{i}.attn.out", mixer(p, i, p.at(f"{i}.attn.in", one)))
        h = p.at(f"{i}.mlp.out", feed_forward(p, i, p.at(f"{i}.mlp.in", h), x))
        return ops.add(x, ops.add(drop(one), drop(h)))
    if mixer is not None:
        added = _added(p, f"{i}.attn", x, lambda h: mixer(p, i, h))
        added = added if c.altup is None else learned_residual(p, i, x, added)
        x = p.at(f"{i}.mid", added)
    if feed_forward is not None:
        x = _added(p, f"{i}.mlp", x, lambda h: feed_forward(p, i, h, x))
    return x


def _added(p: Pass, role: str, x: Value, part: Callable[[Value], Value]) -> Value:
    """Returns x plus the result of a part of a layer, with the norms around it."""
    c = p.c
    h = part(p.at(f"{role}.in", p.norm(f"{role}_norm", x) if c.pre_norms else x))
    h = p.norm(f"{role}_post", h) if c.post_norms else h
    h = ops.mul(h, c.residual_scale) if c.residual_scale != 1.0 else h
    h = p.at(f"{role}.out", h)
    return ops.add(x, (p.training.drop or keep)(h))
