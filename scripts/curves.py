"""Lays the curves of training logs side by side: one picture, and a table of how they ended.

    python scripts/curves.py weft=box/log.jsonl PyTorch=box-torch/log.jsonl -o docs/box-pytorch.png

Each argument is NAME=LOG, a log.jsonl of `weft train` or of scripts/box_torch.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from weft.core.text import markdown
from weft.training.report import read_log

COLOURS = ("#1f5f99", "#c0392b", "#2e8b57", "#8e6bbf")


def picture(logs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Training losses above (lines) with held-out losses (dots), differences from the first log
    below."""
    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    top, low = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    first = losses(next(iter(logs.values())))
    for (name, records), colour in zip(logs.items(), COLOURS):
        mine = losses(records)
        top.plot(list(mine), list(mine.values()), color=colour, lw=0.7, alpha=0.8, label=name)
        held = [(r["step"], r["eval_loss"]) for r in records if "eval_loss" in r]
        if held:
            top.plot(*zip(*held), "o", color=colour, ms=4, label=f"{name}, held-out text")
        if mine is not first:
            both = [s for s in mine if s in first]
            low.plot(both, [mine[s] - first[s] for s in both], color=colour, lw=0.7, label=name)
    top.set(ylabel="loss (nats per token)")
    low.set(xlabel="step", ylabel=f"minus {next(iter(logs))}")
    for axes in (top, low):
        axes.grid(alpha=0.3)
    top.legend(frameon=False)
    figure.savefig(path)


def losses(records: list[dict[str, Any]]) -> dict[int, float]:
    """Step -> training loss."""
    return {r["step"]: r["loss"] for r in records if "loss" in r}


def table(logs: dict[str, list[dict[str, Any]]]) -> str:
    """A table of the end of each log, and its largest distance from the first log."""
    rows = []
    first = losses(next(iter(logs.values())))
    for name, records in logs.items():
        mine = losses(records)
        last = max(mine)
        apart = max((abs(mine[s] - first[s]) for s in mine if s in first), default=0.0)
        held = [(r["step"], r["eval_loss"]) for r in records if "eval_loss" in r]
        speeds = sorted(r["tokens_per_s"] for r in records if "tokens_per_s" in r)
        tail = [mine[s] for s in mine if s > last - 50]
        rows.append([
            name, f"{last}", f"{sum(tail) / len(tail):.4f}",
            f"{held[-1][1]:.4f} (step {held[-1][0]})" if held else "", f"{apart:.4f}",
            f"{speeds[len(speeds) // 2]:,.0f}",
        ])  # fmt: skip
    head = ["run", "steps", "loss (last 50)", "held-out loss", "furthest apart", "tokens/s"]
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="+", metavar="NAME=LOG")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    logs = {}
    for item in given.logs:
        name, _, path = item.partition("=")
        if not Path(path).is_file():
            parser.error(f"{item}: expected NAME=LOG, with a log that exists")
        logs[name] = read_log(Path(path))
    picture(logs, given.output)
    print(table(logs))


if __name__ == "__main__":
    main()
