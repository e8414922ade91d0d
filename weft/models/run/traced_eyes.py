"""Eyes of families whose pictures transformers' code prepares and reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import ModelError, UsageError
from weft.engine.insets import Inset, Insets
from weft.importers.hf_config import Fields
from weft.importers.safetensors import Checkpoint, open_checkpoint
from weft.models.arch.families import text_within
from weft.models.text.generation_config import read_defaults
from weft.models.text.picture_prompt import PicturePrompt
from weft.models.text.token_ids import read_token_ids
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import bind_weights
from weft.models.weights.reading import is_packed
from weft.models.weights.source import Source
from weft.vision.decode import decode
from weft.vision.films import Video

if TYPE_CHECKING:
    from weft.program.device import Device

# Types whose models do nothing with a picture besides putting its vectors in place of tokens, which
# tests prove for each. Others have masks, positions or vectors of their own.
KNOWN = (
    "aya_vision", "deepseek_vl", "deepseek_vl_hybrid", "got_ocr2", "janus", "lighton_ocr",
)  # fmt: skip
TEXT = ("language_model.", "lm_head.", "text_model.")


class TextPart(Checkpoint):
    """The tensors of the text model in a checkpoint of a model that sees."""

    def __init__(self, whole: Checkpoint) -> None:
        super().__init__({}, whole.where)
        self._whole = whole
        self._names = [name for name in whole if any(part in name for part in TEXT)]

    def __getitem__(self, name: str) -> np.ndarray:
        return self._whole[name]

    def info(self, name: str) -> Any:
        """Shape and dtype of a tensor."""
        return self._whole.info(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class TracedEyes:
    """The pictures of a model by transformers' processor and its traced tower. `token` is the id of
    a vector's place, `mark` its text, which the chat template writes once for a picture."""

    def __init__(self, folder: Path, raw: Fields, device: Device | None, token: int, mark: str,
                 tokenizer: Tokenizer) -> None:  # fmt: skip
        from weft.models.zoo.looker import Looker

        self._looker = Looker(folder, raw.data, device)
        self._checkpoint = open_checkpoint(folder)
        self._token, self._where = token, raw.where
        self._mark = self._looker.mark() or mark
        self._tokenizer = tokenizer

    def see(self, picture: Any, where: str = "", beside: bool = False) -> Any:
        """Returns an Inset with a picture's vectors, alone."""
        return self._read(self._mark, [decode(picture, where)]).insets.parts[0]

    def led(self, text: str, pictures: Sequence[Any]) -> str:
        """Returns a text with a place for each picture before it, unless it has places."""
        return text if self._mark in text else self._mark * len(pictures) + text

    def prompt(
        self, text: str, pictures: Sequence[Any], tokenizer: Tokenizer, special: bool
    ) -> PicturePrompt:
        """Returns the prompt of a text with a placeholder for each picture. Raises UsageError for
        another number of placeholders."""
        if any(isinstance(one, Video) for one in pictures):
            raise UsageError(f"{self._where}: this model reads pictures, no videos")
        count = text.count(self._mark)
        if count != len(pictures):
            raise UsageError(
                f"the prompt has {count} places for a picture ({self._mark}), and {len(pictures)} "
                "were given; expected one for each"
            )
        made = [decode(one, f"picture {i}") for i, one in enumerate(pictures, 1)]
        found = self._read(text, made)
        if not special:
            return found
        empty = tokenizer.encode("", True)  # what the tokenizer puts around a text
        if empty and list(found.ids[: len(empty)]) != empty:
            raise UsageError(f"{self._where}: give pictures in a conversation (a chat template)")
        return found

    def _read(self, text: str, images: Sequence[np.ndarray]) -> PicturePrompt:
        ids, arrays = self._looker.prepared(text, images)
        vectors = self._looker.vectors(arrays, self._checkpoint)
        places = [i for i, token in enumerate(ids) if token == self._token]
        if len(places) != len(vectors):
            raise ModelError(
                f"{self._where}: {len(places)} places in a prompt for {len(vectors)} vectors"
            )
        if not np.isfinite(vectors).all():
            raise ModelError("the vectors of a picture are not finite")
        parts, begin = [], 0
        for end in range(1, len(places) + 1):
            if end == len(places) or places[end] != places[end - 1] + 1:
                own = vectors[begin:end]
                name = hashlib.blake2b(own.tobytes(), digest_size=32).digest()
                parts.append(Inset(places[begin], name, own))
                begin = end
        return PicturePrompt(ids, Insets(tuple(parts), len(ids)))


def traced_sight(
    folder: Path, raw: Fields, device: Device | None
) -> tuple[Source, Callable[[Tokenizer], Any]] | None:
    """Returns the text model in a folder of a family that weft's own eyes do not know, and a maker
    of its eyes; None for other folders. Raises ModelError."""
    kind = raw.text("model_type", "")
    config = text_within(raw) if kind in KNOWN else None
    if config is None:
        return None
    if config.turns_by or config.embed_scale != 1.0 or config.recurs or is_packed(folder, raw):
        raise ModelError(
            f"{raw.where}: this {kind} is not supported: weft takes one with a plain text model of "
            "floats alone"
        )
    checkpoint = open_checkpoint(folder)
    # Wrappers have an output layer of their own: nothing scales or caps its logits.
    config = replace(
        config, logit_scale=1.0, logit_divisor=1.0, logit_softcap=0.0,
        tied=not any("lm_head." in name for name in checkpoint),
    )  # fmt: skip
    name = next((n for n in ("image_token_id", "image_token_index") if raw.data.get(n)), "")
    token = raw.integer(name, 0, 1 << 31) if name else -1
    weights = bind_weights(decoder_layout(config), TextPart(checkpoint))
    advice = partial(read_defaults, folder, config.vocab)
    source = Source(folder, config, read_token_ids(folder, raw), weights, advice=advice)
    return source, partial(_open, folder, raw, device, token)


def _open(
    folder: Path, raw: Fields, device: Device | None, token: int, tokenizer: Tokenizer
) -> TracedEyes:
    mark = tokenizer.added.get(token)
    if not mark:
        raise ModelError(f"{raw.where}: pictures have no added token (image_token_id)")
    return TracedEyes(folder, raw, device, token, mark, tokenizer)
