"""The picture of `weft eval`: what models weigh, and what they lose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.models.training.report import new_figure, save_figure


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
        order = sorted(shown, key=lambda run: (run["weight_bytes"], run[key]))
        for run in shown:
            i, left = runs.index(run), order.index(run) % 2  # names of neighbours on either side
            size = run["weight_bytes"] / 2**20
            color = f"C{i % 10}"
            # The error of a loss is that of the text, the same for all: what differs is `excess`.
            error = run.get("excess_loss_error" if key == "loss" else "kl_error") or 0.0
            axes.errorbar(size, run[key], yerr=error, fmt="o", color=color, capsize=3)
            axes.annotate(
                run["name"], (size, run[key]), xytext=(-6 if left else 6, 5),
                textcoords="offset points", ha="right" if left else "left", fontsize=8, color=color,
            )  # fmt: skip
        if key == "kl":
            axes.set_yscale("log")
        axes.set(xlabel="weights, MiB", ylabel=label)
        axes.margins(x=0.5, y=0.15)
        axes.grid(alpha=0.3)
    save_figure(made, path)
