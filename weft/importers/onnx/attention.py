"""Attention and rotary positions, as ONNX has them and as com.microsoft does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.importers.onnx.table import MICROSOFT, NodeCall, op, scalar
from weft.importers.onnx.values import NUMPY, places
from weft.tensor.core import Tensor

_HIDDEN = -1e30  # the score of a key that is not seen: finite, so that no NaN arises


@dataclass(frozen=True)
class ScoreRules:
    """The rules that turn scores into weights. `seen` (bool) and `bias` broadcast to [N, H, T, S];
    `sink` is the score of one key more, whose value is zeros, and broadcasts to [N, H, T, 1]."""

    scale: float
    softcap: float = 0.0
    seen: Tensor | None = None
    bias: Tensor | None = None
    dtype: dt.DType = dt.float32
    sink: Tensor | None = None


def heads(x: Tensor, count: int) -> Tensor:
    """[N, T, H D] as [N, H, T, D]."""
    n, t, width = x.shape
    if width % count:
        raise ShapeError(f"{list(x.shape)} into {count} heads")
    return x.reshape(n, t, count, width // count).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """[N, H, T, D] as [N, T, H D]."""
    n, h, t, d = x.shape
    return x.transpose(1, 2).reshape(n, t, h * d)


def attend(q: Tensor, k: Tensor, v: Tensor, how: ScoreRules) -> tuple[Tensor, dict[int, Tensor]]:
    """softmax(scores) v for q[N, H, T, D], k and v [N, G, S, D]; a query that sees no key gives
    zeros. Also the scores by stage: 0 the product, 1 capped, 2 with bias and mask, 3 weights."""
    if k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    wide = dt.compute_dtype(q.dtype)
    raw = q.matmul(k.mT, wide) * how.scale
    capped = (raw / how.softcap).tanh() * how.softcap if how.softcap else raw
    scores = capped if how.bias is None else capped + how.bias.cast(wide)
    visible = scores > _HIDDEN if how.bias is not None else None
    if how.seen is not None:
        visible = how.seen if visible is None else visible & how.seen
    shown = scores if how.seen is None else how.seen.where(scores, -math.inf)
    if visible is None:
        weights = _softmax(scores, how.sink)
    else:
        weights = visible.where(_softmax(visible.where(scores, _HIDDEN), how.sink), 0.0)
    out = (weights.cast(how.dtype).cast(wide) @ v.cast(wide)).cast(q.dtype)
    return out, {0: raw, 1: capped, 2: shown, 3: weights}


def _softmax(scores: Tensor, sink: Tensor | None) -> Tensor:
    if sink is None:
        return scores.softmax()
    more = sink.cast(scores.dtype).expand(*scores.shape[:-1], 1)
    return weft.concat([scores, more], axis=-1).softmax().narrow(-1, 0, scores.shape[-1])


def frontier(
    call: NodeCall, t: int, s: int, start: Any, causal: bool, left: int = -1, right: int = -1
) -> Tensor | None:
    """True where one of t queries sees one of s keys; None if all see all. `start` is the position
    of the first query (a number, or one per sequence: [N, 1, T, S])."""
    if not causal and left < 0 and right < 0:
        return None
    rows = call.tensor(np.arange(t, dtype=np.int32)).reshape(t, 1)
    at = rows + (start.reshape(-1, 1, 1, 1) if isinstance(start, Tensor) else start)
    keys = call.tensor(np.arange(s, dtype=np.int32)).reshape(1, s)
    found: Any = None
    for part in (
        keys <= at if causal else None,
        keys >= at - left if left >= 0 else None,
        keys <= at + right if right >= 0 else None,
    ):
        found = part if found is None else found if part is None else found & part
    made: Tensor = found
    return made


@op("Attention")
def attention(
    call: NodeCall, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None,
    past_k: Tensor | None = None, past_v: Tensor | None = None, valid: Tensor | None = None,
) -> Any:  # fmt: skip
    flat = q.ndim == 3
    if flat:
        q = heads(q, call.need("q_num_heads"))
        k, v = (heads(x, call.need("kv_num_heads")) for x in (k, v))
    before = 0 if past_k is None else past_k.shape[2]
    if past_k is not None and past_v is not None:
        k, v = weft.concat([past_k, k], axis=2), weft.concat([past_v, v], axis=2)
    t, s = q.shape[2], k.shape[2]
    start: Any = before
    seen: Any = None
    if valid is not None:
        counts = valid.cast(dt.int32)
        start = counts - t
        keys = call.tensor(np.arange(s, dtype=np.int32)).reshape(1, 1, 1, s)
        seen = keys < counts.reshape(-1, 1, 1, 1)
    causal = bool(call.get("is_causal", 0))
    left, right = call.get("left_window_size", -1), call.get("right_window_size", -1)
    plain = mask is None and valid is None and left < 0 and right < 0 and not call.wants(3)
    scale, cap = call.get("scale", 1 / math.sqrt(q.shape[3])), call.get("softcap", 0.0)
    if (
        plain
        and (not causal or s == t + before)
        and k.shape == v.shape
        and "softmax_precision" not in call.attrs
    ):
        made = weft.functional.attention(q, k, v, causal=causal, scale=scale, softcap=cap)
        return (joined(made) if flat else made), k, v
    edge = frontier(call, t, s, start, causal, left, right)
    seen = edge if seen is None else seen if edge is None else seen & edge
    bias: Any = None
    if mask is not None:
        short = s - mask.shape[-1]
        if short > 0:
            sides = [(0, 0)] * (mask.ndim - 1) + [(0, short)]
            if mask.dtype == dt.bool_:
                mask = mask.cast(dt.int32).pad(sides).cast(dt.bool_)
            else:
                mask = mask.pad(sides, -math.inf)
        if mask.dtype == dt.bool_:
            seen = mask if seen is None else seen & mask
        else:
            bias = mask
    code = call.get("softmax_precision", 1)
    # float32 is the most that devices have, and the least that softmax is computed in here.
    narrow = dt.as_dtype(NUMPY[code]) if code in (10, 16) else dt.float32
    how = ScoreRules(
        scale, cap, seen, bias, narrow if "softmax_precision" in call.attrs else q.dtype
    )
    made, stages = attend(q, k, v, how)
    shown = stages[call.get("qk_matmul_output_mode", 0)].cast(q.dtype) if call.wants(3) else None
    return (joined(made) if flat else made), k, v, shown


# -- rotary positions -----------------------------------------------------------------------------


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x[N, H, T, D] with the first 2 R of D turned by angles given as cos, sin [N, 1, T, R]: pairs
    (i, i + R), or (2 i, 2 i + 1)."""
    r = cos.shape[-1]
    part, rest = x[..., : 2 * r], x[..., 2 * r :]
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else (part[..., :r], part[..., r:])
    first, second = a * cos - b * sin, a * sin + b * cos
    if interleaved:
        made = weft.stack([first, second], -1).reshape(part.shape)
    else:
        made = weft.concat([first, second], axis=-1)
    return made if not rest.shape[-1] else weft.concat([made, rest], axis=-1)


