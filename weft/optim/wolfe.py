"""A search along a line for a step that satisfies the strong Wolfe conditions (Nocedal and Wright
2006, algorithms 3.5 and 3.6, with cubic interpolation), in the order of PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

ENOUGH, FLAT = 1e-4, 0.9  # of the decrease that the slope promises; of the slope at the start
MOST = 25  # evaluations
NARROW = 1e-9  # the change of a parameter below which a bracket is a point


class Point(NamedTuple):
    """The loss, its gradient, and its slope along the line, at a distance from the start."""

    at: float
    loss: float
    gradient: Any
    slope: float


def strong_wolfe(look: Callable[[float], Point], start: Point, t: float, reach: float) -> Point:
    """The point that the search along the line ends at. `look` evaluates a distance; `reach` is the
    largest change of a parameter for a distance of 1."""
    low, high, count, done = _bracketed(look, start, t)
    stuck = False
    if high.loss < low.loss:
        low, high = high, low
    while not done and count < MOST:
        left, right = min(low.at, high.at), max(low.at, high.at)
        if (right - left) * reach < NARROW:
            break
        t = _cubic(low, high, left, right)
        margin = 0.1 * (right - left)
        near = min(right - t, t - left) < margin
        if near and (stuck or t >= right or t <= left):
            t = right - margin if abs(t - right) < abs(t - left) else left + margin
            near = False
        stuck = near
        new = look(t)
        count += 1
        if _too_high(new, start) or new.loss >= low.loss:
            high = new
            if high.loss < low.loss:
                low, high = high, low
            continue
        if abs(new.slope) <= -FLAT * start.slope:
            done = True
        elif new.slope * (high.at - low.at) >= 0:
            high = low
        low = new
    return low


def _bracketed(
    look: Callable[[float], Point], start: Point, t: float
) -> tuple[Point, Point, int, bool]:
    """Two distances between which there is a good one, the number of steps that it took to find
    them, and whether the first is good itself."""
    before, new, count = start, look(t), 0
    while count < MOST:
        if _too_high(new, start) or (count > 1 and new.loss >= before.loss):
            return before, new, count, False
        if abs(new.slope) <= -FLAT * start.slope:
            return new, new, count, True
        if new.slope >= 0:
            return before, new, count, False
        t = _cubic(before, new, new.at + 0.01 * (new.at - before.at), new.at * 10)
        before, new, count = new, look(t), count + 1
    return start, new, count, False


def _too_high(new: Point, start: Point) -> bool:
    return new.loss > start.loss + ENOUGH * new.at * start.slope


def _cubic(a: Point, b: Point, least: float, most: float) -> float:
    """The minimum between two bounds of the cubic through two points with their slopes."""
    one, two = (a, b) if a.at <= b.at else (b, a)
    if one.at == two.at:
        return (least + most) / 2
    d1 = one.slope + two.slope - 3 * (one.loss - two.loss) / (one.at - two.at)
    square = d1 * d1 - one.slope * two.slope
    if not square >= 0:
        return (least + most) / 2
    d2 = math.sqrt(square)
    bottom = two.slope - one.slope + 2 * d2
    if bottom == 0:
        return (least + most) / 2
    found = two.at - (two.at - one.at) * ((two.slope + d2 - d1) / bottom)
    return min(max(found, least), most)
