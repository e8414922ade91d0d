"""Values of GGUF's block types, bit for bit as the gguf package has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given, settings, strategies as st

from weft.core.errors import ShapeError
from weft.importers import gguf_blocks, gguf_codebooks
from weft.importers.gguf_blocks import BY_NAME, TYPES, BlockType, bad_block, dequantize

THEIRS = {t.name for t in quants._type_traits} | {"F32", "F16"}
KINDS = sorted(THEIRS)
SHAPES = [(1, 1), (1, 7), (5, 3), (2, 3, 1, 2)]  # the last in blocks
# What the package does not decode, and we read.
ALONE = {"F64", "I8", "I16", "I32", "I64", "Q8_K", "Q1_0", "Q2_0"}


def reference(kind: BlockType, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    rows = data.reshape(-1, shape[-1] // kind.elements * kind.nbytes)
    with np.errstate(all="ignore"):
        return quants.dequantize(rows, GGMLQuantizationType[kind.name]).reshape(shape)


def check(kind: BlockType, data: np.ndarray, shape: tuple[int, ...]) -> None:
    found, wanted = dequantize(kind, data, shape), reference(kind, data, shape)
    assert found.dtype == np.float32 and found.shape == shape
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


def random_blocks(kind: BlockType, count: int, seed: int = 0) -> np.ndarray:
    """Blocks [count] of random bytes whose floats are finite."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, count * kind.nbytes, np.uint8).view(kind.layout)
    for name in floats(kind):
        draws = rng.standard_normal(blocks[name].shape) * 10.0 ** rng.integers(-7, 4, count)
        blocks[name] = np.clip(draws, -65504, 65504)
    if kind.name == "MXFP4":
        blocks["e"] %= 255
    return blocks


def floats(kind: BlockType) -> list[str]:
    return [n for n in kind.layout.names or () if kind.layout[n].kind == "f"]


def elements(kind: BlockType, blocks: tuple[int, ...]) -> tuple[int, ...]:
    return (*blocks[:-1], blocks[-1] * kind.elements)


def test_the_table_is_the_packages() -> None:
    assert set(BY_NAME) == THEIRS | ALONE
    for name, kind in BY_NAME.items():
        assert TYPES[kind.id] is kind
        if name != "Q2_0":  # younger than the package
            number = GGMLQuantizationType[name]
            assert (kind.id, kind.elements, kind.nbytes) == (number, *GGML_QUANT_SIZES[number])


@pytest.mark.parametrize("name", KINDS)
def test_random_blocks(name: str) -> None:
    kind = BY_NAME[name]
    for seed, shape in enumerate(SHAPES):
        data = random_blocks(kind, math.prod(shape), seed).view(np.uint8)
        check(kind, data, elements(kind, shape))
        assert bad_block(kind, data) is None or name in ("IQ1_M", "BF16")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("byte", [0, 1, 0x55, 0x7F, 0x80, 0xAA, 0xFF])
def test_uniform_blocks(name: str, byte: int) -> None:
    """All zeros, all ones (NaN, in the floats), and between."""
    kind = BY_NAME[name]
    check(kind, np.full(3 * kind.nbytes, byte, np.uint8), (3, kind.elements))


