"""Decoding over a KV cache on GPUs with subgroups: whole caches and parts of them that meet."""

from __future__ import annotations

import dotkit as kit
import numpy as np
import pytest
from harness import random, trace
from test_attention_cached import case as cached

from weft import ops
from weft.backends.interp import InterpDevice
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS, Caps
from weft.graph.ir import toposort
from weft.ops.evaluate import evaluate
from weft.program.session import Session
from weft.templates.registry import claimed_by
from weft.transform.decode import split_decoding

GPUS = [InterpDevice(PRESETS[name]) for name in ("cuda", "hip-wave64", "hip-wave32")]
each_gpu = pytest.mark.parametrize("device", GPUS, ids=lambda d: d.caps.name)


@each_gpu
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.bfloat16], ids=repr)
def test_heads_and_depths(device, dtype) -> None:  # type: ignore[no-untyped-def]
    for h, g in ((4, 2), (7, 1), (22, 1)):
        cached(device, [0, 2, 1], [0, 95, 40], h, g, dtype=dtype, flat=True)
    for d in (80, 128, 20, 7):
        cached(device, [0, 2], [61, 5], d=d, dtype=dtype)


@each_gpu
def test_long_contexts_and_windows(device) -> None:  # type: ignore[no-untyped-def]
    for window in (0, 50):
        cached(device, [0, 1], [299, 130], length=301, window=window, dtype=dt.bfloat16)
    cached(device, [0, 1], [50, 13], softcap=0.7)


@each_gpu
def test_rows_are_bit_identical_in_any_batch(device) -> None:  # type: ignore[no-untyped-def]
    slot, pos = [0, 2, 1, 2], [33, 95, 0, 94]
    four, arrays = cached(device, slot, pos)
    for i in range(4):
        own = [arrays[0][i : i + 1], *arrays[1:]]
        one, _ = cached(device, slot[i : i + 1], pos[i : i + 1], arrays=own)
        np.testing.assert_array_equal(one[0], four[i])


def _long(length: int, d: int = 16, n: int = 3, dtype: dt.DType = dt.bfloat16):  # type: ignore[no-untyped-def]
    """A decoding step over a long cache as a Graph, and what goes into it."""
    shapes = [(n, 4, d), (2, 2, length, d), (2, 2, length, d)]
    arrays = [random(dtype, s, i, 1.0) for i, s in enumerate(shapes)]
    slot, pos = np.array([0, 1, 1], np.int32), np.array([length - 1, 700, 3], np.int32)
    arrays += [slot[:n], pos[:n]]
    params = {"scale": 0.25, "window": 0, "softcap": 0.0}
    return trace(lambda *xs: ops.call("cached_attention", *xs, **params), arrays), arrays


def play(device, program, arrays) -> np.ndarray:  # type: ignore[no-untyped-def]
    session = Session(program, device)
    return np.asarray(session.run({f"x{i}": a for i, a in enumerate(arrays)})[0])


def _claims(caps: Caps):  # type: ignore[no-untyped-def]
    return lambda node: claimed_by(node, caps) is not None


@pytest.mark.parametrize("length", [1300, 5000])
def test_parts_mean_the_same(length: int) -> None:
    """The bodies of both composites, and their kernels, against the whole."""
    graph, arrays = _long(length)
    (want,) = evaluate(graph, arrays)
    parted = split_decoding(graph, _claims(PRESETS["cuda"]))
    names = [n.attrs["name"] for n in toposort(parted.outputs) if n.op == "call"]
    assert names == ["cached_attention_parts", "attention_merge"]
    kit.close(np.asarray(evaluate(parted, arrays)[0]), np.asarray(want), dt.bfloat16, 2)
    for device in GPUS:
        program = compile_graph(graph, device.caps)
        assert len(program.kernels) == 2
        got = play(device, program, arrays)
        kit.close(got, np.asarray(want), dt.bfloat16, 2)


def test_where_there_are_no_parts() -> None:
    short, _ = _long(1000)
    graph, _ = _long(1300)
    for g, target in ((short, "cuda"), (graph, "cpu-avx512")):
        parted = split_decoding(g, _claims(PRESETS[target]))
        assert [n.op for n in toposort(parted.outputs)].count("call") == 1


def test_parts_in_any_batch() -> None:
    """Through both kernels a row has the same bits alone and beside others."""
    device = GPUS[0]
    graph, arrays = _long(1300)
    all_ = play(device, compile_graph(graph, device.caps), arrays)
    one, _ = _long(1300, n=1)
    for i in range(3):
        own = [a[i : i + 1] if k in (0, 3, 4) else a for k, a in enumerate(arrays)]
        np.testing.assert_array_equal(
            play(device, compile_graph(one, device.caps), own)[0], all_[i]
        )
