"""Answers drawn into the picture: boxes, regions, depths, labels."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np

from weft.vision.answers import Answer, Classes, Depths, Regions, Things
from weft.vision.decode import pillow

_TURN = 0.618034  # of the circle of hues, so that neighbouring classes differ
_DEPTHS = np.array(  # from far to near: dark blue, violet, orange, light yellow
    [[8, 10, 40], [92, 28, 110], [214, 76, 60], [250, 160, 50], [252, 250, 190]], np.float64
)


def colour(number: int) -> tuple[int, int, int]:
    """The colour of a class."""
    r, g, b = colorsys.hsv_to_rgb((number * _TURN + 0.58) % 1, 0.75, 0.95)
    return round(r * 255), round(g * 255), round(b * 255)


def drawn(image: np.ndarray, answer: Answer) -> Any:
    """The answer in a picture, uint8 [H, W, 3], as an image of Pillow's."""
    if isinstance(answer, Regions):
        palette = np.array([colour(n) for n in range(int(answer.classes.max()) + 1)], np.float64)
        mixed = 0.45 * image + 0.55 * palette[answer.classes]
        names = [(name, colour(n)) for n, name, share in answer.shares() if share >= 0.01]
        return _with_legend(mixed.round().astype(np.uint8), names)
    if isinstance(answer, Depths):
        return pillow().fromarray(_coloured(answer.values))
    if isinstance(answer, Classes):
        names = [(f"{name}  {p:.1%}", colour(i)) for i, (name, p) in enumerate(answer.found)]
        return _with_legend(image, names)
    return _with_boxes(image, answer)


def _coloured(values: np.ndarray) -> np.ndarray:
    span = float(values.max() - values.min())
    at = (values - values.min()) / span if span else np.zeros_like(values)
    at = at * (len(_DEPTHS) - 1)
    low = np.minimum(at.astype(np.int64), len(_DEPTHS) - 2)
    part = (at - low)[..., None]
    made: np.ndarray = (
        (_DEPTHS[low] * (1 - part) + _DEPTHS[low + 1] * part).round().astype(np.uint8)
    )
    return made


def _with_boxes(image: np.ndarray, answer: Things) -> Any:
    from PIL import ImageDraw

    made = pillow().fromarray(image)
    pen, height = ImageDraw.Draw(made), image.shape[0]
    font, width = _font(image), max(2, min(image.shape[:2]) // 200)
    kinds = {name: i for i, name in enumerate(dict.fromkeys(t.label for t in answer.found))}
    for thing in reversed(answer.found):  # the likeliest is on top
        left, top, right, bottom = thing.box
        ink = colour(kinds[thing.label])
        ends = (min(left, right), min(top, bottom)), (max(left, right), max(top, bottom))
        pen.rectangle(ends, outline=ink, width=width)
        text = f"{thing.label} {thing.score:.0%}"
        box = pen.textbbox((0, 0), text, font=font)
        wide, tall = box[2] + 6, box[3] + 4
        y = min(max(top - tall, 0), max(height - tall, 0))
        x = min(max(left, 0), max(image.shape[1] - wide, 0))
        pen.rectangle(((x, y), (x + wide, y + tall)), fill=ink)
        pen.text((x + 3, y + 1), text, fill=(0, 0, 0), font=font)
    return made


def _with_legend(image: np.ndarray, names: list[tuple[str, tuple[int, int, int]]]) -> Any:
    from PIL import ImageDraw

    made = pillow().fromarray(image)
    pen, font = ImageDraw.Draw(made, "RGBA"), _font(image)
    boxes = [pen.textbbox((0, 0), name, font=font) for name, _ in names]
    if not boxes:
        return made
    tall = max(b[3] for b in boxes) + 4
    side = tall - 4
    wide = max(b[2] for b in boxes) + side + 14
    pen.rectangle(((0, 0), (wide, tall * len(names) + 4)), fill=(0, 0, 0, 150))
    for i, (name, ink) in enumerate(names):
        y = 4 + i * tall
        pen.rectangle(((4, y), (4 + side, y + side)), fill=(*ink, 255))
        pen.text((side + 10, y), name, fill=(255, 255, 255, 255), font=font)
    return made


def _font(image: np.ndarray) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(max(11, min(image.shape[:2]) // 28))
