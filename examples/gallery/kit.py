"""What the examples share: digits, a compiled training step, an empty figure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import weft

TRAIN = 1500  # digits to train on, of 1,797


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images [N, 1, 8, 8] in 0..1 and classes: those to train on, then the others."""
    found = load_digits()
    images = (found.images[:, None] / 16.0).astype(np.float32)
    classes = found.target.astype(np.int32)
    return images[:TRAIN], classes[:TRAIN], images[TRAIN:], classes[TRAIN:]


def training(loss: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
    """One step as one Program: forward, backward and the optimiser's update."""

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        value = loss(*batch)
        value.backward()
        optimizer.step()
        return value

    return weft.compile(step)


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images [N, 1, 8, 8], most of them moved by a pixel."""
    wide = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    shifts = np.stack([wide[:, :, a : a + 8, b : b + 8] for a in range(3) for b in range(3)])
    chances = [0.05, 0.1, 0.05, 0.1, 0.4, 0.1, 0.05, 0.1, 0.05]
    found: np.ndarray = shifts[rng.choice(9, len(images), p=chances), np.arange(len(images))]
    return found


def figure(width: float = 8.0, height: float = 4.0) -> Figure:
    made = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(made)
    return made


def finish(made: Figure) -> None:
    """Writes the picture: to the first argument, or beside the example."""
    script = Path(sys.argv[0])
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else script.with_suffix(".png")
    made.savefig(path)
    print(path)


def tiles(axes: Any, images: np.ndarray, columns: int) -> None:
    """Images [N, 8, 8] beside and below one another."""
    rows = len(images) // columns
    around = ((0, 0), (1, 1), (1, 1))
    wide = np.pad(images[: rows * columns], around, constant_values=images.min())
    grid = wide.reshape(rows, columns, 10, 10).transpose(0, 2, 1, 3)
    axes.imshow(grid.reshape(rows * 10, columns * 10), cmap="gray_r")
    axes.axis("off")
