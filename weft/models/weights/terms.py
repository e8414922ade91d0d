"""The terms of a model: its licence, the models that it was made of, and the files that say so.

A folder says them in its licence files and at the head of its card, a GGUF file in its metadata.
They go where the model's weights go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.host.files import write_bytes
from weft.hub.choice import CARD, TERMS
from weft.importers.gguf import open_gguf

_LARGEST = 1 << 20  # a longer file is something else
_MOST = 16  # base models that are read from a GGUF file


@dataclass(frozen=True)
class Terms:
    """The licence by its name ("" if none is given), an address of its text, and the base models,
    "ORG/NAME" or "NAME"."""

    licence: str = ""
    link: str = ""
    base: tuple[str, ...] = ()


def read_terms(model: Path) -> Terms:
    """Returns what a folder's card or a GGUF file's metadata says. Raises FileFormatError for a
    damaged GGUF file."""
    if model.is_dir():
        card = _card(model / CARD)
        # licence "other" has its name in a field of its own
        licence = card.get("license_name") or card.get("license") or []
        link = "".join(card.get("license_link", [])[:1])
        return Terms(", ".join(licence), link, tuple(card.get("base_model", [])))
    if model.suffix != ".gguf":
        return Terms()
    said = open_gguf(model).metadata
    named = _text(said, "general.license.name") or _text(said, "general.license")
    return Terms(named, _text(said, "general.license.link"), tuple(_bases(said)))


def gguf_terms(terms: Terms) -> dict[str, Any]:
    """Returns the terms as the metadata of a GGUF file."""
    made: dict[str, Any] = {"general.license": terms.licence, "general.license.link": terms.link}
    for i, base in enumerate(terms.base):
        organisation, _, name = base.rpartition("/")
        made |= {f"general.base_model.{i}.name": name}
        made |= {f"general.base_model.{i}.organization": organisation}
    found = {key: text for key, text in made.items() if text}
    return found | ({"general.base_model.count": np.uint32(len(terms.base))} if terms.base else {})


def licence_files(model: Path) -> Iterator[Path]:
    """Yields the licence files in a model's folder."""
    for file in sorted(model.iterdir()) if model.is_dir() else ():
        if TERMS.fullmatch(file.name) and file.is_file() and file.stat().st_size <= _LARGEST:
            yield file


def copy_terms(model: Path, folder: Path) -> None:
    """Writes the licence files of a model into the folder of one that is made of it, and a card
    with its licence and base models."""
    for file in licence_files(model):
        write_bytes(folder / file.name, file.read_bytes())
    terms = read_terms(model)
    fields = {"license": terms.licence, "license_link": terms.link}
    lines = [f"{key}: {_quoted(text)}" for key, text in fields.items() if text]
    if terms.base:
        lines += ["base_model:", *(f"- {_quoted(base)}" for base in terms.base)]
    if lines:
        text = "\n".join(["---", *lines, "---", ""])
        write_bytes(folder / CARD, text.encode())


def _quoted(text: str) -> str:
    """A scalar of YAML."""
    return "'" + text.replace("'", "''") + "'"


def _text(said: Mapping[str, Any], key: str) -> str:
    found = said.get(key)
    return found if isinstance(found, str) else ""


def _bases(said: Mapping[str, Any]) -> Iterator[str]:
    count = said.get("general.base_model.count")
    for i in range(min(count, _MOST) if isinstance(count, int) else 0):
        name = _text(said, f"general.base_model.{i}.name")
        organisation = _text(said, f"general.base_model.{i}.organization")
        if name:
            yield f"{organisation}/{name}" if organisation else name


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
    if single := re.match(r"'((?:[^']|'')*)'", text):
        return single[1].replace("''", "'")
    quoted = re.match(r'"(.*?)"', text)
    return quoted[1] if quoted else re.sub(r"(^|\s)#.*", "", text).strip()
