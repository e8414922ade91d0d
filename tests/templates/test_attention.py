"""The attention template against its own definition in float64 NumPy."""

from __future__ import annotations

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source

from weft.backends.cpu import CpuDevice
from weft.core import dtypes as dt
from weft.core.dtypes import DType

CPU = CpuDevice()


def truth(q, k, v, lengths, causal, scale, window, softcap):  # type: ignore[no-untyped-def]
    """Attention by the book; a row that sees nothing gives zeros."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    (_, heads, t, _), (groups, s) = q.shape, k.shape[1:3]
    k, v = (np.repeat(x, heads // groups, axis=1) for x in (k, v))
    scores = np.einsum("bhtd,bhsd->bhts", q, k) * scale
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    at = np.arange(t)[:, None] + s - t
    key = np.arange(s)[None, :]
    seen = np.ones((t, s), bool)
    if causal:
        seen &= key <= at
    if window:
        seen &= key > at - window
        seen &= key < at + window
    seen = np.broadcast_to(seen, scores.shape).copy()
    if lengths is not None:
        seen &= key[None, None] < lengths[:, None, None, None]
    scores = np.where(seen, scores, -np.inf)
    top = np.where(seen.any(-1), scores.max(-1), 0)[..., None]
    p = np.where(seen, np.exp(scores - top), 0)
    total = p.sum(-1, keepdims=True)
    return np.einsum("bhts,bhsd->bhtd", p / np.where(total == 0, 1, total), v)


def case(  # type: ignore[no-untyped-def]
    device, b, h, g, t, s, d, dtype: DType = dt.float32, causal=True, window=0, softcap=0.0,
    lengths=None, packed=False, config=None,
):  # fmt: skip
    """Plays one attention; `packed` keeps heads inside rows, [B, T, H, D], on both sides."""
    params = {"causal": causal, "scale": d**-0.5, "window": window, "softcap": softcap}
    if packed:
        sides = (("q", t, h), ("k", s, g), ("v", s, g))
        ins = [source(n, (b, x, y, d), dtype) for n, x, y in sides]
        nodes = [f.transpose(x, (0, 2, 1, 3)) for x in ins]
    else:
        sides = (("q", t, h), ("k", s, g), ("v", s, g))
        ins = [source(n, (b, y, x, d), dtype) for n, x, y in sides]
        nodes = list(ins)
    arrays = [kit.fill(x) for x in ins]
    if lengths is not None:
        ins.append(source("lengths", (b,), dt.int32))
        nodes.append(ins[-1])
        arrays.append(np.asarray(lengths, np.int32))
    out = f.call("attention", *nodes, **params)
    plain = [a.transpose(0, 2, 1, 3) if packed else a for a in arrays[:3]]
    if packed:
        out = f.reshape(f.transpose(out, (0, 2, 1, 3)), (b, t, h * d))
    (got,) = kit.play(device, "attention", ins, [out], arrays, config=config)
    if packed:
        got = got.reshape(b, t, h, d).transpose(0, 2, 1, 3)
    want = truth(*plain, None if lengths is None else arrays[3], **params)
    kit.close(got, want, dtype, 4)
    return got


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 80, 20, 7])
def test_depths(d, causal, packed) -> None:  # type: ignore[no-untyped-def]
    case(CPU, 1, 2, 2, 37, 37, d, causal=causal, packed=packed)


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
@pytest.mark.parametrize("packed", [False, True])
def test_narrow(dtype, packed) -> None:  # type: ignore[no-untyped-def]
    case(CPU, 2, 4, 2, 50, 90, 64, dtype, packed=packed)


@pytest.mark.parametrize("t,s", [(1, 1), (5, 200), (200, 5), (130, 130), (64, 64), (1, 77)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_of_sides(t, s, causal) -> None:  # type: ignore[no-untyped-def]
    got = case(CPU, 1, 2, 1, t, s, 32, causal=causal)
    if causal and t > s:
        assert (got[:, :, : t - s] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 5, 70])
def test_window(window, causal) -> None:  # type: ignore[no-untyped-def]
    case(CPU, 1, 2, 1, 150, 150, 16, causal=causal, window=window)


def test_softcap() -> None:
    case(CPU, 1, 2, 1, 40, 40, 16, softcap=0.5)


@pytest.mark.parametrize("causal", [False, True])
def test_padding(causal) -> None:  # type: ignore[no-untyped-def]
    got = case(CPU, 4, 2, 2, 70, 70, 32, causal=causal, lengths=[70, 1, 0, 33], packed=True)
    assert (got[2] == 0).all()


def test_a_sequence_does_not_see_its_neighbours() -> None:
    q, k, v = (source(n, (3, 2, 70, 32)) for n in "qkv")
    params = {"causal": True, "scale": 0.2, "window": 0, "softcap": 0.0}
    arrays = [kit.fill(x) for x in (q, k, v)]
    whole = f.call("attention", q, k, v, **params)
    (all_,) = kit.play(CPU, "attention", [q, k, v], [whole], arrays)
    q1, k1, v1 = (source(n, (1, 2, 70, 32)) for n in "qkv")
    out = f.call("attention", q1, k1, v1, **params)
    for i in range(3):
        (one,) = kit.play(CPU, "attention", [q1, k1, v1], [out], [a[i : i + 1] for a in arrays])
        np.testing.assert_array_equal(one[0], all_[i])
