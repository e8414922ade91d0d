"""The models in the box: small decoders, trained by weft itself, that come with the package."""

from __future__ import annotations

from pathlib import Path

from weft.core.errors import ModelError
from weft.core.hints import command

CODE, CHAT = "box", "box-chat"  # a writer of Python code, and a chat model
NAMES = (CODE, CHAT)  # each is also the name of its folder in the package
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def box_folder(name: str = CODE) -> Path:
    """Returns the folder of a model shipped inside the package. Raises ModelError if files are
    missing."""
    folder = Path(__file__).parent.parent / name
    missing = [file for file in FILES if not (folder / file).exists()]
    if missing:
        raise ModelError(
            f"this installation lacks the model {name} ({folder / missing[0]} is missing); "
            f"name a model folder: {command('run', 'MODEL', 'PROMPT')}"
        )
    return folder
