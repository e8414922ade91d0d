"""Tiny calls of norms and distances, and of losses but for the first few (tiny_networks.py)."""

import math

from tiny_public import case

from weft.core import dtypes as dt

I32 = dt.int32


def _how(d):
    return d.pick("mean", "sum", "none")


def _signs(d, shape, dtype):
    """Targets of 1 and -1."""
    return (2 * d.array(shape, I32, 0, 1) - 1).astype(dtype.numpy)


def _power(d):
    return d.pick(1.0, 2.0, 3.0, math.inf)


# -- norms and distances


@case("vector_norm")
def _(d, f):
    x = d.some("f", rank=(1, 3), least=1)
    p, axis = d.pick(0.0, 1.0, 2.0, 3.0, math.inf, -math.inf), d.pick(None, d.axis(x.shape))
    keep = d.pick(False, True)
    return lambda t: f(t, p, axis, keep), [x]


@case("cosine_similarity")
def _(d, f):
    shape, dtype = d.shape(1, 3), d.dtype("f")
    axis = d.axis(shape)
    return lambda a, b: f(a, b, axis, 0.125), [d.array(shape, dtype) for _ in range(2)]


@case("pairwise_distance")
def _(d, f):
    shape, dtype, p, keep = d.shape(1, 3), d.dtype("f"), _power(d), d.pick(False, True)
    second = shape[-d.between(1, len(shape)) :]
    return lambda a, b: f(a, b, p, keepdims=keep), [d.array(shape, dtype), d.array(second, dtype)]


@case("cdist")
def _(d, f):
    batch, k, dtype, p = d.shape(0, 1), d.extent(), d.dtype("f"), _power(d)
    return lambda a, b: f(a, b, p), [d.array((*batch, d.extent(), k), dtype) for _ in range(2)]


@case("pdist")
def _(d, f):
    p = _power(d)
    return lambda t: f(t, p), [d.array((d.between(2, 4), d.extent()), d.dtype("f"))]


# -- losses of elements


@case("smooth_l1_loss huber_loss")
def _(d, f):
    shape, dtype, how = d.shape(0, 3), d.dtype("f"), _how(d)
    bend = {"delta" if f.__name__ == "huber_loss" else "beta": d.pick(0.5, 1.0)}
    return lambda x, y: f(x, y, how, **bend), [d.array(shape, dtype) for _ in range(2)]


@case("binary_cross_entropy")
def _(d, f):
    shape, dtype, how = d.shape(1, 3), d.dtype("f"), _how(d)
    arrays = [d.array(shape, dtype, 0, 1), d.array(shape, dtype, 0, 1), d.array(shape[-1:], dtype)]
    return lambda *ts: f(*ts, reduction=how), arrays[: d.between(2, 3)]


@case("ctc_loss")
def _(d, f):
    t, n, c, most, how = d.between(1, 3), d.extent(), d.between(2, 4), d.between(0, 2), _how(d)
    times, sizes = ([d.between(0, most) for _ in range(n)] for most in (t, most))
    arrays = [d.array((t, n, c), d.dtype("f")), d.array((n, most), I32, 1, c - 1)]
    return lambda x, y: f(x, y, times, sizes, 0, how, True), arrays


@case("kl_div")
def _(d, f):
    shape, dtype, log = d.shape(0, 3), d.dtype("f"), d.pick(False, True)
    how = d.pick("mean", "sum", "none", "batchmean")
    return lambda x, y: f(x, y, how, log), [d.array(shape, dtype), d.array(shape, dtype, 0, 1)]


@case("poisson_nll_loss")
def _(d, f):
    shape, dtype, how = d.shape(0, 3), d.dtype("f"), _how(d)
    log, full = d.pick(False, True), d.pick(False, True)
    arrays = [d.array(shape, dtype, 0.25, 2), d.array(shape, dtype, 0, 3)]
    return lambda x, y: f(x, y, log, full, reduction=how), arrays


@case("gaussian_nll_loss")
def _(d, f):
    shape, dtype, how, full = d.shape(1, 3), d.dtype("f"), _how(d), d.pick(False, True)
    var = d.pick(shape, shape[:-1], (*shape[:-1], 1))
    arrays = [d.array(shape, dtype), d.array(shape, dtype), d.array(var, dtype, 0.25, 2)]
    return lambda x, y, v: f(x, y, v, full, reduction=how), arrays


# -- losses with a margin


@case("hinge_embedding_loss soft_margin_loss")
def _(d, f):
    shape, dtype, how = d.shape(0, 3), d.dtype("f"), _how(d)
    arrays = [d.array(shape, dtype), _signs(d, shape, dtype)]
    return lambda x, y: f(x, y, reduction=how), arrays


@case("margin_ranking_loss")
def _(d, f):
    shape, dtype, how, margin = d.shape(0, 3), d.dtype("f"), _how(d), d.pick(0.0, 0.5)
    arrays = [d.array(shape, dtype), d.array(shape, dtype), _signs(d, shape, dtype)]
    return lambda a, b, y: f(a, b, y, margin, how), arrays


@case("cosine_embedding_loss")
def _(d, f):
    shape, dtype, how, margin = d.shape(1, 2), d.dtype("f"), _how(d), d.pick(0.0, 0.3)
    arrays = [d.array(shape, dtype), d.array(shape, dtype), _signs(d, shape[:-1], dtype)]
    return lambda a, b, y: f(a, b, y, margin, how), arrays


@case("triplet_margin_loss triplet_margin_with_distance_loss")
def _(d, f):
    shape, dtype, how, swap = d.shape(2, 2), d.dtype("f"), _how(d), d.pick(False, True)
    options = {"margin": 0.3, "swap": swap, "reduction": how}
    if f.__name__ == "triplet_margin_loss":
        options["p"] = _power(d)
    elif d.between(0, 1):
        options["distance_function"] = lambda a, b: (a - b).abs().max(-1)
    return lambda *ts: f(*ts, **options), [d.array(shape, dtype) for _ in range(3)]


@case("multi_margin_loss")
def _(d, f):
    batch, c, dtype, how = d.shape(0, 1), d.extent(), d.dtype("f"), _how(d)
    p = d.between(1, 2)
    arrays = [d.array((*batch, c), dtype), d.array(batch, I32, 0, c - 1), d.array(c, dtype)]
    return (
        lambda x, y, *w: f(x, y, p, weight=w[0] if w else None, reduction=how),
        arrays[: d.between(2, 3)],
    )


@case("multilabel_margin_loss")
def _(d, f):
    shape, how = d.shape(1, 2), _how(d)
    arrays = [d.array(shape, d.dtype("f")), d.array(shape, I32, -1, shape[-1] - 1)]
    return lambda x, y: f(x, y, how), arrays


@case("multilabel_soft_margin_loss")
def _(d, f):
    shape, dtype, how = d.shape(1, 3), d.dtype("f"), _how(d)
    arrays = [d.array(shape, dtype), d.array(shape, dtype, 0, 1), d.array(shape[-1:], dtype)]
    return lambda *ts: f(*ts, reduction=how), arrays[: d.between(2, 3)]
