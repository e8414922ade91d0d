"""The models in the box: small decoders, trained by weft itself, that come with the package."""

from __future__ import annotations

from pathlib import Path

from weft.core.errors import ModelError
from weft.core.hints import command

CODE, CHAT = "box", "box-chat"  # what writes Python code, and what answers
NAMES = (CODE, CHAT)  # each is also the name of its folder in the package
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def box_folder(name: str = CODE) -> Path:
    """The folder of a model that is shipped inside the package. Raises ModelError when its files
    are not there."""
    folder = Path(__file__).parent.parent / name
    missing = [file for file in FILES if not (folder / file).exists()]
    if missing:
        raise ModelError(
            f"this installation lacks the model {name} ({folder / missing[0]} is missing); "
            f"name a model folder: {command('run', 'MODEL', 'PROMPT')}"
        )
    return folder
