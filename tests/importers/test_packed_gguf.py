"""GGUF's blocks in the packed form: the same numbers, to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.importers.test_gguf_blocks import EXTREMES, elements, floats, random_blocks
from weft.core.errors import DTypeError, ShapeError
from weft.core.packed import dequantized
from weft.importers.gguf_blocks import BY_NAME, BlockType, dequantize
from weft.importers.packed import gguf
from weft.importers.packed.gguf import FORMS, packed_of


def check(kind: BlockType, data: np.ndarray, shape: tuple[int, ...]) -> None:
    form, parts = packed_of(kind, data, shape)
    rows = math.prod(shape[:-1])
    form.check(parts, rows, shape[-1])
    assert tuple(parts) == form.parts
    found, wanted = dequantized(form, parts), dequantize(kind, data, (rows, shape[-1]))
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


@pytest.mark.parametrize("name", FORMS)
def test_the_values_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = BY_NAME[name]
    monkeypatch.setattr(gguf, "CHUNK", 3 * kind.elements)
    for seed, shape in enumerate([(1, 1), (5, 3), (2, 3, 2)]):
        data = random_blocks(kind, math.prod(shape), seed).view(np.uint8)
        check(kind, data, elements(kind, shape))
    for byte in (0, 1, 0x55, 0x7F, 0x80, 0xAA, 0xFE):
        check(kind, np.full(3 * kind.nbytes, byte, np.uint8), (3, kind.elements))
    pairs = [(a, b) for a in EXTREMES for b in EXTREMES]
    blocks = random_blocks(kind, len(pairs))
    for field, values in zip(floats(kind), zip(*pairs)):
        blocks[field] = values
    check(kind, blocks.view(np.uint8), (len(pairs), kind.elements))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4", "TQ1_0"])
def test_every_byte_of_scales_and_digits(name: str) -> None:
    kind = BY_NAME[name]
    blocks = random_blocks(kind, 255)
    first = (kind.layout.names or ())[0]
    blocks[first] = np.arange(255).reshape(-1, *(1,) * (blocks[first].ndim - 1))
    check(kind, blocks.view(np.uint8), (255, kind.elements))


def test_what_has_no_packed_form() -> None:
    kind = BY_NAME["MXFP4"]
    nan = packed_of(kind, np.full(kind.nbytes, 255, np.uint8), (1, 32))
    assert np.isnan(dequantized(*nan)).all()
    with pytest.raises(DTypeError, match="weft lacks a packed form for F16; it has: Q4_0, "):
        packed_of(BY_NAME["F16"], np.zeros(4, np.uint8), (1, 2))
    with pytest.raises(ShapeError, match="32 elements of a row take 34 bytes"):
        packed_of(BY_NAME["Q8_0"], np.zeros(68, np.uint8), (2, 31))
