"""quantize and rescale: rows as integers with a scale per block, bit for bit on every device."""

from __future__ import annotations

import numpy as np
import pytest
from rows import few

from weft import ops
from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import ShapeError
from weft.graph.ir import Graph
from weft.ops.quantize import BLOCK, quantize, rescale
from weft.program.session import Session

rng = np.random.default_rng(5)
LARGEST = np.float32(np.finfo(np.float32).max)


def rows() -> np.ndarray:
    """Blocks of many sizes, and those in which something is zero, tiny, huge or no number."""
    x = rng.standard_normal((5, 3, 4 * BLOCK)).astype(np.float32)
    x *= np.float32(10.0) ** rng.integers(-8, 9, (5, 3, 1)).astype(np.float32)
    x[0, 0, :BLOCK] = 0
    x[1, 0, 3], x[1, 1, 40], x[1, 2, -1] = np.inf, np.nan, -np.inf
    x[2, 0, :BLOCK], x[2, 1, 5], x[2, 2, 7] = 1e-32, LARGEST, 65504
    x[3, 0, :BLOCK] = np.arange(BLOCK) - 15.5  # ties
    x[3, 1, :BLOCK], x[3, 1, 2] = 2.0**-100, -np.nan
    return x


def plain(x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales, block by block."""
    codes, scales = np.zeros(x.shape, np.int32), np.zeros((*x.shape[:-1], x.shape[-1] // BLOCK))
    scales = scales.astype(np.float32)
    with np.errstate(over="ignore"):
        for at in np.ndindex(scales.shape):
            place = (*at[:-1], slice(at[-1] * BLOCK, (at[-1] + 1) * BLOCK))
            top = np.abs(x[place]).max()
            if not np.isfinite(top):
                scales[at] = top
            elif top >= 2.0**-100:
                scales[at] = top * np.float32(1 / n)
                codes[place] = np.rint(x[place] * (np.float32(n) / top))
    return codes, scales


@pytest.mark.parametrize("planes", [1, 2])
def test_the_oracle_is_a_plain_loop(planes: int) -> None:
    x = rows()
    *codes, scales = quantize(x, planes)
    wanted, sizes = plain(x, (127, 16256)[planes - 1])
    found = codes[0].astype(np.int32) if planes == 1 else codes[0] * np.int32(128) + codes[1]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(scales, sizes)
    with np.errstate(all="ignore"):
        back = wanted.astype(np.float32) * np.repeat(sizes, BLOCK, -1)
    np.testing.assert_array_equal(rescale(*codes, scales), back)
    spoilt = ~np.isfinite(x).reshape(5, 3, 4, BLOCK).all(-1)
    assert np.isnan(back.reshape(5, 3, 4, BLOCK)[spoilt]).all()  # never a finite wrong answer
    good = np.where(np.repeat(spoilt, BLOCK, -1), 0, x)
    error = np.abs(np.where(np.repeat(spoilt, BLOCK, -1), 0, back) - good)
    assert (error <= np.repeat(np.where(spoilt, 0, sizes), BLOCK, -1) * 0.501 + 2.0**-100).all()


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize(
    "name", few(["cpu", "vulkan", *PRESETS], "cpu", "vulkan", "cpu-avx512", "cuda")
)
def test_devices_give_its_bits(name: str, planes: int) -> None:
    """One kernel, which reads what an elementwise producer gives."""
    device = InterpDevice(PRESETS[name]) if name in PRESETS else get(name)
    x = rows()
    node = ops.input_node("x", x.shape, dt.float32)
    graph = Graph((node,), quantize(ops.mul(node, ops.full_like(node, 0.5)), planes))
    program = compile_graph(graph, device.caps)
    assert len(program.kernels) == 1
    with np.errstate(all="ignore"):
        wanted = quantize(x * np.float32(0.5), planes)
    for got, want in zip(Session(program, device).run({"x": x}), wanted):
        np.testing.assert_array_equal(got, want)


def test_what_is_no_row_of_blocks_is_refused() -> None:
    with pytest.raises(ShapeError, match="whole blocks of 32"):
        quantize(np.zeros((2, 33), np.float32))
    with pytest.raises(ShapeError, match="1 or 2 planes"):
        quantize(np.zeros((2, 32), np.float32), 3)
    with pytest.raises(ShapeError, match="expected those of quantize"):
        rescale(np.zeros((2, 32), np.int8), np.zeros((2, 2), np.float32))
