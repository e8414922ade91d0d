"""Decodes pictures from strangers: files, bytes, arrays. Pillow reads the formats."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core import install
from weft.core.errors import FileFormatError, LimitError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_BYTES = 64 << 20  # of an encoded picture
MAX_PIXELS = 64 << 20  # 192 MiB once decoded
MAX_RATIO = 200  # longer to shorter side; beyond it no family has a rule

Source = str | os.PathLike[str] | bytes | np.ndarray
"""A picture: a path, the bytes of a file, an array uint8 [H, W] or [H, W, 3 or 4], or an image of
Pillow's."""


def pillow() -> Any:
    """Returns the module PIL.Image. Raises UsageError without Pillow."""
    try:
        from PIL import Image, ImageOps  # noqa: F401
    except ImportError:
        raise UsageError(
            f"pictures need Pillow, which is not installed: {install.how('vision')}"
        ) from None
    return Image


def decode(source: Any, where: str = "") -> np.ndarray:
    """Returns a picture as uint8 [H, W, 3] in RGB, upright: the first frame of an animation, with
    transparent parts on white. `where` names the picture in errors. Raises FileFormatError for
    bytes that are not a whole picture, LimitError for one that is too large, UsageError for other
    values and missing files."""
    if isinstance(source, np.ndarray):
        return _checked(_from_array(source, where or "the array"), where or "the array")
    images = pillow()
    if isinstance(source, images.Image):
        return _checked(_pixels(source, where or "the picture"), where or "the picture")
    if isinstance(source, str | os.PathLike):
        where = where or str(source)[:200]
        source = _read(Path(source), where)
    if not isinstance(source, bytes | bytearray | memoryview):
        raise UsageError(
            f"a picture is a path, bytes, an array or an image of Pillow's; got "
            f"{type(source).__name__}"
        )
    where = where or "the picture"
    if len(source) > MAX_BYTES:
        raise LimitError(
            f"{where} has {len(source)} bytes; weft reads pictures of up to {MAX_BYTES >> 20} MiB"
        )
    return _checked(_decoded(images, bytes(source), where), where)


def digest(image: np.ndarray) -> bytes:
    """Returns 32 bytes that name the content of a decoded picture."""
    made = hashlib.blake2b(repr(image.shape).encode(), digest_size=32, person=b"weft.picture")
    made.update(np.ascontiguousarray(image).data)
    return made.digest()


def _read(path: Path, where: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the picture {where}: {said}") from None


def _decoded(images: Any, data: bytes, where: str) -> np.ndarray:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with images.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(image.width, image.height, where)
                return _pixels(image, where)
    except (LimitError, FileFormatError):
        raise
    except images.UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise FileFormatError(f"{where} is not a picture that weft reads ({known})") from None
    except images.DecompressionBombError:  # far beyond our own limit
        raise LimitError(
            f"{where} has more pixels than the {MAX_PIXELS >> 20} Mi that weft reads: scale it "
            "down first"
        ) from None
    except Exception as error:  # decoders raise errors of many kinds on damaged files
        said = str(error).strip() or type(error).__name__
        raise FileFormatError(f"{where} is damaged: {said[:200]}") from None


def _check_size(width: int, height: int, where: str) -> None:
    if width * height > MAX_PIXELS:
        raise LimitError(
            f"{where} has {width} x {height} pixels; weft reads up to {MAX_PIXELS >> 20} Mi: "
            "scale it down first"
        )


def _checked(image: np.ndarray, where: str) -> np.ndarray:
    height, width, _ = image.shape
    if not height or not width:
        raise FileFormatError(f"{where} is empty: {width} x {height} pixels")
    _check_size(width, height, where)
    if max(height, width) > MAX_RATIO * min(height, width):
        raise LimitError(
            f"{where} has {width} x {height} pixels; one side may be at most {MAX_RATIO} times "
            "the other: crop the picture"
        )
    return image


def _pixels(image: Image, where: str) -> np.ndarray:
    """Returns the pixels of an image of Pillow's, uint8 [H, W, 3]."""
    from PIL import Image as images, ImageOps

    image = ImageOps.exif_transpose(image)  # also decodes; a copy
    if image.mode.startswith("I"):
        return _narrow(np.asarray(image), where)
    if image.mode == "F":
        raise FileFormatError(f"{where} has pixels in float32; save it with 8 or 16 bits")
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = images.new("RGBA", image.size, (255, 255, 255, 255))
        image = images.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))


def _narrow(values: np.ndarray, where: str) -> np.ndarray:
    """Returns 16-bit grey values [H, W] as uint8 [H, W, 3], rounded."""
    wide = values.astype(np.int64)
    if wide.size and (wide.min() < 0 or wide.max() > 0xFFFF):
        raise FileFormatError(f"{where} has pixels of 32 bits; save it with 8 or 16 bits")
    grey = ((wide + 128) // 257).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _from_array(array: np.ndarray, where: str) -> np.ndarray:
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise UsageError(
            f"{where} is {array.dtype}{list(array.shape)}; a picture is uint8 [H, W], [H, W, 3] "
            "or [H, W, 4]"
        )
    array = array[:, :, None] if array.ndim == 2 else array
    if array.shape[2] == 1:
        return np.repeat(array, 3, axis=2)
    if array.shape[2] == 4:
        alpha = array[:, :, 3:] / 255
        mixed: np.ndarray = np.round(alpha * array[:, :, :3] + (1 - alpha) * 255)
        return mixed.astype(np.uint8)
    if array.shape[2] != 3:
        raise UsageError(f"{where} has {array.shape[2]} channels; expected 1, 3 or 4")
    return array
