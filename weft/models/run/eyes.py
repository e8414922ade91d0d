"""The eyes of a multimodal model: pictures in, prompts with their vectors out."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import ModelError, UsageError
from weft.core.records import dataclass
from weft.engine.insets import Inset, Insets
from weft.models.run.packing import packed
from weft.models.run.tower_runner import Tower
from weft.models.text.picture_prompt import PicturePrompt
from weft.models.text.placeholders import Marks, Shown, spread
from weft.models.text.tokenizer import Tokenizer
from weft.vision.decode import decode, digest
from weft.vision.steps import Steps
from weft.vision.tiles import Prepared, prepare, together

KEPT = 256 << 20  # bytes of vectors of pictures seen lately


@dataclass(frozen=True, eq=False)
class Seen:
    """A picture that the tower has read: what names its content, its vectors, and how they lie."""

    digest: bytes
    vectors: np.ndarray
    shown: Shown


@dataclass(frozen=True)
class Sight:
    """A family's handling of pictures: its placeholders, the id of the one for a vector, and True
    for `whole` if tokens of a picture see each other."""

    marks: Marks
    token: int
    whole: bool = False
    turned: bool = False  # tokens turn by their place in the picture (Qwen-VL)


class Eyes:
    """A vision tower with its steps before, and the rules of its family's prompts."""

    def __init__(self, tower: Tower, steps: Steps, sight: Sight) -> None:
        self.tower, self.steps, self.sight = tower, steps, sight
        self._seen: OrderedDict[bytes, Seen] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def see(self, picture: Any, where: str = "", beside: bool = False) -> Seen:
        """Returns a picture as the text model reads it, alone or `beside` others of its prompt.
        Raises what `decode` raises."""
        image = decode(picture, where)
        name, steps = digest(image), self.steps
        if beside and (steps := together(steps)) is not self.steps:
            name = hashlib.blake2b(name + b"beside", digest_size=len(name)).digest()
        with self._lock:
            found = self._seen.pop(name, None)
            if found is None:
                found = self._read(name, prepare(steps, image))
                self._bytes += found.vectors.nbytes
            self._seen[name] = found
            while self._bytes > KEPT and len(self._seen) > 1:
                self._bytes -= self._seen.popitem(last=False)[1].vectors.nbytes
        return found

    def _read(self, name: bytes, prepared: Prepared) -> Seen:
        c = self.tower.config
        parts = [self.tower.vectors(pixels) for pixels in prepared.pixels]
        lined, most = c.projector.newline, c.projector.most_tiles
        vectors = packed(parts, prepared, self.tower.newline, most) if lined else (
            np.concatenate(parts))  # fmt: skip
        if not np.isfinite(vectors).all():
            raise ModelError("the vectors of a picture are not finite; load with dtype='float32'")
        rows, columns = prepared.rows, prepared.columns
        if c.ropes:
            _, height, width = prepared.pixels[0].shape
            side = c.patch * c.projector.block
            rows, columns = height // side, width // side
        shown = Shown(len(parts[0]), len(parts), rows, columns)
        shown = Shown(len(vectors)) if lined else shown
        return Seen(name, vectors, shown)

    def prompt(
        self, text: str, pictures: Sequence[Any], tokenizer: Tokenizer, special: bool
    ) -> PicturePrompt:
        """Returns the prompt of a text with a placeholder for each picture. Raises UsageError for
        another number of placeholders."""
        seen = self.shown(pictures)
        return self.placed(tokenizer.encode(self.spelled(text, seen), special), seen)

    def shown(self, pictures: Sequence[Any]) -> list[Seen]:
        """Returns the pictures of one prompt as the text model reads them."""
        several = len(pictures) > 1
        return [one if isinstance(one, Seen) else self.see(one, f"picture {i + 1}", several)
                for i, one in enumerate(pictures)]  # fmt: skip

    def spelled(self, text: str, seen: Sequence[Seen]) -> str:
        """Returns a text with the placeholders of all vectors. Raises UsageError for another number
        of placeholders than of pictures."""
        return spread(self.sight.marks, text, [one.shown for one in seen])

    def placed(self, ids: Sequence[int], seen: Sequence[Seen]) -> PicturePrompt:
        """Returns ids with the pictures' vectors in place of their placeholders, in order."""
        places = [i for i, token in enumerate(ids) if token == self.sight.token]
        wanted = sum(len(one.vectors) for one in seen)
        if len(places) != wanted:
            raise UsageError(
                f"the prompt has {len(places)} tokens {self.sight.marks.token!r} for {wanted} "
                "vectors of pictures; the text may not have that token itself"
            )
        parts: list[Inset] = []
        at = 0
        for one in seen:
            begin, own = 0, places[at : at + len(one.vectors)]
            for end in range(1, len(own) + 1):
                each = self.sight.whole and end - begin == one.shown.each
                if each or end == len(own) or own[end] != own[end - 1] + 1:
                    name = hashlib.blake2b(one.digest + begin.to_bytes(8), digest_size=32).digest()
                    vectors = one.vectors[begin:end]
                    parts.append(Inset(own[begin], name, vectors, self.sight.whole))
                    begin = end
            at += len(own)
        turned = turns_of(len(ids), parts, seen) if self.sight.turned and parts else None
        return PicturePrompt(ids, Insets(tuple(parts), len(ids), turned))


def turns_of(length: int, parts: Sequence[Inset], seen: Sequence[Seen]) -> np.ndarray:
    """Returns the rotary positions of a prompt's tokens in time, height and width, int32 [length,
    3]: a picture's tokens lie side by side, and the text goes on after its longer side."""
    out, at, now = np.zeros((length, 3), np.int32), 0, 0
    for part, one in zip(parts, seen):
        before = part.start - at
        out[at : part.start] = (now + np.arange(before))[:, None]
        now += before
        rows, columns = one.shown.rows, one.shown.columns
        y, x = np.divmod(np.arange(rows * columns), columns)
        out[part.start : part.end] = now + np.stack([np.zeros_like(y), y, x], 1)
        at, now = part.end, now + max(rows, columns)
    out[at:] = (now + np.arange(length - at))[:, None]
    return out
