"""How a layer works on each token by itself: one function per kind, named by
`DecoderConfig.feed_forwards`.

Each takes the pass, the layer's number and h[N, hidden], and gives float32 [N, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft import ops
from weft.models.layers import Pass, Value, activate, columns

FeedForward = Callable[[Pass, int, Value], Value]


def dense(p: Pass, i: int, h: Value) -> Value:
    """down(act(gate h) * up h) (Shazeer, arXiv:2002.05202), or down(act(up h)) without a gate."""
    c = p.c
    if not c.gated:
        return p.project(f"{i}.down", activate(c.act, p.project(f"{i}.up", h)))
    if c.fused_gate:
        gate, up = columns(p.project(f"{i}.gate_up", h), (c.ffn, c.ffn))
    else:
        up, gate = p.project(f"{i}.up", h), p.project(f"{i}.gate", h)
    return p.project(f"{i}.down", ops.mul(activate(c.act, gate), up))


FEED_FORWARDS: Mapping[str, FeedForward] = {"dense": dense}
