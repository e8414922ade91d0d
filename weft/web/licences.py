"""The licences that accompany a page: weft's own, and those in the model's folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from weft.host.files import write_bytes
from weft.hub.choice import CARD, TERMS

# The files are in weft/web/js, since the npm package also contains them.
OWN = ("LICENSE", "NOTICE")
_LARGEST = 1 << 20  # a longer file is something else


def write_model_terms(model: Path, folder: Path) -> dict[str, Any]:
    """Writes the licence files of a model's folder as `model-NAME`, since a page gives the model's
    weights to each of its visitors. Returns the manifest's entries: `terms` holds the names of
    these files, and the licence and base models that the folder's card gives."""
    if not model.is_dir():
        return {}  # one file, whose licence is not a file
    files = []
    for source in sorted(model.iterdir()):
        named = TERMS.fullmatch(source.name) and source.is_file()
        if named and source.stat().st_size <= _LARGEST:
            write_bytes(folder / f"model-{source.name}", source.read_bytes())
            files.append(f"model-{source.name}")
    card = _card(model / CARD)
    # licence "other" has its name in a field of its own
    licence = card.get("license_name") or card.get("license") or []
    terms = {"licence": ", ".join(licence), "base": card.get("base_model", []), "files": files}
    return {"terms": terms} if any(terms.values()) else {}


def _card(file: Path) -> dict[str, list[str]]:
    """The fields at the head of a model's card, each as a list. It reads texts and lists of texts
    in YAML, and leaves other values out."""
    try:
        with file.open(encoding="utf-8") as opened:
            head = opened.read(_LARGEST)
    except (OSError, UnicodeDecodeError):
        return {}
    match = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", head, re.S)
    fields: dict[str, list[str]] = {}
    key = ""
    for line in match[1].splitlines() if match else ():
        if field := re.match(r"(\w+):(.*)", line):
            key, text = field[1], field[2].strip()
            inner = re.fullmatch(r"\[(.*)\]", text)
            fields[key] = [t for each in (inner[1].split(",") if inner else [text])
                           if (t := _plain(each))]  # fmt: skip
        elif item := re.match(r"\s*- +(.*)", line):
            fields.setdefault(key, []).append(_plain(item[1]))
    return fields


def _plain(text: str) -> str:
    """A scalar of YAML without quotes and comment."""
    text = text.strip()
    quoted = re.match(r"""(["'])(.*?)\1""", text)
    return quoted[2] if quoted else re.sub(r"(^|\s)#.*", "", text).strip()


def is_licence(name: str) -> bool:
    """True for a licence file of an exported folder, which no page fetches."""
    base = name.rpartition("/")[2]
    return base in OWN or base.startswith("model-")
