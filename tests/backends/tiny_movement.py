"""Tiny calls that move elements, and of indexing."""

import numpy as np
from tiny_public import case

from weft.core import dtypes as dt

I32, F32 = dt.int32, dt.float32


# -- movement


@case("cat concat")
def _(d, f):
    shape, dtype = list(d.shape(1, 3)), d.dtype()
    axis = d.axis(shape)
    arrays = []
    for _ in range(d.between(1, 4)):
        shape[axis] = d.extent(0)
        arrays.append(d.array(tuple(shape), dtype))
    return lambda *ts: f(ts, axis=axis), arrays


@case("stack")
def _(d, f):
    shape, dtype = d.shape(0, 2, least=0), d.dtype()
    axis = d.between(-1, len(shape))
    return lambda *ts: f(ts, axis=axis), [d.array(shape, dtype) for _ in range(d.between(1, 4))]


@case("unstack")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    return lambda t: f(t, axis=axis), [x]


@case("roll")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis, shift = d.pick(None, d.axis(x.shape)), d.between(-6, 6)
    return lambda t: f(t, shift, axis=axis), [x]


@case("pad")
def _(d, f):
    x = d.some("n")
    widths = [(d.between(0, 2), d.between(0, 2)) for _ in x.shape]
    value = d.pick(0, 1)
    return lambda t: f(t, widths, value), [x]


@case("weft.flip")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis = d.pick(None, d.axis(x.shape))
    return lambda t: f(t, axis=axis), [x]


@case("Tensor.flip")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis = d.axis(x.shape)
    return lambda t: f(t, axis), [x]


@case("reshape view")
def _(d, f):
    x = d.some()
    shape = d.pick((x.size,), (1, x.size), tuple(reversed(x.shape)))
    return lambda t: f(t, shape), [x]


@case("flatten")
def _(d, f):
    return lambda t: f(t, 0, -1), [d.some(rank=(1, 3))]


@case("permute permute_dims")
def _(d, f):
    x = d.some(rank=(1, 3))
    axes = tuple(np.random.default_rng(x.size).permutation(x.ndim).tolist())
    return lambda t: f(t, axes), [x]


@case("transpose")
def _(d, f):
    x = d.some(rank=(2, 3))
    return lambda t: f(t, 0, -1), [x]


@case("matrix_transpose")
def _(d, f):
    return f, [d.some(rank=(2, 3))]


@case("moveaxis")
def _(d, f):
    x = d.some(rank=(2, 3))
    return lambda t: f(t, 0, -1), [x]


@case("expand broadcast_to")
def _(d, f):
    x = d.some()
    shape = (*d.shape(0, 1), *x.shape)
    return lambda t: f(t, shape), [x]


@case("broadcast_arrays broadcast_tensors")
def _(d, f):
    shape, dtype = d.shape(1, 3), d.dtype()
    return lambda a, b: tuple(f(a, b)), [d.array(shape, dtype), d.array((1, shape[-1]), dtype)]


@case("meshgrid")
def _(d, f):
    indexing = d.pick("xy", "ij")
    return (
        lambda a, b: tuple(f(a, b, indexing=indexing)),
        [d.array(d.extent(), F32), d.array(d.extent(), F32)],
    )


@case("expand_dims unsqueeze")
def _(d, f):
    axis = d.pick(0, -1)
    return lambda t: f(t, axis), [d.some()]


@case("squeeze")
def _(d, f):
    x = d.some(rank=(1, 2))[None]
    return lambda t: f(t, 0), [x]


@case("repeat")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis, n = d.pick(None, d.axis(x.shape)), d.between(0, 3)
    return lambda t: f(t, n, axis=axis), [x]


@case("repeat_interleave")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis, n = d.axis(x.shape), d.between(1, 3)
    return lambda t: f(t, n, axis), [x]


@case("tile")
def _(d, f):
    x = d.some(rank=(0, 2))
    repetitions = tuple(d.between(1, 3) for _ in range(d.between(1, 3)))
    return lambda t: f(t, repetitions), [x]


