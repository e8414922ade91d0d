"""Kernels in the kernel language that several tests play."""

import numpy as np

import weft


@weft.kernel
def double(k, x, *, threads=64):
    y = k.output(x.shape, x.dtype)
    k.launch(k.ceil_div(x.size, threads), threads)
    i = k.group() * threads + k.thread()
    with k.when(i < x.size):
        y.flat[i] = 2 * x.flat[i]


@weft.kernel
def softmax(k, x, *, threads=64):
    rows, n = x.shape
    y = k.output(x.shape, x.dtype)
    k.launch(rows, threads)
    r, t = k.group(), k.thread()
    top = k.var(-3e38)
    with k.loop(t, n, step=threads) as i:
        top.set(k.maximum(top, x[r, i]))
    most = k.max(top)
    total = k.var(0.0)
    with k.loop(t, n, step=threads) as i:
        total += k.exp(x[r, i] - most)
    whole = k.sum(total)
    with k.loop(t, n, step=threads) as i:
        y[r, i] = k.exp(x[r, i] - most) / whole


@weft.kernel
def product(k, a, b, *, tile=8):
    (m, depth), (_, n) = a.shape, b.shape
    c = k.output((m, n), a.dtype)
    k.launch((k.ceil_div(n, tile), k.ceil_div(m, tile)), (tile, tile))
    x, y = k.thread(0), k.thread(1)
    col, row = k.group(0) * tile + x, k.group(1) * tile + y
    at, bt = k.shared((tile, tile)), k.shared((tile, tile))
    total = k.var(0.0)
    with k.loop(0, depth, step=tile) as start:
        at[y, x] = a.load((row, start + x), mask=(row < m) & (start + x < depth))
        bt[y, x] = b.load((start + y, col), mask=(start + y < depth) & (col < n))
        k.barrier()
        with k.loop(tile, unroll=True) as i:
            total.set(k.fma(at[y, i], bt[i, x], total))
        k.barrier()
    with k.when((row < m) & (col < n)):
        c[row, col] = total


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def softmax_of(x):
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return wide / wide.sum(-1, keepdims=True)
