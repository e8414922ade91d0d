"""Tiny calls that create tensors, and of networks."""

import numpy as np
from tiny_public import case

from weft.core import dtypes as dt
from weft.ops.attention import PAGE

I32, F32 = dt.int32, dt.float32


# -- creation: the device's name comes with the call


@case("zeros ones empty rand randn")
def _(d, f):
    shape, key = d.shape(1, 3), {"key": 3} if f.__name__[:4] == "rand" else {}
    return (lambda: f(shape, **key) * (f.__name__ != "empty")), []


@case("randint")
def _(d, f):
    shape = d.shape(1, 3)
    return lambda: f(-2, 5, *shape, key=4), []


@case("full")
def _(d, f):
    shape, dtype = d.shape(), d.dtype("n")
    return lambda: f(shape, 1, dtype), []


@case("zeros_like ones_like empty_like")
def _(d, f):
    return (lambda t: f(t) * (0 if f.__name__ == "empty_like" else 1)), [d.some("n")]


@case("full_like")
def _(d, f):
    return lambda t: f(t, 1), [d.some("n")]


@case("arange")
def _(d, f):
    n, dtype = d.extent(), d.pick(F32, I32)
    return lambda: f(n, dtype=dtype), []


@case("eye")
def _(d, f):
    n, m, k = d.extent(), d.extent(), d.between(-2, 2)
    return lambda: f(n, m, k=k), []


@case("linspace")
def _(d, f):
    n = d.extent()
    return lambda: f(-1, 2, n), []


@case("tensor asarray")
def _(d, f):
    return f, [d.some()]


# -- networks