@case("chunk")
def _(d, f):
    n = d.between(1, 2)
    return lambda t: f(t, n, 0), [d.some(rank=(1, 3), least=1)]


@case("split")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    size = d.between(1, 2)
    return lambda t: f(t, size, 0), [x]


@case("narrow")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    start = d.between(0, x.shape[axis] - 1)
    length = d.between(1, x.shape[axis] - start)
    return lambda t: f(t, axis, start, length), [x]


@case("contiguous __iter__")
def _(d, f):
    return (lambda t: tuple(f(t))) if f.__name__ == "__iter__" else f, [
        d.some(rank=(1, 2), least=1)
    ]


@case("tril triu")
def _(d, f):
    x, k = d.some("n", rank=(2, 3)), d.between(-2, 2)
    return lambda t: f(t, k), [x]


# -- indexing


def _index(d, shape, n):
    return d.array(shape, I32, -n, n - 1)


@case("take")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    index = _index(d, d.extent(), x.shape[axis])
    return lambda t, i: f(t, i, axis=axis), [x, index]


@case("take_along_axis gather")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    shape = list(x.shape)
    shape[axis] = d.extent()
    index = np.abs(_index(d, tuple(shape), x.shape[axis]) % x.shape[axis])
    if f.__name__ == "gather":
        return lambda t, i: f(t, axis, i), [x, index]
    return lambda t, i: f(t, i, axis=axis), [x, index]


KEYS = (
    0, -1, slice(None, None, -1), slice(None, None, 2), slice(1, None), (..., 0), (..., None),
    (slice(None), -1), np.array([0, -1, 0]), (..., np.array([0, 0])),
)  # fmt: skip


@case("__getitem__")
def _(d, f):
    x, key = d.some(rank=(2, 3), least=1), d.pick(*KEYS)
    return lambda t: f(t, key), [x]


@case("__setitem__")
def _(d, f):
    x, key = d.some(rank=(2, 3), least=1), d.pick(*KEYS[:6], *KEYS[7:8])
    shape = x[key].shape

    def call(t, v):
        t = t + 0 if t.dtype != dt.bool_ else t | False
        f(t, key, v)
        return t

    return call, [x, d.array(shape, dt.as_dtype(x.dtype))]


@case("update scatter_add")
def _(d, f):
    x = d.some("w" if f.__name__ == "scatter_add" else "a", rank=(1, 3), least=1)
    n = d.between(1, len(x))
    index = np.random.default_rng(n).permutation(len(x))[:n].astype(np.int32)
    return f, [x, index, d.array((n, *x.shape[1:]), dt.as_dtype(x.dtype))]


@case("where")
def _(d, f):
    shape, dtype = d.shape(least=0), d.dtype()
    return f, [d.array(shape, dt.bool_), d.array(shape, dtype), d.array(shape[1:], dtype)]


@case("one_hot")
def _(d, f):
    classes = d.extent()
    return lambda i: f(i, classes), [d.array(d.shape(0, 2), I32, 0, classes - 1)]


@case("clip")
def _(d, f):
    bounds = d.pick((-1, 1), (None, 1), (0, None))
    return lambda t: f(t, *bounds), [d.some("s", -3, 3)]


@case("astype cast")
def _(d, f):
    to = d.dtype()
    return lambda t: f(t, to), [d.some("a", 0, 3)]


@case("nonzero unique_values unique_all unique_counts unique_inverse")
def _(d, f):
    return f, [d.some("n", rank=(1, 2), least=1)]


@case("searchsorted isin")
def _(d, f):
    dtype = d.dtype("n")
    line = np.sort(d.array((d.extent(),), dtype, 0, 3).astype(np.float32)).astype(dtype.numpy)
    more = {} if f.__name__ == "isin" else {"side": d.pick("left", "right")}
    if more:
        return lambda a, b: f(a, b, **more), [line, d.array(d.shape(), dtype, 0, 3)]
    return f, [d.array(d.shape(), dtype, 0, 3), line]