EXTREMES = [0.0, -0.0, 65504.0, -65504.0, 6e-8, -6e-8, 6.1e-5, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("name", [n for n in KINDS if floats(BY_NAME[n])])
def test_extreme_scales(name: str) -> None:
    kind = BY_NAME[name]
    pairs = [(a, b) for a in EXTREMES for b in EXTREMES]
    blocks = random_blocks(kind, len(pairs))
    for field, values in zip(floats(kind), zip(*pairs)):
        blocks[field] = values
    check(kind, blocks.view(np.uint8), (len(pairs), kind.elements))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4", "TQ1_0"])
def test_every_byte_of_scales_and_digits(name: str) -> None:
    kind = BY_NAME[name]
    blocks = random_blocks(kind, 256)
    first = (kind.layout.names or ())[0]
    blocks[first] = np.arange(256).reshape(-1, *(1,) * (blocks[first].ndim - 1))
    check(kind, blocks.view(np.uint8), (256, kind.elements))


@pytest.mark.parametrize("name", sorted(gguf_codebooks._POINTS))
def test_codebooks(name: str) -> None:
    theirs = getattr(quants, name)
    theirs.init_grid()
    np.testing.assert_array_equal(gguf_codebooks.grid(name), theirs.grid[0, 0])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_bytes(data: st.DataObject) -> None:
    """Any bytes at all, so any scale: NaN and infinity fall where they do in the package."""
    kind = BY_NAME[data.draw(st.sampled_from(KINDS))]
    rows, blocks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    size = rows * blocks * kind.nbytes
    raw = data.draw(st.binary(min_size=size, max_size=size))
    check(kind, np.frombuffer(raw, np.uint8), (rows, blocks * kind.elements))


@pytest.mark.parametrize("name", KINDS)
def test_pieces_make_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = BY_NAME[name]
    data = random_blocks(kind, 7 * 5).view(np.uint8).reshape(7, -1)
    whole = dequantize(kind, data, (7, 5 * kind.elements))
    rows = dequantize(kind, data[::2], (4, 5 * kind.elements))  # not contiguous
    monkeypatch.setattr(gguf_blocks, "CHUNK", 3 * kind.elements)
    in_pieces = dequantize(kind, data, (7, 5 * kind.elements))
    np.testing.assert_array_equal(in_pieces.view(np.uint32), whole.view(np.uint32))
    np.testing.assert_array_equal(rows.view(np.uint32), whole[::2].view(np.uint32))


def test_what_the_package_does_not_decode() -> None:
    for name in ("I8", "I16", "I32", "I64", "F64"):
        kind = BY_NAME[name]
        values = random_blocks(kind, 40)["x"]
        got = dequantize(kind, values.view(np.uint8), (5, 8))
        np.testing.assert_array_equal(got.ravel(), [np.float32(v) for v in values])
    blocks = random_blocks(BY_NAME["Q8_K"], 3)
    wanted = [[b["d"] * np.float32(q) for q in b["qs"]] for b in blocks]
    got = dequantize(BY_NAME["Q8_K"], blocks.view(np.uint8), (3, 256))
    np.testing.assert_array_equal(got, wanted)
    for name, bits in (("Q1_0", 1), ("Q2_0", 2)):
        kind = BY_NAME[name]
        blocks = random_blocks(kind, 3)
        for block, got in zip(blocks, dequantize(kind, blocks.view(np.uint8), (3, kind.elements))):
            packed = int.from_bytes(block["qs"].tobytes(), "little")
            codes = [packed >> bits * i & (1 << bits) - 1 for i in range(kind.elements)]
            signed = [2 * q - 1 if bits == 1 else q - 1 for q in codes]
            np.testing.assert_array_equal(
                got, np.float32(block["d"]) * np.array(signed, np.float32)
            )


def test_plain_floats_are_not_copied() -> None:
    data = np.arange(6, dtype=np.float32).view(np.uint8)
    assert np.shares_memory(dequantize(BY_NAME["F32"], data, (2, 3)), data)


@pytest.mark.parametrize("shape", [(), (2, 31), (2, 64), (3, 32), (0, 32), (64,) * 3])
def test_a_shape_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="32 elements of a row take 34 bytes"):
        dequantize(BY_NAME["Q8_0"], np.zeros(68, np.uint8), shape)


@pytest.mark.parametrize("name", [n for n in BY_NAME if floats(BY_NAME[n])])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_scales_are_found(name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = BY_NAME[name]
    monkeypatch.setattr(gguf_blocks, "CHUNK", 3 * kind.elements)
    for field in floats(kind):
        blocks = random_blocks(kind, 12)
        assert bad_block(kind, blocks.view(np.uint8)) is None
        blocks[field][[7, 9]] = value
        assert bad_block(kind, blocks.view(np.uint8)) == 7


def test_bad_scales_that_are_no_plain_float() -> None:
    scale = BY_NAME["MXFP4"]
    blocks = np.zeros(4, scale.layout)
    assert bad_block(scale, blocks.view(np.uint8)) is None
    blocks["e"][2] = 255
    assert bad_block(scale, blocks.view(np.uint8)) == 2
    for name, field, bits in (("BF16", "x", 0x7F80), ("IQ1_M", "scales", 0xF000)):
        kind = BY_NAME[name]
        blocks = np.zeros(4, kind.layout)
        assert bad_block(kind, blocks.view(np.uint8)) is None
        blocks[field][3] = bits
        assert bad_block(kind, blocks.view(np.uint8)) == 3
