"""Latent attention (DeepSeek-V2, arXiv:2405.04434): queries, and keys with values, come from narrow
projections; all heads share the part of the keys that turns.

Each head's keys and values are products of one narrow vector per token, the latent. In serving they
are never made. A query times its head's key matrix meets the latents themselves, and the weighted
latents times the head's value matrix are the result. So the cache holds one row per token for all
heads, the latent and the turned part of the keys; the values are that row too. Training, whose
attention is over whole sequences, makes keys and values.
"""

from __future__ import annotations

import numpy as np

from weft import ops
from weft.core.dtypes import float32, int32
from weft.models.arch.layers import AdapterRows, Pass, Value, by_head, columns, picked, rounded
from weft.models.arch.recurrent import LENGTH_EPS
from weft.ops.picks import every_row, first_rows


def latent(p: Pass, i: int, h: Value) -> Value:
    """Applies latent attention to h[N, hidden]."""
    c, d = p.c, p.c.latent
    assert d is not None
    n = ops.aval(h).shape[0]
    if d.query_rank:
        q = p.project(f"{i}.q_b", _squeezed(p, f"{i}.q_a_norm", p.project(f"{i}.q_a", h)))
    else:
        q = p.project(f"{i}.q", h)
    low, turned = columns(p.project(f"{i}.kv_a", h), (d.rank, d.turned))
    low = _squeezed(p, f"{i}.kv_a_norm", low)
    q, q_turned = by_head(q, c.heads, (d.plain, d.turned))
    q_turned, turned = p.rope(i, q_turned), p.rope(i, ops.reshape(turned, (n, 1, d.turned)))
    out = (_absorbed if d.absorbed else _whole)(p, i, (q, q_turned), (low, turned))
    return p.project(f"{i}.o", ops.reshape(out, (n, c.heads * d.value)))


def _squeezed(p: Pass, role: str, x: Value) -> Value:
    return ops.call("rms_norm", x, p.w[f"{role}.w"], eps=LENGTH_EPS, offset=0.0)


def _whole(p: Pass, i: int, q: tuple[Value, Value], row: tuple[Value, Value]) -> Value:
    """Returns the results [N, H, value] with keys and values of every head; the narrower ones have
    zeros behind."""
    c, d, (low, turned) = p.c, p.c.latent, row
    assert d is not None
    n = ops.aval(low).shape[0]
    k, v = by_head(p.project(f"{i}.kv_b", low), c.heads, (d.plain, d.value))
    k = ops.concat([k, ops.broadcast(turned, (n, c.heads, d.turned))], 2)
    wide, k, v = (_widened(x, c.head_dim) for x in (ops.concat(q, 2), k, v))
    out = ops.cast(p.past.attend(i, wide, (k, v)), float32)
    return ops.slice_(out, (0, 0, 0), (n, c.heads, d.value))


def _widened(x: Value, size: int) -> Value:
    """Returns x[N, H, D] with zeros behind each head, [N, H, size]."""
    return ops.pad(x, (0, 0, 0), (0, 0, size - ops.aval(x).shape[2]))


def _absorbed(p: Pass, i: int, q: tuple[Value, Value], row: tuple[Value, Value]) -> Value:
    """Returns the results [N, H, value] without keys and values."""
    c, d, (low, turned) = p.c, p.c.latent, row
    assert d is not None
    n = ops.aval(low).shape[0]
    key = ops.concat([ops.reshape(low, (n, 1, d.rank)), turned], 2)
    wide = ops.concat([_each_head(p, i, "k_b", q[0]), q[1]], 2)
    out = ops.cast(p.past.attend(i, wide, (key, None)), float32)
    return _each_head(p, i, "v_b", ops.slice_(out, (0, 0, 0), (n, c.heads, d.rank)))


