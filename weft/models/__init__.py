"""The door to models: loading one, and writing one with random weights."""

from typing import TYPE_CHECKING, Any

from weft.models.run.entry import load

if TYPE_CHECKING:
    from weft.models.weights.random_weights import random_folder as random_folder

__all__ = ["load", "random_folder"]


def __getattr__(name: str) -> Any:
    if name != "random_folder":
        from weft.core.missing import missing

        raise missing(__name__, name)
    from weft.models.weights.random_weights import random_folder

    return random_folder
