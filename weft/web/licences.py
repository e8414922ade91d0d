"""The licences that accompany a page: weft's own, and those in the model's folder."""

from __future__ import annotations

import re
from pathlib import Path

from weft.host.files import write_bytes

# The files are in weft/web/js, since the npm package also contains them.
OWN = ("LICENSE", "NOTICE")
_TERMS = re.compile(r"(licen[cs]e|notice|copying|copyright|use[-_]policy)([-_.].*)?", re.I)
_LARGEST = 1 << 20  # a longer file is something else


def write_model_licences(model: Path, folder: Path) -> None:
    """Writes the licence files of a model's folder as `model-NAME`, since a page gives the model's
    weights to each of its visitors."""
    if not model.is_dir():
        return  # one file, whose licence is not a file
    for source in sorted(model.iterdir()):
        named = _TERMS.fullmatch(source.name) and source.is_file()
        if named and source.stat().st_size <= _LARGEST:
            write_bytes(folder / f"model-{source.name}", source.read_bytes())


def is_licence(name: str) -> bool:
    """True for a licence file of an exported folder, which no page fetches."""
    base = name.rpartition("/")[2]
    return base in OWN or base.startswith("model-")