def angles(cache: Tensor, positions: Tensor | None, width: int) -> Tensor:
    """Cosines or sines [N, 1, T, R] of a table by position, or as they are given per token."""
    found = cache if positions is None else cache.take(positions.cast(dt.int32), 0)
    found = found if found.ndim == 3 else found.unsqueeze(0)
    return (found[..., : width // 2] if width else found).unsqueeze(1)


@op("RotaryEmbedding")
def rotary_embedding(
    call: NodeCall, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None
) -> Tensor:
    width = call.get("rotary_embedding_dim", 0)
    wide = heads(x, call.need("num_heads")) if x.ndim == 3 else x
    c, s = (angles(v, positions, width) for v in (cos, sin))
    made = turned(wide, c, s, bool(call.get("interleaved", 0)))
    return joined(made) if x.ndim == 3 else made


@op("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding_ms(
    call: NodeCall, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    width = call.get("rotary_embedding_dim", 0)
    size = width or 2 * cos.shape[-1]
    count = call.get("num_heads", 0) or (x.shape[-1] // size if x.ndim == 3 else x.shape[1])
    wide = heads(x, count) if x.ndim == 3 else x
    n, t = wide.shape[0], wide.shape[2]
    at = positions.cast(dt.int32)
    if at.ndim == 1:  # the positions at which the sequences begin
        at = (at + call.tensor(np.arange(t, dtype=np.int32))).reshape(1, t).expand(n, t)
    c, s = (angles(v, at, width) for v in (cos, sin))
    made = turned(wide, c, s, bool(call.get("interleaved", 0))) * call.get("scale", 1.0)
    return joined(made) if x.ndim == 3 else made


# -- com.microsoft --------------------------------------------------------------------------------


@op("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    call: NodeCall, q: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    bias: Tensor | None = None, padding: Tensor | None = None, scores: Tensor | None = None,
    past_k: Tensor | None = None, past_v: Tensor | None = None, *more: Tensor | None,
) -> Any:  # fmt: skip
    count = call.need("num_heads")
    if k is None:  # packed [N, T, H, 3, D]
        q, k, v = _parts(q, 3)
    elif v is None:  # keys and values packed [N, S, H, 2, D]
        k, v = _parts(k, 2)
    if bias is not None:
        a, b = (
            q.shape[-1],
            bias.shape[0] - (v.shape[-1] if v.ndim == 3 else v.shape[1] * v.shape[3]),
        )
        q = q + bias[:a]
        k, v = (k + bias[a:b] if k.ndim == 3 else k), (v + bias[b:] if v.ndim == 3 else v)
    q, k, v = (heads(x, count) if x.ndim == 3 else x for x in (q, k, v))
    if past_k is not None and past_v is not None:
        k, v = weft.concat([past_k, k], axis=2), weft.concat([past_v, v], axis=2)
    return _attended(call, q, k, v, padding, scores), k, v


def _attended(
    call: NodeCall, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scores: Tensor | None
) -> Tensor:
    """Attention in com.microsoft's forms, [N, T, H D], of q, k and v [N, H, T, D]."""
    t, s = q.shape[2], k.shape[2]
    seen = frontier(call, t, s, s - t, bool(call.get("unidirectional", 0)))
    shown = _padding(call, mask, q.shape[0], t, s)
    seen = shown if seen is None else seen if shown is None else seen & shown
    scale = call.get("scale", 0.0) or 1 / math.sqrt(q.shape[3])
    made, _ = attend(q, k, v, ScoreRules(scale, 0.0, seen, scores, q.dtype))
    return joined(made)


def _parts(x: Tensor, count: int) -> list[Tensor]:
    """[N, T, H, count, D] as `count` tensors [N, T, H D]."""
    if x.ndim != 5 or x.shape[3] != count:
        raise ShapeError(f"{list(x.shape)}; expected [N, T, H, {count}, D]")
    n, t, h, _, d = x.shape
    return [x.narrow(3, i, 1).reshape(n, t, h * d) for i in range(count)]


def _padding(call: NodeCall, mask: Tensor | None, n: int, t: int, s: int) -> Tensor | None:
    """A mask of keys in com.microsoft's forms: [N] lengths, [N, S], [N, T, S] or [N, 1, T, S]."""
    if mask is None:
        return None
    whole = mask.cast(dt.int32)
    if whole.ndim == 1:
        keys = call.tensor(np.arange(s, dtype=np.int32)).reshape(1, 1, 1, s)
        return keys < whole[:n].reshape(n, 1, 1, 1)
    shape = {2: (n, 1, 1, s), 3: (n, 1, t, s)}.get(whole.ndim, whole.shape)
    return whole.reshape(shape) != 0


@op("Attention", domain=MICROSOFT)
def attention_ms(
    call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None, scores: Tensor | None = None, *more: Tensor | None,
) -> Any:  # fmt: skip
    count = call.need("num_heads")
    sizes = call.get("qkv_hidden_sizes") or [weight.shape[1] // 3] * 3
    made = x @ weight
    q, k, v = (heads(p, count) for p in (made if bias is None else made + bias).split(sizes, -1))
    if past is not None:
        k, v = weft.concat([past[0], k], axis=2), weft.concat([past[1], v], axis=2)
    return _attended(call, q, k, v, mask, scores), weft.stack([k, v], 0)


@op("GroupQueryAttention", domain=MICROSOFT, host=(6,))
def group_query_attention(
    call: NodeCall, q: Tensor, k: Tensor | None, v: Tensor | None, past_k: Tensor | None,
    past_v: Tensor | None, last: Tensor, total: np.ndarray, cos: Tensor | None = None,
    sin: Tensor | None = None, positions: Tensor | None = None, bias: Tensor | None = None,
    sink: Tensor | None = None, *more: Any,
) -> Any:  # fmt: skip
    """`last[b]` is the number of sequence b's last key; the new ones follow those in the cache."""
    count, groups = call.need("num_heads"), call.need("kv_num_heads")
    if k is None or v is None:
        d = q.shape[-1] // (count + 2 * groups)
        q, k, v = q.split([count * d, groups * d, groups * d], -1)
    q, k, v = heads(q, count), heads(k, groups), heads(v, groups)
    n, t, size = q.shape[0], q.shape[2], int(scalar(total))
    start = (
        (last.cast(dt.int32).reshape(n) + (1 - t))
        if size != t
        else call.tensor(np.zeros(n, np.int32))
    )
    if call.get("do_rotary", 0) and cos is not None and sin is not None:
        at = (
            start.reshape(n, 1) + call.tensor(np.arange(t, dtype=np.int32))
            if positions is None
            else positions
        )
        c, s = angles(cos, at, 0), angles(sin, at, 0)
        q, k = (turned(x, c, s, bool(call.get("rotary_interleaved", 0))) for x in (q, k))
    before = 0 if past_k is None else past_k.shape[2]
    slots = places(max(size, before), "the cache").size
    keys, values = (_cached(call, p, x, start, slots) for p, x in ((past_k, k), (past_v, v)))
    window = call.get("local_window_size", -1)
    seen = frontier(call, t, slots, start, True, window - 1 if window > 0 else -1)
    if bias is not None and bias.shape[-1] < slots:
        bias = bias.pad([(0, 0)] * 3 + [(0, slots - bias.shape[-1])])
    scale = call.get("scale", 0.0) or 1 / math.sqrt(q.shape[3])
    if sink is not None:
        sink = sink.reshape(1, -1, 1, 1)
    elif call.get("smooth_softmax", 0) == 1:
        sink = weft.zeros((1, 1, 1, 1), dt.float32)
    how = ScoreRules(scale, call.get("softcap", 0.0), seen, bias, q.dtype, sink)
    out, _ = attend(q, keys, values, how)
    return joined(out), keys, values


def _cached(call: NodeCall, past: Tensor | None, new: Tensor, start: Tensor, slots: int) -> Tensor:
    """A cache [N, G, slots, D] with the new rows of each sequence at its start."""
    n, g, t, d = new.shape
    before = 0 if past is None else past.shape[2]
    if before == 0 and t == slots:
        return new
    empty = weft.zeros((n, g, slots - before, d), new.dtype)
    cache = empty if past is None or not before else weft.concat([past, empty], axis=2)
    base = call.tensor((np.arange(n * g) * slots).astype(np.int32)).reshape(n, g, 1)
    at = base + start.reshape(n, 1, 1) + call.tensor(np.arange(t, dtype=np.int32)).reshape(1, 1, t)
    flat = cache.reshape(n * g * slots, d)
    made = weft.functional.update(flat, at.reshape(-1), new.reshape(n * g * t, d))
    return made.reshape(n, g, slots, d)
