"""Answers of a net about a picture: classes, objects, regions or depths, from its outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.records import dataclass

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Classes:
    """The likeliest labels, with probabilities, from the likeliest on."""

    found: tuple[tuple[str, float], ...]

    def facts(self) -> dict[str, Any]:
        """The answer as JSON values."""
        return {"task": "classify", "labels": [
            {"label": name, "score": round(p, 6)} for name, p in self.found]}  # fmt: skip


@dataclass(frozen=True)
class Thing:
    """One object: `box` is (left, top, right, bottom) in pixels of the picture."""

    label: str
    score: float
    box: Box


@dataclass(frozen=True)
class Things:
    """Objects, from the likeliest on."""

    found: tuple[Thing, ...]

    def facts(self) -> dict[str, Any]:
        """The answer as JSON values."""
        return {"task": "detect", "objects": [
            {"label": t.label, "score": round(t.score, 6), "box": [round(x, 2) for x in t.box]}
            for t in self.found]}  # fmt: skip


@dataclass(frozen=True)
class Regions:
    """The class of each pixel: `classes` int32 [H, W], whose numbers `labels` names."""

    classes: np.ndarray
    labels: Mapping[int, str]

    def shares(self) -> list[tuple[int, str, float]]:
        """The classes that occur, with their shares of the picture, from the largest on."""
        numbers, counts = np.unique(self.classes, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        total = self.classes.size
        return [
            (int(numbers[i]), name_of(self.labels, int(numbers[i])), int(counts[i]) / total)
            for i in order
        ]

    def facts(self) -> dict[str, Any]:
        """The answer as JSON values: the map itself is not among them."""
        found = [{"label": name, "class": n, "share": round(s, 6)} for n, name, s in self.shares()]
        return {"task": "segment", "regions": found}


@dataclass(frozen=True)
class Depths:
    """The depth of each pixel, float32 [H, W], in the net's units."""

    values: np.ndarray

    def facts(self) -> dict[str, Any]:
        """The answer as JSON values: the map itself is not among them."""
        return {
            "task": "depth",
            "least": float(self.values.min()),
            "most": float(self.values.max()),
        }


Answer = Classes | Things | Regions | Depths


def name_of(labels: Mapping[int, str], number: int) -> str:
    """The label of a class, or "class N"."""
    return labels.get(number, f"class {number}")


# -- classes


def classes(scores: np.ndarray, labels: Mapping[int, str], top: int, several: bool) -> Classes:
    """The `top` likeliest classes of scores [C]: probabilities as they are, else by softmax, or
    one by one (`several`: a picture may have many labels)."""
    x = scores.astype(np.float64)
    given = bool((x >= 0).all() and abs(x.sum() - 1) < 1e-3)
    p = x if given else sigmoid(x) if several else softmax(x)
    order = np.argsort(-p, kind="stable")[:top]
    return Classes(tuple((name_of(labels, int(i)), float(p[i])) for i in order))


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    made: np.ndarray = e / e.sum(-1, keepdims=True)
    return made


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        made: np.ndarray = 1 / (1 + np.exp(-x))
    return made


# -- objects


def things(
    boxes: np.ndarray, scores: np.ndarray, numbers: np.ndarray, labels: Mapping[int, str],
    threshold: float,
) -> Things:  # fmt: skip
    """Objects of boxes [N, 4] in pixels with scores above a threshold."""
    keep = [i for i in np.argsort(-scores, kind="stable") if scores[i] > threshold]
    return Things(tuple(
        Thing(name_of(labels, int(numbers[i])), float(scores[i]), _box(boxes[i])) for i in keep
    ))  # fmt: skip


def _box(row: np.ndarray) -> Box:
    left, top, right, bottom = (float(x) for x in row)
    return left, top, right, bottom


def corners(boxes: np.ndarray) -> np.ndarray:
    """Boxes [N, 4] of a centre, a width and a height as corners."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], 1)


def kept(
    boxes: np.ndarray, scores: np.ndarray, numbers: np.ndarray, overlap: float, most: int
) -> list[int]:
    """The indices of boxes that no likelier box of their class covers by more than `overlap`
    (intersection over union), `most` of them: non-maximum suppression."""
    order, found = list(np.argsort(-scores, kind="stable")), list[int]()
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), 1)
    while order and len(found) < most:
        i = order.pop(0)
        found.append(int(i))
        rest = np.array(order, np.int64)
        if not rest.size:
            break
        low = np.maximum(boxes[i, :2], boxes[rest, :2])
        high = np.minimum(boxes[i, 2:], boxes[rest, 2:])
        common = np.prod(np.maximum(high - low, 0), 1)
        shared = common / np.maximum(areas[i] + areas[rest] - common, 1e-12)
        order = list(rest[(shared <= overlap) | (numbers[rest] != numbers[i])])
    return found


# -- maps


def resampled(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A plane [h, w, ...] in another size, bilinear between the centres of pixels, as PyTorch's
    interpolate computes it."""
    rows, columns = (_places(n, m) for n, m in zip(plane.shape, size))
    rest = (1,) * (plane.ndim - 2)
    low, high, part = rows
    part = part.reshape(-1, 1, *rest)
    tall = plane[low] * (1 - part) + plane[high] * part
    low, high, part = columns
    part = part.reshape(-1, *rest)
    made: np.ndarray = tall[:, low] * (1 - part) + tall[:, high] * part
    return made


def _places(have: int, want: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at = np.maximum((np.arange(want) + 0.5) * (have / want) - 0.5, 0)
    low = np.minimum(at.astype(np.int64), have - 1)
    return low, np.minimum(low + 1, have - 1), (at - low).astype(np.float32)


def regions(scores: np.ndarray, labels: Mapping[int, str], size: tuple[int, int]) -> Regions:
    """The likeliest class of each pixel, from scores [C, h, w] in the picture's size. One class
    after another is resampled, so that memory is that of three planes."""
    best = np.full(size, -math.inf, np.float32)
    found = np.zeros(size, np.int32)
    for number, plane in enumerate(scores.astype(np.float32)):
        larger = resampled(plane, size)
        hit = larger > best
        best[hit], found[hit] = larger[hit], number
    return Regions(found, labels)


def cut_out(plane: np.ndarray, shown: Sequence[float], size: tuple[int, int]) -> np.ndarray:
    """The part of planes [..., h, w] that lies on the picture: `shown` is what the net saw, in the
    picture's pixels (left, top, right, bottom)."""
    height, width = plane.shape[-2:]
    left, top, right, bottom = shown
    x = [round((e - left) / (right - left) * width) for e in (0, size[1])]
    y = [round((e - top) / (bottom - top) * height) for e in (0, size[0])]
    x = [min(max(v, 0), width) for v in x]
    y = [min(max(v, 0), height) for v in y]
    return plane[..., y[0] : max(y[1], y[0] + 1), x[0] : max(x[1], x[0] + 1)]
