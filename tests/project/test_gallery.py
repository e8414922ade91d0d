"""The examples of docs/examples.md run, learn, and draw their pictures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "examples" / "gallery"
NAMES = sorted(p.stem for p in GALLERY.glob("*.py") if p.stem != "kit")
QUICK = ("tabular",)

# The last number that an example prints, and what it must reach.
GOALS = {
    "contrastive": (r"embeddings: ([\d.]+)%", 91.0, 100.0),
    "diffusion": (r"the noise: ([\d.]+)", 0.0, 0.55),
    "digits_cnn": (r"right: ([\d.]+)%", 95.0, 100.0),
    "digits_vit": (r"average: ([\d.]+)% right", 88.0, 100.0),
    "physics": (r"([\d.]+)% from finite", 0.0, 6.0),
    "reinforce": (r"up for (\d+) of", 150.0, 200.0),
    "tabular": (r"five nets: ([\d.]+)% right", 94.0, 100.0),
    "vae": (r"([\d.]+) for new ones", 10.0, 26.0),
}


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_it_learns_and_draws(name: str, tmp_path: Path) -> None:
    picture = tmp_path / f"{name}.png"
    done = subprocess.run(
        [sys.executable, str(GALLERY / f"{name}.py"), str(picture)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=550,
    )  # fmt: skip
    assert not done.returncode, done.stderr[-2000:]
    pattern, low, high = GOALS[name]
    found = re.search(pattern, done.stdout)
    assert found and low <= float(found[1]) <= high, done.stdout
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 10_000


def test_the_page_shows_them_all() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"../examples/gallery/{name}.py" in page and f"gallery/{name}.png" in page
        lines = (GALLERY / f"{name}.py").read_text(encoding="utf-8").splitlines()
        assert len(lines) < 150
    assert set(GOALS) == set(NAMES)
