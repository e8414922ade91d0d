"""The model in the box: a small decoder, trained by weft itself, that comes with the package."""

from __future__ import annotations

from pathlib import Path

from weft.core.errors import ModelError
from weft.core.hints import command

FILES = ("config.json", "model.safetensors", "tokenizer.json")


def box_folder() -> Path:
    """The folder of the model that is shipped inside the package. Raises ModelError when its files
    are not there."""
    folder = Path(__file__).parent.parent / "box"
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise ModelError(
            f"this installation lacks the model in the box ({folder / missing[0]} is missing); "
            f"name a model folder: {command('run', 'MODEL', 'PROMPT')}"
        )
    return folder
