"""The pages of the project: an index lists them all, and the README begins with essentials."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def links(page: Path) -> set[Path]:
    """The files of the project that a page links to."""
    found = LINK.findall(page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in found if "://" not in target}


def test_the_index_lists_every_page() -> None:
    index = DOCS / "README.md"
    missing = {p.name for p in DOCS.glob("*.md")} - {p.name for p in links(index)} - {"README.md"}
    assert not missing, "docs/README.md does not link to them; add each under its kind"


def test_every_page_is_reached_from_the_readme() -> None:
    """Those in folders of docs/, too."""
    seen: set[Path] = set()
    rest = [ROOT / "README.md"]
    while rest:
        page = rest.pop()
        if page in seen or not page.exists() or page.suffix != ".md":
            continue
        seen.add(page)
        rest.extend(links(page))
    assert {*DOCS.rglob("*.md")} - seen == set()


def test_the_first_screen_says_the_essentials() -> None:
    """The commands, other projects to use, and the devices that no hardware has run."""
    first = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:45])
    for words in (
        "sh scripts/demo",
        "sh scripts/test",
        "llama.cpp",
        "PyTorch",
        "CUDA, HIP",
        "Metal",
    ):
        assert words in first, f"README.md: {words!r} is not on the first screen"


def test_titles_that_links_name_exist() -> None:
    """Of links to a place in a page of the project, which a browser would silently ignore."""
    wrong = []
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for target, title in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text("utf-8")):
            goal = (page.parent / target).resolve() if target else page
            if goal.suffix == ".md" and title not in anchors(goal):
                wrong.append(f"{page.name}: {target}#{title}")
    assert not wrong


def anchors(page: Path) -> set[str]:
    """The anchors of a page's titles, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", t).lower() for t in titles)
    return {re.sub(r"[^\w\- ]", "", t).strip().replace(" ", "-") for t in plain}
