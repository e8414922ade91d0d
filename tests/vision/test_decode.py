"""Pictures from strangers: every mode and format comes out right, or with a named error."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from weft.core.errors import FileFormatError, LimitError, UsageError, WeftError
from weft.vision import decode as decoding
from weft.vision.decode import decode, digest
from weft.vision.uri import data_of, from_base64

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (13, 17, 3), dtype=np.uint8)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG with this head, whatever its rows are."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "YCbCr", "I;16"])
def test_modes(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(RGB[:, :, 0].astype(np.uint16) * 257)
        want = np.repeat(RGB[:, :, :1], 3, 2)
    else:
        image = Image.fromarray(RGB).convert(mode)
        want = np.asarray(image.convert("RGB"))
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    data = saved(image, kind)
    if kind == "JPEG":
        want = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    got = decode(data)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == np.uint8 and digest(got) == digest(want.copy())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_formats(kind: str, tmp_path: Path) -> None:
    data = saved(Image.fromarray(RGB), kind)
    want = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode(data), want)
    path = tmp_path / "picture"
    path.write_bytes(data)
    np.testing.assert_array_equal(decode(path), want)
    for cut in (1, 8, len(data) // 3, len(data) // 2, len(data) - len(data) // 8):
        with pytest.raises(FileFormatError, match=r"damaged|not a picture"):
            decode(data[:cut])


def test_alpha_is_on_white_and_palettes_have_it_too() -> None:
    alpha = np.dstack([RGB, np.full(RGB.shape[:2], 0, np.uint8)])
    assert (decode(saved(Image.fromarray(alpha))) == 255).all()
    half = np.dstack([RGB, np.full(RGB.shape[:2], 128, np.uint8)])
    want = RGB * (128 / 255) + 255 * (127 / 255)
    assert np.abs(decode(saved(Image.fromarray(half))) - want).max() <= 1
    assert np.abs(decode(half) - want).max() <= 1
    palette = Image.fromarray(RGB).quantize(4)
    first = palette.getpixel((0, 0))
    data = saved(palette, transparency=first)
    assert decode(data)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_turns_upright(turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    data = saved(Image.fromarray(RGB), "PNG", exif=exif)
    ways: list[Any] = [
        lambda x: x, np.fliplr, lambda x: np.rot90(x, 2), np.flipud,
        lambda x: x.swapaxes(0, 1), lambda x: np.rot90(x, -1),
        lambda x: np.rot90(x, 2).swapaxes(0, 1), lambda x: np.rot90(x, 1),
    ]  # fmt: skip
    np.testing.assert_array_equal(decode(data), ways[turn - 1](RGB))


def test_an_animation_is_its_first_frame() -> None:
    frames = [Image.fromarray(np.full((9, 9, 3), v, np.uint8)) for v in (10, 200)]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        more = {"lossless": True} if kind == "WEBP" else {}
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **more)
        assert len(list(ImageSequence.Iterator(Image.open(io.BytesIO(data))))) == 2
        assert np.abs(decode(data).astype(int) - 10).max() <= 1


def test_what_is_too_large_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitError, match="9000 x 9000 pixels; weft reads up to 64 Mi"):
        decode(png(9000, 9000))
    with pytest.raises(LimitError, match="more pixels than the 64 Mi"):
        decode(png(60000, 60000))
    with pytest.raises(LimitError, match="pixels"):
        decode(png(2**31 - 1, 2**31 - 1))
    with pytest.raises(LimitError, match="at most 200 times"):
        decode(np.zeros((3, 900, 3), np.uint8))
    monkeypatch.setattr(decoding, "MAX_BYTES", 100)
    with pytest.raises(LimitError, match="bytes"):
        decode(b"x" * 101)


@pytest.mark.parametrize("data", [
    b"", b"GIF89a", b"<svg/>", b"\x00" * 500, png(0, 5), png(5, 5), png(4, 4, b"\x00" * 7),
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
])  # fmt: skip
def test_no_picture_is_a_named_error(data: bytes) -> None:
    with pytest.raises(FileFormatError, match="the picture"):
        decode(data)


def test_noise_in_files_never_crashes() -> None:
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        data = saved(Image.fromarray(RGB), kind)
        for seed in range(40):
            rng = np.random.default_rng(seed)
            bad = bytearray(data)
            for _ in range(1 + seed % 5):
                bad[rng.integers(len(bad))] = rng.integers(256)
            with contextlib.suppress(WeftError):
                assert decode(bytes(bad)).shape[2] == 3


def test_other_values(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the picture"):
        decode(tmp_path / "none.png")
    with pytest.raises(UsageError, match="cannot read the picture"):
        decode(tmp_path)
    with pytest.raises(UsageError, match="a picture is a path"):
        decode(7)
    with pytest.raises(UsageError, match=r"float64\[2, 2, 3\]"):
        decode(np.zeros((2, 2, 3)))
    with pytest.raises(UsageError, match="5 channels"):
        decode(np.zeros((2, 2, 5), np.uint8))
    with pytest.raises(FileFormatError, match="empty"):
        decode(np.zeros((0, 2, 3), np.uint8))
    with pytest.raises(FileFormatError, match="float32"):
        decode(saved(Image.fromarray(np.ones((3, 3), np.float32)), "TIFF"))
    with pytest.raises(FileFormatError, match="32 bits"):
        decode(saved(Image.fromarray(np.full((3, 3), 1 << 20, np.int32)), "TIFF"))
    np.testing.assert_array_equal(decode(Image.fromarray(RGB)), RGB)
    np.testing.assert_array_equal(decode(RGB[:, :, 0]), np.repeat(RGB[:, :, :1], 3, 2))


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"need Pillow.*\[vision\]"):
        decode(b"x")
    np.testing.assert_array_equal(decode(RGB), RGB)


def test_base64() -> None:
    import base64

    data = saved(Image.fromarray(RGB))
    text = base64.b64encode(data).decode()
    assert from_base64(text) == data == data_of(f"data:image/png;base64,{text}")
    assert data_of(f"DATA:image/png;charset=x;base64,{text[:40]}\n{text[40:]}") == data
    for bad in ("data:image/png,abc", "http://x/y.png", "data:;base64"):
        with pytest.raises(UsageError, match="expected data:"):
            data_of(bad)
    with pytest.raises(FileFormatError, match="not valid base64"):
        from_base64("!!!")
