"""Several models on one page, of which a visitor chooses: each has a folder of its own in that of
the page, and the player's files are there once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.host.files import replacing_folder
from weft.models.run.base import Model
from weft.models.run.model import Decoder
from weft.web.existing import check_page
from weft.web.export import export_decoder
from weft.web.folder import FORMAT, compact_json, write_file, write_player


def export_several(models: Sequence[Model], out: Path) -> dict[str, dict[str, Any]]:
    """Writes the folder `out` with a page for all `models`, whole or not at all; returns their
    manifests by the names of their folders.

    Raises UsageError for a model that generates no text, for two of one name and for a folder with
    other content, StorageError if a file cannot be written.
    """
    named: dict[str, Decoder] = {}
    for model in models:
        if not isinstance(model, Decoder):
            raise UsageError(f"{model.folder} generates no text; a page of several models holds "
                             "models that do")  # fmt: skip
        name = re.sub(r"[^\w.-]", "-", model.folder.name, flags=re.ASCII).lstrip(".-") or "model"
        if name in named:
            raise UsageError(f"two models are called {name}: rename the folder of one")
        named[name] = model
    check_page(out)
    with replacing_folder(out) as folder:
        made = {name: _written(model, folder / name) for name, model in named.items()}
        whole = {"format": FORMAT, "files": {}, "shards": [], "models": [*made]}
        write_file(folder, "manifest.json", compact_json(whole), {})
        about = {key: True for one in made.values() for key, value in one["model"].items() if value}
        chat = any("chat" in one for one in made.values())
        write_player(folder, {"kind": "decoder", "model": about, "chat": chat, "models": [*made]})
    return made


def _written(model: Decoder, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return export_decoder(model, folder, player=False)
