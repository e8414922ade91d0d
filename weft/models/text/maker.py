"""Makes a model's tokenizer when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from weft.models.arch.config import TokenizerContent

if TYPE_CHECKING:
    from weft.models.text.tokenizer import Tokenizer


def tokenizer_maker(
    folder: Path,
    vocab: int,
    limit: int | None = None,
    lower: bool = False,
    made: Callable[[], TokenizerContent | None] = lambda: None,
) -> Callable[[], Tokenizer | None]:
    """Returns a maker of the tokenizer of a folder, or of the one inside a file."""

    def make() -> Tokenizer | None:
        found = made()
        if found is None and not (folder / "tokenizer.json").exists():
            return None
        from weft.models.text.tokenizer import Tokenizer

        return Tokenizer(folder, vocab, limit, lower, found)

    return make