def _each_head(p: Pass, i: int, part: str, x: Value) -> Value:
    """Returns x[N, H, K] times each head's matrix, [N, H, M], with the adapters of the joined
    matrix."""
    c, role, joint, w, n = p.c, f"{i}.{part}.w", f"{i}.kv_b", p.w, ops.aval(x).shape[0]
    heads = ops.const(np.arange(c.heads, dtype=np.int32))
    if p.real is not None:  # rows of padding are not computed
        count = ops.sum_(ops.reshape(ops.cast(p.real, int32), (1, -1)), 1)
        heads = first_rows(heads, ops.broadcast(count, (c.heads,)))
    factor = _factor(p, joint, part, n)
    taken = x if factor is None or part == "v_b" else ops.mul(x, factor)
    taken = rounded(c, role, ops.transpose(taken, (1, 0, 2)))
    out = ops.transpose(picked(c.act_dtype, w[role], c.heads, taken, heads), (1, 0, 2))
    out = out if factor is None or part == "k_b" else ops.mul(out, factor)
    if f"{joint}.lora_a" in w:
        a, b = (w[f"{joint}.lora_{x}"] for x in "ab")
        out = ops.add(out, ops.mul(_low_rank(p, part, x, a, b), c.adapter_scale))
    if p.chosen is not None and f"{joint}.loras_a" in w:
        a, b = (w[f"{joint}.loras_{x}"] for x in "ab")
        made = ops.add(out, _low_rank(p, part, x, a, b, p.chosen))
        if f"{joint}.loras_c" in w and part == "v_b":  # one for keys changes no weight of theirs
            made = ops.add(made, _of_part(p, part, w[f"{joint}.loras_c"], n))
        out = ops.where(_some(p, ops.aval(out).shape), made, out)
    return out


def _factor(p: Pass, joint: str, part: str, n: int) -> Value | None:
    """Returns the factors of a part of the joined matrix's rows [N, H, plain or value], which DoRA
    gives (`adapter_merge`); None without."""
    w = p.w
    if f"{joint}.lora_m" in w:
        return _of_part(p, part, ops.reshape(w[f"{joint}.lora_m"], (1, -1)), n)
    if p.chosen is None or f"{joint}.loras_m" not in w:
        return None
    found = _of_part(p, part, w[f"{joint}.loras_m"], n)
    return ops.where(_some(p, ops.aval(found).shape), found, 1.0)


def _some(p: Pass, shape: tuple[int, ...]) -> Value:
    """Returns which rows have an adapter, as bool of `shape`."""
    assert p.chosen is not None
    return ops.broadcast(ops.reshape(p.chosen.some, (-1, 1, 1)), shape)


def _of_part(p: Pass, part: str, w: Value, n: int) -> Value:
    """Returns a number for each row of the joined matrix, w[1 or adapters, H * (plain + value)], as
    [N, H, plain or value] of the adapters that rows choose."""
    c, d = p.c, p.c.latent
    assert d is not None
    if p.chosen is not None and ops.aval(w).shape[0] == c.adapters:
        w = ops.gather(w, every_row(p.chosen.numbers))
    first, end = (0, d.plain) if part == "k_b" else (d.plain, d.plain + d.value)
    w = ops.reshape(w, (-1, c.heads, d.plain + d.value))
    w = ops.slice_(w, (0, 0, first), (ops.aval(w).shape[0], c.heads, end))
    return ops.broadcast(w, (n, c.heads, end - first))


def _low_rank(
    p: Pass, part: str, x: Value, a: Value, b: Value, chosen: AdapterRows | None = None
) -> Value:
    """Returns the addition of a low-rank adapter of the joined matrix, b a, to x[N, H, K] times
    each head's part. The matrix a is [r, rank] and b is [H * (plain + value), r], or both are
    stacks of which rows choose."""
    d = p.c.latent
    assert d is not None
    n, heads, _ = ops.aval(x).shape
    r = ops.aval(b).shape[-1]
    a, b = ops.reshape(a, (-1, r, d.rank)), ops.reshape(b, (-1, heads, d.plain + d.value, r))
    if chosen is not None:
        a, b = (ops.gather(w, every_row(chosen.numbers)) for w in (a, b))
    many = ops.aval(a).shape[0]
    first, end = (0, d.plain) if part == "k_b" else (d.plain, d.plain + d.value)
    b = ops.slice_(b, (0, 0, first, 0), (many, heads, end, r))
    a = ops.broadcast(ops.reshape(a, (many, 1, r, d.rank)), (n, heads, r, d.rank))
    b = ops.broadcast(b, (n, heads, end - first, r))
    pair = (b, a) if part == "k_b" else (_swapped(a), _swapped(b))
    out = ops.reshape(x, (n, heads, 1, -1))
    for w in pair:
        out = ops.dot(ops.cast(out, float32), ops.cast(w, float32), float32)
    return ops.reshape(out, (n, heads, -1))


def _swapped(w: Value) -> Value:
    return ops.transpose(w, (0, 1, 3, 2))
