"""Feed-forward parts of layers, which work on each token alone: one function per kind, named by
`DecoderConfig.feed_forwards`.

Each takes the pass, the layer's number, h[N, hidden] and x[N, hidden], where h is the norm of x. It
returns float32 [N, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft import ops
from weft.core.dtypes import float32, int32
from weft.core.order import STREAM_ROWS
from weft.models.arch.config import DecoderConfig
from weft.models.arch.layers import Pass, Value, activate, columns, gated, rounded, scaled
from weft.ops.picks import first_rows

FeedForward = Callable[[Pass, int, Value, Value], Value]


def dense(p: Pass, i: int, h: Value, x: Value) -> Value:
    """Returns down(act(gate h) * up h), or down(act(up h)) without a gate."""
    c = p.c
    if not c.gated:
        up = p.project(f"{i}.up", h)
        return p.project(f"{i}.down", xielu(p, i, up) if c.act == "xielu" else activate(c.act, up))
    if c.fused_gate:
        gate, up = columns(p.project(f"{i}.gate_up", h), [c.layer(i).ffn] * 2)
    else:
        up, gate = p.project(f"{i}.up", h), p.project(f"{i}.gate", h)
    least = c.cuts[i] if c.cuts else None
    gate = scaled(gate, c.gate_scale) if least is None else _cut(gate, least)
    out = p.project(f"{i}.down", gated(c, gate, up))
    return scaled(out, c.down_scale)


def _cut(x: Value, least: float) -> Value:
    """Returns how far each element of x[N, M] is above the row's mean and `least` standard
    deviations; 0 if it is below (Gemma 3n's sparse activations)."""
    rows, wide = ops.aval(x).shape

    def mean(y: Value) -> Value:
        total = ops.reshape(ops.mul(ops.sum_(y, 1), 1 / wide), (rows, 1))
        return ops.broadcast(total, (rows, wide))

    middle = mean(x)
    away = ops.sub(x, middle)
    spread = ops.sqrt(mean(ops.mul(away, away)))
    return ops.call("relu", ops.sub(x, ops.add(middle, ops.mul(spread, least))))


def xielu(p: Pass, i: int, x: Value) -> Value:
    """Applies xIELU (Huang and Schlag, arXiv:2411.13010), with the layer's numbers:
    a x^2 + beta x for x > 0, else b (exp(min(x, eps)) - 1 - x) + beta x."""

    def number(name: str) -> Value:
        one = ops.reshape(ops.cast(p.w[f"{i}.xielu_{name}"], float32), (1, 1))
        if name.startswith("alpha"):
            one = ops.softplus(one)
        return ops.broadcast(one, ops.aval(x).shape)

    beta = number("beta")
    above = ops.mul(ops.mul(number("alpha_p"), x), x)
    low = ops.sub(ops.sub(ops.exp(ops.minimum(x, number("eps"))), 1.0), x)
    below = ops.mul(low, ops.add(beta, number("alpha_n")))
    return ops.add(ops.where(ops.less(0.0, x), above, below), ops.mul(beta, x))


def experts(p: Pass, i: int, h: Value, x: Value) -> Value:
    """Applies experts alone; the router sees the experts' input."""
    return _experts(p, i, h, h)


def dense_and_experts(p: Pass, i: int, h: Value, x: Value) -> Value:
    """Applies Gemma 4's dense feed-forward and experts in parallel, with norms of their own; the
    router has one too."""
    routed = ops.mul(p.norm(f"{i}.router_norm", x), p.c.hidden**-0.5)
    chosen = _experts(p, i, p.norm(f"{i}.exps_norm", x), routed)
    one = p.norm(f"{i}.dense_post", dense(p, i, h, x))
    return ops.add(one, p.norm(f"{i}.exps_post", chosen))


def _experts(p: Pass, i: int, h: Value, routed: Value) -> Value:
    """Returns the sum of the chosen experts, each a dense feed-forward, weighted by the router's
    result for `routed` (Shazeer et al., arXiv:1701.06538). The weights of other experts are not
    read."""
    c, whole = p.c, h
    n, wide = ops.aval(h).shape[0], c.expert_hidden or c.hidden
    weights, chosen = _route(p, i, routed)
    if c.expert_hidden:
        h = p.project(f"{i}.exps_in", h)
    many = n > STREAM_ROWS
    numbers, pair, slot = pair_blocks(p, chosen) if many else (chosen, None, None)
    token = ops.remainder(pair, n) if many else None

    def rows(role: str) -> Value:
        if c.weighs_input:
            return rounded(c, f"{role}.w", _weighed(h, weights, token, pair))
        if many:
            return rounded(c, f"{role}.w", h, lambda x: ops.gather(x, token))
        x = ops.reshape(rounded(c, f"{role}.w", h), (n, 1, 1, wide))
        return ops.broadcast(x, (n, c.experts_used, 1, wide))

    if c.fused_experts:
        both = p.pick(f"{i}.gate_up_exps", rows(f"{i}.gate_up_exps"), numbers)
        inner = gated(c, *(_half(both, j, c.fused_experts == "turns") for j in (0, 1)))
    else:
        roles = [f"{i}.{part}_exps" for part in (("gate", "up") if c.gated else ("up",))]
        parts = [p.pick(role, rows(role), numbers) for role in roles]
        inner = gated(c, *parts) if c.gated else activate(c.act, *parts)
    down = f"{i}.down_exps"
    out = p.pick(down, rounded(c, f"{down}.w", inner), numbers)
    shape = (n, c.experts_used, wide)
    out = ops.gather(ops.reshape(out, (-1, wide)), slot) if many else ops.reshape(out, shape)
    if not c.weighs_input:
        out = ops.mul(out, ops.broadcast(ops.reshape(weights, (*shape[:2], 1)), shape))
    out = ops.sum_(out, 1)
    if c.expert_hidden:
        out = p.project(f"{i}.exps_out", out)
    return ops.add(out, _shared(p, i, whole)) if c.shared_ffn else out


def _weighed(h: Value, weights: Value, token: Value | None, pair: Value | None) -> Value:
    """Returns what each chosen expert takes of h[N, K], times its weight: [N, E, 1, K], or in the
    places of blocks ([B, R], by token and pair) [B, R, K]."""
    n, wide = ops.aval(h).shape
    if token is None:
        shape = (n, ops.aval(weights).shape[1], 1, wide)
        rows, by = ops.reshape(h, (n, 1, 1, wide)), ops.reshape(weights, (*shape[:3], 1))
        rows = ops.broadcast(rows, shape)
    else:
        rows, by = ops.gather(h, token), ops.reshape(ops.transpose(weights), (-1,))
        by = ops.reshape(ops.gather(by, pair), (*ops.aval(token).shape, 1))
    return ops.mul(rows, ops.broadcast(by, ops.aval(rows).shape))


def _shared(p: Pass, i: int, h: Value) -> Value:
    """Applies the expert that every token uses, times a gate of its own if it has one."""
    c = p.c
    if not c.gated:
        inner = activate(c.act, p.project(f"{i}.shared_up", h))
    elif c.fused_gate:
        inner = gated(c, *columns(p.project(f"{i}.shared_gate_up", h), [c.shared_ffn] * 2))
    else:
        up, gate = (p.project(f"{i}.shared_{part}", h) for part in ("up", "gate"))
        inner = gated(c, gate, up)
    out = p.project(f"{i}.shared_down", inner)
    if not c.shared_gate:
        return out
    by = ops.call("sigmoid", p.project(f"{i}.shared_by", h))
    return ops.mul(out, ops.broadcast(by, ops.aval(out).shape))


def _half(both: Value, j: int, turns: bool) -> Value:
    """Returns half j (0 or 1) of the last axis; with `turns` every other element, starting at j."""
    *lead, wide = ops.aval(both).shape
    if not turns:
        start = j * wide // 2
        return ops.slice_(both, (*[0] * len(lead), start), (*lead, start + wide // 2))
    pairs = ops.reshape(both, (*lead, wide // 2, 2))
    one = ops.slice_(pairs, (*[0] * len(lead), 0, j), (*lead, wide // 2, j + 1))
    return ops.reshape(one, (*lead, wide // 2))


def pair_blocks(p: Pass, chosen: Value) -> tuple[Value, Value, Value]:
    """Groups rows by expert into blocks of R rows, each of one expert.

    Returns three arrays. The first, int32 [B], encodes each block's expert and its number of valid
    rows (all, if a derivative is taken). The second, int32 [B, R], has the pair of each row of a
    block: k * N + n for chosen[n, k]. The third, int32 [N, K], has the place in the blocks of each
    chosen[N, K]. Tokens that are not `real` get no block.
    """
    n, k = ops.aval(chosen).shape
    pairs, count, real = n * k, p.c.experts, p.real
    size, most = block_rows(pairs, count), min(count, pairs)
    each, number = (ops.iota((many,), 0, int32) for many in (count, (pairs - most) // size + most))

    def grid(x: Value, y: Value) -> tuple[Value, Value]:
        """Returns two vectors broadcast along the rows and the columns of a table."""
        shape = (ops.aval(x).shape[0], ops.aval(y).shape[0])
        down = ops.broadcast(ops.reshape(x, (-1, 1)), shape)
        return down, ops.broadcast(ops.reshape(y, (1, -1)), shape)

    def tally(yes: Value) -> Value:
        return ops.sum_(ops.cast(yes, int32), 1)

    def before(x: Value) -> Value:
        """Returns for each expert the sum over the experts before it."""
        own, other = grid(each, each)
        return ops.sum_(ops.where(ops.less(other, own), grid(each, x)[1], 0), 1)

    turned = ops.transpose(chosen)  # this ends the run-time bound on rows: pair (k, n)
    if real is not None:
        there = ops.broadcast(ops.reshape(real, (1, n)), (k, n))
        turned = ops.where(there, turned, count)
    owner = ops.reshape(turned, (pairs,))
    order = ops.sort(owner, 0, indices=True)
    place = ops.sort(order, 0, indices=True)
    counts = tally(ops.equal(*grid(each, owner)))
    needs = ops.floor_divide(ops.add(counts, size - 1), size)
    start, first = before(counts), before(needs)
    own, end = grid(number, ops.add(first, needs))
    expert = ops.remainder(tally(ops.less_equal(end, own)), count)
    inside = ops.mul(ops.sub(number, ops.gather(first, expert)), size)
    wanted = ops.minimum(ops.maximum(ops.sub(ops.gather(counts, expert), inside), 0), size)
    begin = ops.add(ops.gather(start, expert), inside)
    at = ops.minimum(ops.add(*grid(begin, ops.iota((size,), 0, int32))), pairs - 1)
    pair = ops.gather(order, at)
    slot = ops.add(ops.mul(ops.gather(first, owner), size), place)
    slot = ops.sub(slot, ops.gather(start, owner))
    numbers = expert if p.training.derived else first_rows(expert, wanted)
    return numbers, pair, ops.transpose(ops.reshape(slot, (k, n)))


def block_rows(pairs: int, experts: int) -> int:
    """Returns the rows per block: with evenly spread rows, most experts fit into one block."""
    return min(max(-(-3 * pairs // (2 * experts * 16)) * 16, 32), 256)


def _route(p: Pass, i: int, h: Value) -> tuple[Value, Value]:
    """Returns for each row the `experts_used` most probable experts: float32 weights and int32
    numbers [N, K], most probable first (ties by number). With a `router_bias` it counts too."""
    c = p.c
    logits = p.project(f"{i}.router", h)
    n = ops.aval(h).shape[0]
    shape = (n, c.experts_used)
    shares = None
    if c.router_bias:  # counts for the choice, not in the weights
        shares = ops.call(c.router, logits)
        bias = ops.reshape(ops.cast(p.w[f"{i}.router_bias"], float32), (1, c.experts))
        logits = ops.add(shares, ops.broadcast(bias, ops.aval(shares).shape))
    if c.expert_groups > 1:
        shares = ops.call(c.router, logits) if shares is None else shares
        logits = _of_best_groups(c, logits if c.router_bias else shares)
    order = ops.sort(logits, 1, descending=True, indices=True)
    chosen = ops.slice_(order, (0, 0), shape)
    shares = ops.call(c.router, logits) if shares is None else shares
    start = ops.mul(ops.iota(shape, 0, int32), c.experts)
    weights = ops.gather(ops.reshape(shares, (-1,)), ops.add(start, chosen))
    if c.expert_norm:
        total = ops.reshape(ops.sum_(weights, 1), (n, 1))
        weights = ops.div(weights, ops.broadcast(total, shape))
    if c.expert_scale != 1.0:
        weights = ops.mul(weights, c.expert_scale)
    scale = p.w.get(f"{i}.exps_scale")
    if scale is not None:
        weights = ops.mul(weights, ops.gather(ops.cast(scale, float32), chosen))
    return weights, chosen


def _of_best_groups(c: DecoderConfig, scores: Value) -> Value:
    """Returns scores[N, E] with those far below all others that are in none of the best groups."""
    n, shape = ops.aval(scores).shape[0], (c.expert_groups, c.experts // c.expert_groups)
    groups = ops.reshape(scores, (n, *shape))
    best = ops.slice_(ops.sort(groups, 2, descending=True), (0, 0, 0), (n, shape[0], c.group_best))
    order = ops.sort(ops.sum_(best, 2), 1, descending=True, indices=True)
    kept = ops.less(ops.sort(order, 1, indices=True), c.groups_used)  # by the place of each
    kept = ops.broadcast(ops.reshape(kept, (n, shape[0], 1)), (n, *shape))
    return ops.reshape(ops.where(kept, groups, -1e30), (n, c.experts))


FEED_FORWARDS: Mapping[str, FeedForward | None] = {
    "dense": dense,
    "experts": experts,
    "dense and experts": dense_and_experts,
    "none": None,
}
