"""Alternating updates (Baykal et al., arXiv:2301.13310), as in Gemma 3n: the residual stream is
several streams side by side, [N, streams * hidden]. A layer guesses all of them, computes one, and
corrects the others by what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft import ops
from weft.models.arch.config import DecoderConfig
from weft.models.arch.layer_inputs import layer_input
from weft.models.arch.layers import Pass, Value, columns
from weft.models.arch.mixer_sizes import AltUp

_LEAST = 1e-5  # of a mean square that is divided by


def spread(p: Pass, x: Value) -> Value:
    """Returns the streams of embeddings x[N, hidden]: themselves, and projections as long."""
    others = [p.project(f"alt_in_{j}", x) for j in range(_of(p.c).streams - 1)]
    return ops.concat([x, *(_as_long(y, x) for y in others)], 1)


def joined(p: Pass, x: Value) -> Value:
    """Returns the mean [N, hidden] of the streams x, all but the first projected and made as long
    as it."""
    first, *rest = _streams(p.c, x)
    total = first
    for j, y in enumerate(rest):
        total = ops.add(total, _as_long(p.project(f"alt_out_{j}", y), first))
    return ops.mul(total, 1 / (len(rest) + 1))


def alternating(p: Pass, i: int, x: Value, part: Callable[[Value], Value]) -> Value:
    """Applies layer i to the streams x; `part` computes one of them, [N, hidden]. The contribution
    of the layer's own input goes to all but the first."""
    active = _of(p.c).active
    guessed = _guessed(p, i, _streams(p.c, x))
    found = part(guessed[active])
    by = ops.add(p.project(f"{i}.alt_correct", _modes(p, i, found)), 1.0)
    moved = ops.sub(found, guessed[active])
    fixed = [ops.add(ops.mul(moved, _column(by, k, y)), y) for k, y in enumerate(guessed)]
    scale = ops.broadcast(ops.reshape(p.w[f"{i}.alt_scale"], (1, -1)), ops.aval(found).shape)
    more = layer_input(p, i, ops.mul(fixed[active], ops.cast(scale, ops.aval(found).dtype)))
    return ops.concat([fixed[0], *(ops.add(y, more) for y in fixed[1:])], 1)


def learned_residual(p: Pass, i: int, x: Value, added: Value) -> Value:
    """Returns a layer's result `added` after attention, joined with the learned residual of its
    normed input (LAuReL; Menghani et al., arXiv:2411.07501)."""
    h = p.norm(f"{i}.attn_norm", x)
    low = p.project(f"{i}.laurel_right", p.project(f"{i}.laurel_left", h))
    own = ops.add(h, p.norm(f"{i}.laurel_norm", low))
    return ops.mul(ops.add(added, own), 2**-0.5)


def _guessed(p: Pass, i: int, streams: Sequence[Value]) -> list[Value]:
    """Returns each stream plus a sum of all, by coefficients of the active one."""
    count = len(streams)
    by = p.project(f"{i}.alt_predict", _modes(p, i, streams[_of(p.c).active]))
    out = []
    for q, own in enumerate(streams):
        parts = [ops.mul(y, _column(by, q * count + k, y)) for k, y in enumerate(streams)]
        total = parts[0]
        for part in parts[1:]:
            total = ops.add(total, part)
        out.append(ops.add(total, own))
    return out


def _modes(p: Pass, i: int, x: Value) -> Value:
    """Returns what coefficients are made of, [N, streams], from one stream."""
    h = ops.mul(p.norm(f"{i}.alt_norm", x), 1 / p.c.hidden)
    return ops.tanh(p.project(f"{i}.alt_router", h))


def _of(c: DecoderConfig) -> AltUp:
    assert c.altup is not None
    return c.altup


def _streams(c: DecoderConfig, x: Value) -> list[Value]:
    return columns(x, [c.hidden] * _of(c).streams)


def _column(by: Value, k: int, like: Value) -> Value:
    """Returns column k of by[N, M] for every element of a row."""
    rows = ops.aval(by).shape[0]
    one = ops.slice_(by, (0, k), (rows, k + 1))
    return ops.broadcast(one, (rows, ops.aval(like).shape[1]))


def _as_long(y: Value, x: Value) -> Value:
    """Returns y[N, hidden] with the root mean square of x in each row."""
    by = ops.div(ops.sqrt(_square(x)), ops.sqrt(ops.maximum(_square(y), _LEAST)))
    return ops.mul(y, ops.broadcast(by, ops.aval(y).shape))


def _square(x: Value) -> Value:
    """Returns the mean square of each row, [N, 1]."""
    rows, wide = ops.aval(x).shape
    return ops.reshape(ops.mul(ops.sum_(ops.mul(x, x), 1), 1 / wide), (rows, 1))
