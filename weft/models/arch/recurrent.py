"""Mixers without attention: what a row takes from earlier rows of its sequence comes from the last
few of them (a short convolution) and from a memory that all of them wrote (a recurrence).

Each takes the pass, the layer's number and h[N, hidden], and returns float32 [N, hidden].
"""

from __future__ import annotations

import numpy as np

from weft import ops
from weft.core.dtypes import float32
from weft.models.arch.layers import (
    Pass,
    Value,
    activate,
    by_head,
    columns,
    normed,
    scaled,
    weighted,
)


def short_conv(p: Pass, i: int, h: Value) -> Value:
    """Applies LFM2's gated short convolution: each channel of b * x over the last few rows, times
    c, where b, c and x are projections of h."""
    c = p.c
    b, gate, x = columns(p.project(f"{i}.conv_in", h), [c.hidden] * 3)
    return p.project(f"{i}.conv_out", ops.mul(gate, _convolved(p, i, ops.mul(b, x))))


def _convolved(p: Pass, i: int, z: Value) -> Value:
    """Convolves each channel of z[N, C] over the last few rows of its sequence."""
    c, shape = p.c, ops.aval(z).shape
    wide = shape[1]
    taps = ops.cast(ops.reshape(p.w[f"{i}.conv.w"], (wide, c.conv_taps)), float32)
    out = weighted(p.past.recent(i, z, c.conv_taps), taps)
    if c.conv_bias:
        out = ops.add(out, ops.broadcast(ops.cast(p.w[f"{i}.conv.b"], float32), shape))
    return out


def delta(p: Pass, i: int, h: Value) -> Value:
    """Applies Gated DeltaNet (Yang, Kautz and Hatamizadeh, arXiv:2412.06464): a short convolution
    of queries, keys and values, the gated delta rule, a norm of each head's result and a gate."""
    c, d = p.c, p.c.delta
    assert d is not None
    n = ops.aval(h).shape[0]
    mixed, z, b, a = _delta_parts(p, i, h)
    mixed = activate(c.act, _convolved(p, i, mixed))
    qk, v = columns(mixed, (2 * d.keys, d.values))
    # A vector of length 1 has mean square 1 after division by the root of its size.
    even = ops.const(np.full(d.key_dim, d.key_dim**-0.5, np.float32))
    qk = ops.reshape(qk, (n, 2 * d.key_heads, d.key_dim))
    qk = ops.call("rms_norm", qk, even, eps=LENGTH_EPS / d.key_dim, offset=0.0)
    q, k = columns(ops.reshape(qk, (n, 2 * d.keys)), (d.keys, d.keys))
    step = ops.softplus(ops.add(a, ops.broadcast(_vector(p, f"{i}.decay_bias"), ops.aval(a).shape)))
    speed = ops.broadcast(ops.exp(_vector(p, f"{i}.decay")), ops.aval(a).shape)
    gates = ops.concat([ops.exp(ops.neg(ops.mul(speed, step))), ops.call("sigmoid", b)], 1)
    q, k = (ops.reshape(x, (n, d.key_heads, d.key_dim)) for x in (q, k))
    v = ops.reshape(v, (n, d.value_heads, d.value_dim))
    gates = columns(gates, (d.value_heads, d.value_heads))
    scale = d.key_dim**-0.5
    out = p.past.recur(i, q, k, v, *gates, tiled=d.tiled, scale=scale)
    out = ops.call("rms_norm", out, p.w[f"{i}.delta_norm.w"], eps=c.norm_eps, offset=0.0)
    gate = activate("silu", ops.reshape(z, ops.aval(out).shape))
    return p.project(f"{i}.delta_out", ops.reshape(ops.mul(out, gate), (n, d.values)))


LENGTH_EPS = 1e-6  # added to squared lengths of queries and keys, and to squares of latent ones


def _delta_parts(p: Pass, i: int, h: Value) -> tuple[Value, Value, Value, Value]:
    """Returns queries, keys and values side by side [N, C], the gate's input [N, H * V], and the
    inputs of each head's learning and forgetting rates [N, H] each."""
    d = p.c.delta
    assert d is not None
    n, share = ops.aval(h).shape[0], d.value_heads // d.key_heads
    if d.fused_qkvz:
        sizes = (d.key_dim, d.key_dim, share * d.value_dim, share * d.value_dim)
        parts = by_head(p.project(f"{i}.delta_qkvz", h), d.key_heads, sizes)
        *mixed, z = (ops.reshape(x, (n, -1)) for x in parts)
        qkv = ops.concat(mixed, 1)
    else:
        qkv, z = (p.project(f"{i}.delta_{part}", h) for part in ("qkv", "z"))
    if d.fused_ba:
        parts = by_head(p.project(f"{i}.delta_ba", h), d.key_heads, (share, share))
        b, a = (ops.reshape(x, (n, d.value_heads)) for x in parts)
    else:
        b, a = (p.project(f"{i}.delta_{part}", h) for part in "ba")
    return qkv, z, b, a


