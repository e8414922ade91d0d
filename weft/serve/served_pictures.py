"""Models that turn pictures into vectors, served."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, UsageError
from weft.models.run.picture_encoder import TOGETHER, PictureEncoder
from weft.serve.errors import below
from weft.serve.keys import hold_tokens
from weft.serve.pictures import MOST, allowed
from weft.serve.served import BLANK, Served
from weft.serve.wire import HttpError

Item = str | list[int] | dict[str, Any]  # a text, its token ids, or a picture as a part


class ServedPictures(Served):
    """A model that embeds pictures, and texts if it has a tower for them. Requests may name
    pictures in `folder` (None: none)."""

    model: PictureEncoder

    def __init__(self, name: str, model: PictureEncoder, folder: str | None) -> None:
        super().__init__(name, model)
        self.folder = folder

    def warm(self) -> None:
        """Reads pictures once, alone and as many as a step takes."""
        self.model.embed_images([BLANK] * (TOGETHER + 1))

    async def vectors(self, items: Sequence[Item]) -> tuple[np.ndarray, int]:
        """float32 [n, dim] of texts and pictures, in order, and how many tokens and patches the
        model read; a step of the model at a time, in turns with other requests. Raises HttpError
        for a picture that cannot be read."""
        texts = [i for i, item in enumerate(items) if isinstance(item, str)]
        shown = [i for i, item in enumerate(items) if isinstance(item, dict)]
        if len(texts) + len(shown) < len(items):
            raise UsageError(f"{self.name} takes texts and pictures, not token ids")
        if len(shown) > MOST:
            raise HttpError(400, f"{len(shown)} pictures; a request may have {MOST}", "input")
        if texts and not self.model.longest:
            raise HttpError(400, f"{self.name} reads pictures alone, no texts", "input")
        pictures = {i: self._picture(items[i]) for i in shown}
        tokens = len(shown) * self.model.patches
        if texts:
            tokens += sum(map(len, await self.encoded([str(items[i]) for i in texts])))
        hold_tokens(tokens)
        parts = [texts[k : k + TOGETHER] for k in range(0, len(texts), TOGETHER)]
        parts += [shown[k : k + TOGETHER] for k in range(0, len(shown), TOGETHER)]

        def made(part: list[int]) -> np.ndarray:
            if part[0] in pictures:
                return self.model.embed_images([pictures[i] for i in part])
            return self.model.embed([str(items[i]) for i in part])

        out = np.empty((len(items), self.model.dim), np.float32)
        try:
            for part, vectors in zip(parts, await self.pools.vectors.each(made, parts)):
                out[part] = vectors
        except FileFormatError as error:
            raise HttpError(400, below(self.folder, error), "input") from None
        return out, tokens

    def _picture(self, part: Any) -> Any:
        picture = part["image"]
        return allowed(self.folder, picture) if isinstance(picture, Path) else picture
