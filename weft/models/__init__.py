"""Models from Hugging Face folders: one decoder, one encoder, loading, generation."""

from typing import TYPE_CHECKING, Any

from weft.models.entry import load

if TYPE_CHECKING:
    from weft.models.random_weights import random_folder as random_folder

__all__ = ["load", "random_folder"]


def __getattr__(name: str) -> Any:
    if name != "random_folder":
        raise AttributeError(f"module 'weft.models' has no attribute {name!r}")
    from weft.models.random_weights import random_folder

    return random_folder