def _vector(p: Pass, role: str) -> Value:
    return ops.reshape(ops.cast(p.w[role], float32), (1, -1))


def mamba2(p: Pass, i: int, h: Value) -> Value:
    """Applies a state space with one decay per head (Mamba 2: Dao and Gu, arXiv:2405.21060)."""
    c, s = p.c, p.c.space
    assert s is not None
    n = ops.aval(h).shape[0]
    joined = p.project(f"{i}.ssm_in", scaled(h, s.scale_in))
    if any(by != 1.0 for by in s.scales):
        by = np.repeat(np.array(s.scales, np.float32), s.projected)
        joined = ops.mul(joined, _repeated(ops.const(by.reshape(1, -1)), joined))
    z, x, step = columns(joined, (s.inner, s.kept.channels, s.heads))
    x = activate("silu", _convolved(p, i, x))
    x, key, query = columns(x, s.projected[1:4])
    step = _step(p, i, step)
    faded = ops.mul(_repeated(ops.exp(_vector(p, f"{i}.decay")), step), step)
    x = ops.reshape(x, (n, s.heads, s.width))
    v = ops.mul(x, _repeated(ops.reshape(step, (n, s.heads, 1)), x))
    query, key = (ops.reshape(t, (n, s.groups, s.state)) for t in (query, key))
    out = p.past.recur(i, query, key, v, ops.exp(ops.neg(faded)))
    skip = ops.reshape(_vector(p, f"{i}.ssm_skip"), (1, s.heads, 1))
    out = ops.reshape(ops.add(out, ops.mul(x, _repeated(skip, x))), (n, s.inner))
    gate = activate("silu", z)
    out = ops.mul(out, gate) if s.norm != "first" else out
    if s.norm:
        out = normed(out, p.w[f"{i}.ssm_norm.w"], c.norm_eps, s.groups)
    out = ops.mul(out, gate) if s.norm == "first" else out
    return p.project(f"{i}.ssm_out", out)


def mamba(p: Pass, i: int, h: Value) -> Value:
    """Applies a state space in which every channel has decays of its own (Mamba: Gu and Dao,
    arXiv:2312.00752). They are computed in the recurrence, where each is used once."""
    s = p.c.space
    assert s is not None
    n = ops.aval(h).shape[0]
    x, z = columns(p.project(f"{i}.ssm_in", h), (s.inner, s.inner))
    x = activate("silu", _convolved(p, i, x))
    low, key, query = columns(p.project(f"{i}.ssm_x", x), (s.rank, s.state, s.state))
    if s.norms:
        low, key, query = (
            normed(t, p.w.get(f"{i}.ssm_{name}_norm.w"), s.norms_eps)
            for name, t in (("dt", low), ("b", key), ("c", query))
        )
    step = _step(p, i, p.project(f"{i}.ssm_dt", low))
    full = (n, 1, s.state, s.inner)
    speed = ops.exp(ops.cast(p.w[f"{i}.decay"], float32))  # [K, C]
    faded = ops.mul(ops.broadcast(speed, full), _repeated(ops.reshape(step, (n, 1, 1, -1)), full))
    v = ops.reshape(ops.mul(x, step), (n, 1, s.inner))
    query, key = (ops.reshape(t, (n, 1, s.state)) for t in (query, key))
    out = p.past.recur(i, query, key, v, ops.exp(ops.neg(faded)))
    out = ops.add(
        ops.reshape(out, (n, s.inner)), ops.mul(x, _repeated(_vector(p, f"{i}.ssm_skip"), x))
    )
    return p.project(f"{i}.ssm_out", ops.mul(out, activate("silu", z)))


def _step(p: Pass, i: int, x: Value) -> Value:
    """Returns the steps of time [N, H or C] between a row and the one before it."""
    s = p.c.space
    assert s is not None
    step = ops.softplus(ops.add(x, _repeated(_vector(p, f"{i}.decay_bias"), x)))
    low, high = s.step_limits
    step = ops.maximum(step, low) if low > 0 else step
    return ops.minimum(step, high) if high < float("inf") else step


def _repeated(x: Value, like: Value) -> Value:
    """Returns x with the shape of `like`, or with this shape."""
    return ops.broadcast(x, like if isinstance(like, tuple) else ops.aval(like).shape)
