"""A prompt with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.engine.insets import Insets


class PicturePrompt(Sequence[int]):
    """The ids of a prompt with pictures, and the vectors in place of its placeholders."""

    def __init__(self, ids: Sequence[int], insets: Insets) -> None:
        self.ids, self.insets = tuple(ids), insets

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: Any) -> Any:
        return self.ids[at]

    def __repr__(self) -> str:
        return f"PicturePrompt of {len(self.ids)} tokens, {len(self.insets.parts)} with vectors"
