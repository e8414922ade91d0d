"""Draws docs/bench.png from benchmark results: python scripts/chart.py docs/results/ops.json

The file holds {"machine": ..., "cases": {case: {"weft": ms, "torch": ms, ...}}}. Bars are times
relative to weft's (1.0; longer is slower), so that cases of any size share one axis.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

COLOURS = {"weft": "#2a6fbb", "PyTorch": "#d9822b", "ONNX Runtime": "#8a8a8a", "NumPy": "#5aa469"}
# keeps lines from running through the label
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}


def draw(source: Path, target: Path) -> None:
    """Reads the results and writes the picture."""
    found = json.loads(source.read_text(encoding="utf-8"))
    cases: dict[str, dict[str, float]] = found["cases"]
    peers = [p for p in COLOURS if any(p in row for row in cases.values())]
    figure, axes = plt.subplots(figsize=(9, 0.62 * len(cases) + 1.2))
    height = 0.8 / len(peers)
    for i, (_, row) in enumerate(reversed(cases.items())):
        for k, peer in enumerate(peers):
            if peer not in row:
                continue
            ratio = row[peer] / row["weft"]
            at = i + 0.4 - (k + 0.5) * height
            axes.barh(at, ratio, height * 0.92, color=COLOURS[peer], zorder=2)
            label = f"{ratio:.2f}" if peer != "weft" else f"{row['weft']:.3g} ms"
            axes.text(ratio + 0.03, at, label, va="center", fontsize=7, zorder=3, bbox=LABEL)
    axes.set_yticks(range(len(cases)), list(reversed(cases)), fontsize=8)
    axes.axvline(1.0, color="#2a6fbb", linewidth=0.8, zorder=1)
    longest = max(row[p] / row["weft"] for row in cases.values() for p in peers if p in row)
    axes.set_xlim(0, 1.1 * longest)
    axes.set_xlabel("time relative to weft (longer is slower)", fontsize=8)
    axes.set_title(f"f32 operations, {found['machine']}", fontsize=9)
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[p]) for p in peers]
    axes.legend(handles, peers, fontsize=8, loc="upper right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs/bench.png"))
