"""The derivative of attention: composites whose bodies materialise the scores (templates do not).

Let s be the scores, p = exp(s - lse) the weights, g the gradient of the output and delta = sum(g *
out, -1). The gradients are dv = p^T g, ds = p * (g v^T - delta), dq = ds k, dk = ds^T q. (Dao et
al., "FlashAttention", 2022, appendix B.4.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.ops import functions as f
from weft.ops.attention import seen_keys
from weft.ops.composite import COMPOSITES, Composite, register_composite
from weft.ops.composites import MASKED, compute
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want

UNSEEN = 1e30  # the log-sum-exp of a row that sees no key: every exp(s - lse) is 0


def _check(
    name: str, q: Aval, k: Aval, rest: Sequence[tuple[Aval, Aval]], n: Sequence[Aval]
) -> None:
    """`rest` pairs each further operand with what it must be; `n` is lengths, if given."""
    want(name, q, "float")
    ok = len(q.shape) == len(k.shape) == 4 and len(n) <= 1
    ok = ok and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    ok = ok and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    if not ok or any(x.shape != y.shape for x, y in rest) or any(x.shape != q.shape[:1] for x in n):
        given = ", ".join(map(repr, (q, k, *(x for x, _ in rest), *n)))
        raise ShapeError(
            f"{name}: got {given}; expected q and g [B,H,T,D], k and v [B,G,S,D] with H a "
            "multiple of G, lse and delta [B,H,T], lengths [B]"
        )
    bad = [x for x, y in ((k, q), *rest) if x.dtype != y.dtype]
    bad += [x for x in n if x.dtype != dt.int32]
    if bad:
        raise DTypeError(f"{name}: {bad[0]} does not go with q {q}; lengths are int32")


def _row(q: Aval) -> Aval:
    return Aval(q.shape[:3], dt.compute_dtype(q.dtype))


def _lse_abstract(q: Aval, k: Aval, *n: Aval, **params: Any) -> Aval:
    _check("attention_lse", q, k, (), n)
    return _row(q)


def _parts_abstract(name: str):  # type: ignore[no-untyped-def]
    def abstract(
        q: Aval, k: Aval, v: Aval, g: Aval, lse: Aval, delta: Aval, *n: Aval, **params: Any
    ) -> Aval:
        row = _row(q)
        _check(name, q, k, ((v, k), (g, q), (lse, row), (delta, row)), n)
        return q if name == "attention_dq" else Aval((2, *k.shape), k.dtype)

    return abstract


def _grad_abstract(q: Aval, k: Aval, v: Aval, g: Aval, *n: Aval, **params: Any) -> Any:
    _check("attention_grad", q, k, ((v, k), (g, q)), n)
    shapes = ((b, rows, heads, d) for b, heads, rows, d in (x.shape for x in (q, k, v)))
    return tuple(Aval(shape, q.dtype) for shape in shapes)


# -- bodies ---------------------------------------------------------------------------------------


def _grouped(x: Value, k: Value) -> Value:
    """[B,H,T,...] as [B,G,H/G*T,...]: the heads that share keys side by side."""
    b, h, t, *rest = aval(x).shape
    g = aval(k).shape[1]
    return f.reshape(x, (b, g, h // g * t, *rest))


def _scores(
    q: Value, k: Value, lengths: Sequence[Value], params: dict[str, Any]
) -> tuple[Value, Value | None, Value | None]:
    """(scores [B,G,R,S], their mask, the slope of the soft cap), the last two None without one."""
    scores = f.mul(f.dot(compute(_grouped(q, k)), f.swap_last(compute(k))), params["scale"])
    slope = None
    if params["softcap"]:
        bent = f.tanh(f.mul(scores, 1.0 / params["softcap"]))
        scores, slope = f.mul(bent, params["softcap"]), f.sub(1.0, f.mul(bent, bent))
    mask = seen_keys(q, k, lengths, params["causal"], params["window"])
    return (scores if mask is None else f.where(mask, scores, MASKED)), mask, slope


def _along(row: Value, like: Value) -> Value:
    """One value per row of `like`, repeated along it."""
    shape = aval(like).shape
    return f.broadcast(f.reshape(row, (*shape[:-1], 1)), shape)


def _lse(q: Value, k: Value, *lengths: Value, **params: Any) -> Value:
    shape = aval(q).shape[:3]
    if 0 in (*aval(q).shape, *aval(k).shape):
        return f.full_like(f.sum_(compute(q), 3), UNSEEN)
    scores, mask, _ = _scores(q, k, lengths, params)
    top = f.max_(scores, -1)
    weights = f.exp(f.sub(scores, _along(top, scores)))
    if mask is None:
        return f.reshape(f.add(f.log(f.sum_(weights, -1)), top), shape)
    total = f.sum_(f.where(mask, weights, 0.0), -1)
    empty = f.equal(total, 0.0)
    lse = f.add(f.log(f.where(empty, 1.0, total)), top)
    return f.reshape(f.where(empty, UNSEEN, lse), shape)


def _weights(
    q: Value, k: Value, v: Value, g: Value, lse: Value, delta: Value,
    lengths: Sequence[Value], params: dict[str, Any],
) -> tuple[Value, Value]:  # fmt: skip
    """p and scale * ds, both [B,G,R,S]."""
    scores, mask, slope = _scores(q, k, lengths, params)
    p = f.exp(f.sub(scores, _along(lse, scores)))
    if mask is not None:
        p = f.where(mask, p, 0.0)
    dp = f.dot(_grouped(compute(g), k), f.swap_last(compute(v)))
    ds = f.mul(f.mul(p, f.sub(dp, _along(delta, dp))), params["scale"])
    return p, (ds if slope is None else f.mul(ds, slope))


def _dq(
    q: Value, k: Value, v: Value, g: Value, lse: Value, delta: Value, *n: Value, **params: Any
) -> Value:
    if 0 in (*aval(q).shape, *aval(k).shape):
        return f.full_like(q, 0)
    _, ds = _weights(q, k, v, g, lse, delta, n, params)
    return f.cast(f.reshape(f.dot(ds, compute(k)), aval(q).shape), aval(q).dtype)


def _dkv(
    q: Value, k: Value, v: Value, g: Value, lse: Value, delta: Value, *n: Value, **params: Any
) -> Value:
    shape = aval(k).shape
    if 0 in (*aval(q).shape, *shape):
        return f.broadcast(f.full_like(f.reshape(k, (1, *shape)), 0), (2, *shape))
    p, ds = _weights(q, k, v, g, lse, delta, n, params)
    dk = f.dot(f.swap_last(ds), _grouped(compute(q), k))
    dv = f.dot(f.swap_last(p), _grouped(compute(g), k))
    both = f.concat([f.reshape(x, (1, *shape)) for x in (dk, dv)], 0)
    return f.cast(both, aval(k).dtype)


def _grad(q: Value, k: Value, v: Value, g: Value, *n: Value, **params: Any) -> tuple[Value, ...]:
    """The gradients of q, k and v, each [B, rows, heads, D]. In a graph the output of attention is
    the one that the forward pass computed: equal calls become one."""
    out = f.call("attention", q, k, v, *n, **params)
    lse = f.call("attention_lse", q, k, *n, **params)
    delta = f.sum_(f.mul(compute(g), compute(out)), -1)
    dq = f.call("attention_dq", q, k, v, g, lse, delta, *n, **params)
    dkv = f.call("attention_dkv", q, k, v, g, lse, delta, *n, **params)
    shape = aval(k).shape
    both = (f.reshape(f.slice_(dkv, (i, 0, 0, 0, 0), (i + 1, *shape)), shape) for i in range(2))
    return tuple(f.transpose(x, (0, 2, 1, 3)) for x in (dq, *both))


def attention_vjp(
    grad: Value, out: Value, q: Value, k: Value, v: Value, *lengths: Value, **params: Any
) -> Sequence[Any]:
    """The derivative of `attention`: one `attention_grad`, with an output for each operand."""
    made = cache(lambda: f.call("attention_grad", q, k, v, grad, *lengths, **params))

    def one(i: int) -> Value:
        return f.transpose(made()[i], (0, 2, 1, 3))

    return (*(partial(one, i) for i in range(3)), *(None for _ in lengths))


_DEFAULTS = {"causal": False, "scale": None, "window": 0, "softcap": 0.0}
for _name, _abstract, _body in (
    ("attention_lse", _lse_abstract, _lse),
    ("attention_dq", _parts_abstract("attention_dq"), _dq),
    ("attention_dkv", _parts_abstract("attention_dkv"), _dkv),
    ("attention_grad", _grad_abstract, _grad),
):
    register_composite(Composite(_name, _abstract, _body, _DEFAULTS))

COMPOSITES["attention"] = replace(COMPOSITES["attention"], vjp=attention_vjp)
