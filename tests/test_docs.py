"""Docs that repeat the code must repeat it exactly, and links must lead somewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from weft.core import text
from weft.core.tolerance import TABLE
from weft.importers.aten import listed
from weft.models.arch.encoders import ENCODERS
from weft.models.arch.families import DECODERS
from weft.models.arch.family_gguf import architectures
from weft.models.weights.gguf_encoder import ENCODERS as FILES
from weft.training.settings import read_settings

ROOT = Path(__file__).resolve().parent.parent
PROSE = "81b747f5410c493788c9cbb403ff4b2cd3636ed52fd059c8c181de182a646715"  # of examples/prose.txt
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_numerics_shows_the_tolerance_table() -> None:
    rows = [
        [kind, dtype, f"{t.rtol:g}", f"{t.atol:g}", t.reason]
        for kind, row in TABLE.items()
        for dtype, t in row.items()
    ]
    table = text.markdown(["kind", "dtype", "rtol", "atol", "why"], rows)
    assert table in (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", content):
        assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_training_shows_its_examples() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    files = [ROOT / "examples" / f"{name}.toml" for name in ("first", "lora", "talks")]
    assert shown == [f.read_text(encoding="utf-8") for f in files]


@pytest.mark.parametrize("name", ["box", "first", "lora"])
def test_examples_train_on_what_stays(name: str) -> None:
    """Python's own source, or a file that never changes: the docs quote what came of it."""
    settings = read_settings(ROOT / "examples" / f"{name}.toml")
    assert not settings.output.sample_prompt.endswith(" ")  # a space begins the next token
    assert settings.data.paths == (("examples/prose.txt",) if name == "lora" else ("stdlib",))
    text = (ROOT / "examples" / "prose.txt").read_text(encoding="utf-8")
    assert hashlib.sha256(text.encode()).hexdigest() == PROSE


def test_families_lists_them_all() -> None:
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1]
        for line in page.split("## Models traced")[0].splitlines()
        if line.startswith("| `") and "model_type" not in line
    ]
    assert set(re.findall(r"`([\w-]+)`", "".join(rows))) == {*DECODERS, *ENCODERS}


def test_quantization_lists_what_is_read_of_gguf() -> None:
    page = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| architectures"))
    assert set(re.findall(r"`([\w-]+)`", row)) == {*architectures(), *FILES}


def test_torch_lists_every_operator() -> None:
    assert listed() in (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")


def test_getting_started_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks of Python, in their order."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "getting-started.md", "exec"), names)
    assert "weft" in names and "model" in names


def test_kernels_runs() -> None:
    """Its blocks of Python, in their order."""
    page = ROOT / "docs" / "kernels.md"
    text, names = page.read_text(encoding="utf-8"), dict[str, object]()
    for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        above = "\n" * text[: block.start(1)].count("\n")  # so that errors name the page's lines
        exec(compile(above + block[1], str(page), "exec"), names)
    assert "softmax" in names and "product" in names


def test_inside_shows_what_its_recipes_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The logit lens and steering; and patching finds the argument's name, then the last token."""
    monkeypatch.setenv("WEFT_DEVICE", "cpu")
    page = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block, shown in re.findall(
        r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page, re.DOTALL
    ):
        exec(compile(block, "inside.md", "exec"), names)
        printed = capsys.readouterr().out
        assert not shown or printed == shown
    share = (names["effect"] - names["low"]) / (names["high"] - names["low"])
    assert share[0].argmax() == 6 and share[-1].argmax() == len(share[0]) - 1
    assert share[0].max() > 0.5 and abs(share[-1].max() - 1) < 1e-6


def test_the_readme_shows_the_support_table() -> None:
    table = [
        line for line in (ROOT / "docs/support.md").read_text().splitlines() if line[:1] == "|"
    ]
    assert len(table) >= 6 and "\n".join(table) in (ROOT / "README.md").read_text()
