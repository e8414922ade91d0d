"""Draws docs/inside.png, the picture of activation patching in docs/inside.md, from the blocks of
Python there: python scripts/inside.py [FILE.png]"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent


def effects() -> dict[str, Any]:
    """Runs the page's blocks up to the patching, and returns their names."""
    page = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "inside.md", "exec"), names)
        if "effect" in names:
            return names
    raise SystemExit("docs/inside.md: no block computes `effect`")


def draw(target: Path) -> None:
    """Writes the picture."""
    found = effects()
    share = (found["effect"] - found["low"]) / (found["high"] - found["low"])
    tokens = [found["model"].tokenizer.decode([i]) for i in found["other"]]
    figure, axes = plt.subplots(figsize=(8, 3.2))
    shown = axes.imshow(share, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", origin="lower")
    axes.set_xticks(range(len(tokens)), [repr(t)[1:-1] for t in tokens], fontsize=8, rotation=30)
    axes.set_yticks(range(len(share)))
    axes.set_xlabel("position whose value is the other run's")
    axes.set_ylabel("layer")
    figure.colorbar(shown, label="share of the answer")
    figure.tight_layout()
    figure.savefig(target, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "inside.png")