@case("softmax softmin log_softmax normalize")
def _(d, f):
    x = d.some("f", rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    return lambda t: f(t, axis=axis), [x]


@case("layer_norm rms_norm")
def _(d, f):
    x = d.some("f", rank=(1, 3), least=1)
    dtype, n = dt.as_dtype(x.dtype), 2 if f.__name__ == "layer_norm" else 1
    n = d.between(0, n)
    return lambda t, *w: f(t, *w, eps=0.125), [x, *[d.array(x.shape[-1:], dtype) for _ in range(n)]]


@case("linear")
def _(d, f):
    k, n, dtype = d.extent(), d.extent(), d.dtype("f")
    arrays = [d.array((*d.shape(0, 2), k), dtype), d.array((n, k), dtype), d.array(n, dtype)]
    return f, arrays[: d.between(2, 3)]


@case("embedding")
def _(d, f):
    rows = d.extent()
    pad = d.pick(None, 0)
    ids = d.array(d.shape(0, 2), I32, 0, rows - 1)
    return lambda i, w: f(i, w, padding_idx=pad), [ids, d.array((rows, d.extent()), d.dtype("f"))]


@case("embedding_bag")
def _(d, f):
    rows, n, mode = d.extent(), d.extent(), d.pick("sum", "mean", "max")
    table = d.array((rows, d.extent()), d.dtype("f"))
    if d.pick(False, True):
        ids = d.array((d.extent(), n), I32, 0, rows - 1)
        return lambda w, i: f(i, w, mode=mode, padding_idx=0), [table, ids]
    starts = np.array([0, d.between(0, n), n], np.int32)
    ids = d.array((n,), I32, 0, rows - 1)
    return lambda w, i, o: f(i, w, o, mode), [table, ids, starts]


@case("bilinear")
def _(d, f):
    n, i, j, o, dtype = d.extent(), d.extent(), d.extent(), d.extent(), d.dtype("f")
    return f, [d.array(s, dtype, -1, 1) for s in ((n, i), (n, j), (o, i, j), (o,))]


@case("rope")
def _(d, f):
    n, h, half, dtype = d.extent(), d.extent(), d.extent(), d.dtype("f")
    turned = d.pick(False, True)
    shapes = ((n, h, 2 * half), (n, half), (n, half))
    return lambda *ts: f(*ts, interleaved=turned), [d.array(s, dtype) for s in shapes]


@case("dropout alpha_dropout")
def _(d, f):
    return lambda t: f(t, 0.5, key=5), [d.some("f")]


@case("feature_alpha_dropout dropout1d dropout2d dropout3d")
def _(d, f):
    axes = 1 if f.__name__.startswith("feature") else int(f.__name__[-2])
    shape = [d.between(1, 3) for _ in range(axes + 2)]
    return lambda t: f(t, 0.5, key=5), [d.array(shape, d.dtype("f"))]


@case("gumbel_softmax")
def _(d, f):
    shape, hard = d.shape(1, 3), d.pick(False, True)
    axis = d.axis(shape)
    return lambda t: f(t, 0.5, hard, axis, key=5), [d.array(shape, d.dtype("f"))]


@case("mse_loss l1_loss binary_cross_entropy_with_logits")
def _(d, f):
    shape, dtype, how = d.shape(0, 3), d.dtype("f"), d.pick("mean", "sum", "none")
    arrays = [d.array(shape, dtype), d.array(shape, dtype, 0, 1)]
    return lambda x, y: f(x, y, reduction=how), arrays


@case("cross_entropy nll_loss")
def _(d, f):
    n, c, more = d.extent(), d.extent(), d.shape(0, 1)
    how = d.pick("mean", "sum", "none")
    smooth = {"label_smoothing": d.pick(0.0, 0.125)} if f.__name__ == "cross_entropy" else {}
    arrays = [d.array((n, c, *more), d.dtype("f")), d.array((n, *more), I32, 0, c - 1)]
    return lambda x, y: f(x, y, reduction=how, **smooth), arrays


GATES = {"lstm": 4, "gru": 3, "rnn": 1}


@case("lstm gru rnn")
def _(d, f):
    kind, layers, ways, bias = f.__name__, d.between(1, 2), d.between(1, 2), d.pick(True, False)
    t, n, i, h = (d.between(1, 2) for _ in range(4))
    dtype = d.dtype("f")
    r = d.between(1, h) if kind == "lstm" else h  # an lstm may project its h
    rows, shapes = GATES[kind] * h, []
    for layer in range(layers):
        one = [(rows, ways * r if layer else i), (rows, r), *[(rows,)] * (2 * bias)]
        shapes += [*one, *[(r, h)] * (r != h)] * ways
    states = [(layers * ways, n, r), (layers * ways, n, h)][: d.pick(0, 2 if kind == "lstm" else 1)]
    first, ends = d.pick(False, True), d.pick(False, True)
    options = {"bias": bias, "num_layers": layers, "bidirectional": ways == 2}
    options |= {"batch_first": first, "dropout": 0.5, "training": d.pick(False, True)}
    options["key"] = lambda layer: 6 + layer
    if kind == "rnn":
        options["nonlinearity"] = d.pick("tanh", "relu")

    def call(x, *ts):
        *ts, lengths = ts if ends else (*ts, None)
        hx, weights = ts[: len(states)], ts[len(states) :]
        before = None if not hx else tuple(hx) if kind == "lstm" else hx[0]
        return f(x, before, weights, **options, lengths=lengths)

    arrays = [
        d.array(s, dtype, -1, 1) for s in ((n, t, i) if first else (t, n, i), *states, *shapes)
    ]
    return call, [*arrays, *[d.array(n, I32, 1, t)] * ends]


@case("lstm_cell gru_cell rnn_cell")
def _(d, f):
    kind, i, h, dtype = f.__name__[: -len("_cell")], d.extent(), d.extent(), d.dtype("f")
    batch, rows = d.shape(0, 1), GATES[kind] * h
    states = d.pick(0, 2 if kind == "lstm" else 1)
    options = {"nonlinearity": d.pick("tanh", "relu")} if kind == "rnn" else {}

    def call(x, *ts):
        before = None if not states else ts[:2] if kind == "lstm" else ts[0]
        return f(x, before, *ts[states:], **options)

    biases = [(rows,)] * d.pick(0, 2)
    shapes = ((*batch, i), *[(*batch, h)] * states, (rows, i), (rows, h), *biases)
    return call, [d.array(s, dtype, -1, 1) for s in shapes]


def _heads(d):
    g = d.between(1, 2)
    return d.between(1, 2), g * d.between(1, 2), g, d.extent(), d.extent(), d.extent()


@case("attention")
def _(d, f):
    b, h, g, t, s, dim = _heads(d)
    options = d.pick(
        {}, {"causal": True}, {"causal": True, "window": 2}, {"softcap": 2.0}, {"lengths": True}
    )
    shapes = ((b, h, t, dim), (b, g, s, dim), (b, g, s, dim))
    arrays = [d.array(shape, dtype) for dtype in (d.dtype("f"),) for shape in shapes]
    if "lengths" in options:
        return f, [*arrays, d.array(b, I32, 0, s)]
    return lambda *ts: f(*ts, **options), arrays


@case("scaled_dot_product_attention")
def _(d, f):
    b, h, _, t, s, dim = _heads(d)
    shapes = ((b, h, t, dim), (b, h, s, dim), (b, h, s, dim))
    arrays = [d.array(shape, dtype) for dtype in (d.dtype("f"),) for shape in shapes]
    if d.between(0, 1):
        return f, [*arrays, d.array((t, s), d.pick(dt.bool_, F32))]
    return lambda *ts: f(*ts, is_causal=True), arrays


@case("cached_attention")
def _(d, f):
    n, h, g, slots, length, dim = _heads(d)
    dtype = d.dtype("f")
    caches = [d.array((slots, g, length, dim), dtype) for _ in range(2)]
    slot, pos = d.array(n, I32, 0, slots - 1), d.array(n, I32, 0, length - 1)
    if d.between(0, 2):
        return f, [d.array((n, h, dim), dtype), *caches, slot, pos]
    pages, columns = d.between(1, 3), d.between(1, 2)
    caches = [d.array((g, pages, PAGE, dim), dtype) for _ in range(2)]
    table = d.array((slots, columns), I32, 0, pages - 1)
    operands = [d.array((n, h, dim), dtype), *caches, slot, pos, table]
    return lambda *ts: f(*ts[:-1], table=ts[-1]), operands


@case("attention_in_parts")
def _(d, f):
    n, h, g, slots, length, dim = _heads(d)
    dtype = d.dtype("f")
    caches = [d.array((slots, g, length, dim), dtype) for _ in range(2)]
    slot, pos = d.array(n, I32, 0, slots - 1), d.array(n, I32, 0, length - 1)
    arrays = [d.array((n, h, dim), dtype), *caches, slot, pos]
    return lambda *ts: f(*ts, scale=0.5, window=0, softcap=0.0), arrays


@case("scan_in_blocks")
def _(d, f):
    op = d.pick("sum", "prod", "max", "min", "linear")
    x = d.some("n" if op in ("sum", "prod", "max", "min") else "f", rank=(1, 3), least=1)
    factor = [d.array(x.shape, dt.as_dtype(x.dtype))] * (op == "linear")
    axis, exclusive, reverse = d.between(0, x.ndim - 1), d.pick(False, True), d.pick(False, True)
    exclusive = exclusive and op != "linear"
    options = {"op": op, "axis": axis, "exclusive": exclusive, "reverse": reverse}
    return lambda *ts: f(*ts, **options), [x, *factor]


@case("product_in_blocks")
def _(d, f):
    x = d.some("n", rank=(1, 3), least=1)
    axis = d.between(0, x.ndim - 1)
    return lambda t: f(t, axis), [x]


@case("checkpoint")
def _(d, f):
    return lambda t: f(lambda x: x.exp() * x, t), [d.some("f")]


@case("kernel")
def _(d, f):
    def squared(k, x, *, threads=4):
        y = k.output(x.shape, x.dtype)
        k.launch(k.ceil_div(x.size, threads), threads)
        i = k.group() * threads + k.thread()
        with k.when(i < x.size):
            y.flat[i] = x.flat[i] * x.flat[i]

    made = f(squared)
    made.gradient(lambda g, y, x: 2 * g * x)
    return made, [d.some("f", 1, 3)]
