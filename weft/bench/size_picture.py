"""The picture of `weft eval`: what models weigh, and what they lose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.training.report import new_figure, save_figure


def figure() -> Any:
    """An empty picture. Raises UsageError when matplotlib is missing."""
    return new_figure("the picture (--json has its numbers)", "bench")


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Size of the weights against loss, a point per run (of `weft eval --json`) with the standard
    error of its distance from the reference; a second panel shows divergences where runs have any.
    PNG or SVG, by the ending of `path`. Raises UsageError when matplotlib is missing,
    StorageError."""
    made = figure()
    panels = [("loss", "loss, nats per token")]
    if any(run.get("kl") for run in runs):
        panels.append(("kl", "KL divergence, nats per token"))
    for axes, (key, label) in zip(made.subplots(1, len(panels), squeeze=False)[0], panels):
        shown = [run for run in runs if run.get(key)]
        points = [(run["weight_bytes"] / 2**20, run[key]) for run in shown]
        for run, (size, value) in zip(shown, points):
            # The error of a loss is that of the text, the same for all: what differs is `excess`.
            error = run.get("excess_loss_error" if key == "loss" else "kl_error") or 0.0
            axes.errorbar(size, value, yerr=error, fmt="o", color=_color(runs, run), capsize=3)
        if key == "kl":
            axes.set_yscale("log")
        axes.set(xlabel="weights, MiB", ylabel=label)
        axes.margins(x=0.5, y=0.15)
        axes.grid(alpha=0.3)
        _name(axes, points, [run["name"] for run in shown], [_color(runs, run) for run in shown])
    save_figure(made, path)


def _color(runs: Sequence[dict[str, Any]], run: dict[str, Any]) -> str:
    return f"C{runs.index(run) % 10}"


def _name(
    axes: Any, points: Sequence[tuple[float, float]], names: Sequence[str], colors: Sequence[str]
) -> None:
    """Writes each name next to its point, where it covers no other name and no point."""
    from matplotlib.transforms import Bbox

    axes.figure.canvas.draw()  # so that the limits and the sizes of texts are known
    inside = axes.get_window_extent()
    places = [axes.transData.transform(point) for point in points]
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in places]
    for point, name, color in sorted(zip(points, names, colors), key=lambda named: -named[0][1]):
        best, least = None, 0.0
        for far, side in itertools.product((5, 16, 27, 38), ("left", "right")):
            for up in (far, -far - 6):
                text = axes.annotate(
                    name, point, xytext=(8 if side == "left" else -8, up), fontsize=8,
                    textcoords="offset points", ha=side, color=color,
                )  # fmt: skip
                box = text.get_window_extent()
                cost = far + 1e3 * sum(box.overlaps(other) for other in taken)
                cost += 1e3 * (not (inside.x0 <= box.x0 and box.x1 <= inside.x1))
                if best is None or cost < least:
                    if best is not None:
                        best[0].remove()
                    best, least = (text, box), cost
                else:
                    text.remove()
        assert best is not None
        taken.append(best[1])
