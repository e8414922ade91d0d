"""The licences that accompany a page: weft's own, and the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.host.files import write_bytes
from weft.models.weights.terms import licence_files, read_terms

# The files are in weft/web/js, since the npm package also contains them.
OWN = ("LICENSE", "NOTICE")


def write_model_terms(model: Path, folder: Path) -> dict[str, Any]:
    """Writes the licence files of a model's folder as `model-NAME`, since a page gives the model's
    weights to each of its visitors. Returns the manifest's entries: `terms` holds the names of
    these files, and the licence and base models that the folder's card or the GGUF file gives."""
    files = []
    for source in licence_files(model):
        write_bytes(folder / f"model-{source.name}", source.read_bytes())
        files.append(f"model-{source.name}")
    found = read_terms(model)
    terms = {"licence": found.licence, "base": list(found.base), "files": files}
    return {"terms": terms} if any(terms.values()) else {}


def is_licence(name: str) -> bool:
    """True for a licence file of an exported folder, which no page fetches."""
    base = name.rpartition("/")[2]
    return base in OWN or base.startswith("model-")
