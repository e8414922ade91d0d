"""How a layer works on each token by itself: one function per kind, named by
`DecoderConfig.feed_forwards`.

Each takes the pass, the layer's number and h[N, hidden], and gives float32 [N, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft import ops
from weft.core.dtypes import int32
from weft.models.layers import Pass, Value, activate, columns, gated

FeedForward = Callable[[Pass, int, Value], Value]


def dense(p: Pass, i: int, h: Value) -> Value:
    """down(act(gate h) * up h), or down(act(up h)) without a gate."""
    c = p.c
    if not c.gated:
        return p.project(f"{i}.down", activate(c.act, p.project(f"{i}.up", h)))
    if c.fused_gate:
        gate, up = columns(p.project(f"{i}.gate_up", h), (c.ffn, c.ffn))
    else:
        up, gate = p.project(f"{i}.up", h), p.project(f"{i}.gate", h)
    return p.project(f"{i}.down", gated(c, gate, up))


def experts(p: Pass, i: int, h: Value) -> Value:
    """The sum of the chosen experts, each a dense feed-forward, times what the router gives it
    (Shazeer et al., arXiv:1701.06538). Of the others no weight is read."""
    c = p.c
    n = ops.aval(h).shape[0]
    weights, chosen = _route(p, i, h)
    lead = (n, c.experts_used, 1)
    x = ops.broadcast(ops.reshape(h, (n, 1, 1, c.hidden)), (*lead, c.hidden))
    if c.fused_gate:  # a row of the one, a row of the other
        both = ops.reshape(p.pick(f"{i}.gate_up_exps", x, chosen), (*lead, c.expert_ffn, 2))
        parts = (ops.slice_(both, (0, 0, 0, 0, j), (*lead, c.expert_ffn, j + 1)) for j in (0, 1))
        gate, up = (ops.reshape(x, (*lead, c.expert_ffn)) for x in parts)
    else:
        gate, up = (p.pick(f"{i}.{role}_exps", x, chosen) for role in ("gate", "up"))
    out = p.pick(f"{i}.down_exps", gated(c, gate, up), chosen)
    by = ops.broadcast(ops.reshape(weights, (*lead, 1)), (*lead, c.hidden))
    out = ops.reshape(ops.sum_(ops.mul(out, by), 1), (n, c.hidden))
    return ops.add(out, _shared(p, i, h)) if c.shared_ffn else out


def _shared(p: Pass, i: int, h: Value) -> Value:
    """The expert that every token uses, times a gate of its own."""
    up, gate = (p.project(f"{i}.shared_{part}", h) for part in ("up", "gate"))
    out = p.project(f"{i}.shared_down", gated(p.c, gate, up))
    by = ops.call("sigmoid", p.project(f"{i}.shared_by", h))
    return ops.mul(out, ops.broadcast(by, ops.aval(out).shape))


def _route(p: Pass, i: int, h: Value) -> tuple[Value, Value]:
    """Of each row the `experts_used` likeliest experts, float32 weights and int32 numbers [N, K],
    the likeliest first (of equals the first)."""
    c = p.c
    logits = p.project(f"{i}.router", h)
    n = ops.aval(h).shape[0]
    shape = (n, c.experts_used)
    order = ops.sort(logits, 1, descending=True, indices=True)
    chosen = ops.slice_(order, (0, 0), shape)
    shares = ops.reshape(ops.call("softmax", logits), (-1,))
    start = ops.mul(ops.iota(shape, 0, int32), c.experts)
    weights = ops.gather(shares, ops.add(start, chosen))
    if c.expert_norm:
        total = ops.reshape(ops.sum_(weights, 1), (n, 1))
        weights = ops.div(weights, ops.broadcast(total, shape))
    return weights, chosen


FEED_FORWARDS: Mapping[str, FeedForward] = {"dense": dense, "experts": experts}
