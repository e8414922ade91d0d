"""The sizes that processors of classifiers, detectors, segmenters and depth estimators choose for a
picture, and the place of the picture in the net's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from weft.vision.steps import Steps, centred, resized


class Fitted(NamedTuple):
    """A picture as a net reads it: `image` uint8 [H, W, 3], in which the whole picture has the size
    `inner` (height first), with its upper left corner at `origin`; pixels beyond are cut."""

    image: np.ndarray
    inner: tuple[int, int]
    origin: tuple[int, int] = (0, 0)


def shortest(height: int, width: int, size: int) -> tuple[int, int]:
    """Returns the size with the shorter side `size`, in the same proportion."""
    long = int(size * max(height, width) / min(height, width))
    return (long, size) if width <= height else (size, long)


def within(height: int, width: int, least: int, most: int) -> tuple[int, int]:
    """Returns the size with the shorter side `least`, or the longer `most` if that is less, in the
    same proportion: DETR's rule."""
    short, long = min(height, width), max(height, width)
    exact: float = least
    if long / short * least > most:
        exact = most * short / long
        least = round(exact)
    if short == least:
        return height, width
    other = int(exact * long / short)
    return (other, least) if width < height else (least, other)


def _whole(steps: Steps, image: np.ndarray, size: tuple[int, int]) -> Fitted:
    return Fitted(resized(image, size, steps.filter), size)


def _cropped(
    steps: Steps, image: np.ndarray, size: tuple[int, int], crop: tuple[int, int]
) -> Fitted:
    made = centred(resized(image, size, steps.filter), crop)
    top, left = (-((have - want) // 2) for have, want in zip(size, crop))
    return Fitted(made, size, (top, left))


def plain(steps: Steps, image: np.ndarray) -> Fitted:
    """A fixed size or shorter side, then perhaps a cut from the middle."""
    height, width, _ = image.shape
    given = steps.size
    size = (height, width)
    if steps.resizes and "height" in given:
        size = given["height"], given["width"]
    elif steps.resizes:
        size = shortest(height, width, given["shortest_edge"])
    return _whole(steps, image, size) if steps.crop is None else (
        _cropped(steps, image, size, steps.crop))  # fmt: skip


def bounded(steps: Steps, image: np.ndarray) -> Fitted:
    """DETR and its relatives: a fixed size, or one of bounded sides; YOLOS cuts it to multiples of
    16."""
    height, width, _ = image.shape
    given = steps.size
    if "height" in given:
        size = given["height"], given["width"]
    else:
        size = within(height, width, given["shortest_edge"], given.get("longest_edge", 1 << 28))
    by = int(steps.more.get("mod_size", 1))
    return _whole(steps, image, (max(size[0] // by * by, by), max(size[1] // by * by, by)))


def in_multiples(steps: Steps, image: np.ndarray) -> Fitted:
    """DPT: sides that are multiples of a number, near a size, in the same proportion if wanted."""
    height, width, _ = image.shape
    tall, wide = steps.size["height"] / height, steps.size["width"] / width
    if steps.more.get("keep_aspect_ratio"):
        tall = wide = wide if abs(1 - wide) < abs(1 - tall) else tall
    by = int(steps.more.get("ensure_multiple_of", 1))
    size = round(tall * height / by) * by, round(wide * width / by) * by
    return _whole(steps, image, (max(size[0], by), max(size[1], by)))


def with_margin(steps: Steps, image: np.ndarray) -> Fitted:
    """ConvNeXT: a square from the middle; from 384 pixels on the whole picture."""
    side = steps.size["shortest_edge"]
    if side >= 384:
        return _whole(steps, image, (side, side))
    larger = int(side / float(steps.more.get("crop_pct", 224 / 256)))
    return _cropped(steps, image, shortest(image.shape[0], image.shape[1], larger), (side, side))


def boxed(steps: Steps, image: np.ndarray) -> Fitted:
    """YOLO: the whole picture in the middle of a grey one of a fixed size."""
    height, width, _ = image.shape
    tall, wide = steps.size["height"], steps.size["width"]
    by = min(tall / height, wide / width)
    inner = max(round(height * by), 1), max(round(width * by), 1)
    top, left = (round((n - m) / 2 - 0.1) for n, m in zip((tall, wide), inner))
    made = np.full((tall, wide, 3), 114, np.uint8)
    made[top : top + inner[0], left : left + inner[1]] = resized(image, inner, steps.filter)
    return Fitted(made, inner, (top, left))


RULES: Mapping[str, Callable[[Steps, np.ndarray], Fitted]] = {
    "plain": plain, "bounded": bounded, "multiple": in_multiples, "margin": with_margin,
    "boxed": boxed,
}  # fmt: skip
