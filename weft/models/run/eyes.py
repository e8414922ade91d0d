"""The eyes of a multimodal model: pictures in, prompts with their vectors out."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import ModelError, UsageError
from weft.core.records import dataclass
from weft.engine.insets import Inset, Insets
from weft.models.run.packing import packed, sheeted
from weft.models.run.tower_runner import Tower
from weft.models.text.picture_prompt import PicturePrompt
from weft.models.text.placeholders import Marks, Shown, spread
from weft.models.text.tokenizer import Tokenizer
from weft.vision.decode import decode, digest
from weft.vision.films import Groups, Video, groups
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
    for `whole` if tokens of a picture see each other. Of videos: the id `film` (-1: it reads none),
    and `tempo`, the rotary positions of a second (0: one for each group of frames)."""

    marks: Marks
    token: int
    whole: bool = False
    turned: bool = False  # tokens turn by their place in the picture (Qwen-VL)
    film: int = -1
    tempo: float = 0.0


class Eyes:
    """A vision tower with its steps before, and the rules of its family's prompts."""

    def __init__(
        self, tower: Tower, steps: Steps, sight: Sight, films: Steps | None = None
    ) -> None:
        self.tower, self.steps, self.sight, self.films = tower, steps, sight, films
        self._seen: OrderedDict[bytes, Seen] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def see(self, picture: Any, where: str = "", beside: bool = False) -> Seen:
        """Returns a picture as the text model reads it, alone or `beside` others of its prompt.
        Raises what `decode` raises."""
        image = decode(picture, where)
        name, steps = digest(image), self.steps
        if beside and (steps := together(steps)) is not self.steps:
            name = hashlib.blake2b(name + b"beside", digest_size=len(name)).digest()
        return self._kept(name, lambda: self._read(name, prepare(steps, image)))

    def watch(self, video: Video, where: str = "the video") -> Seen:
        """Returns a video as the text model reads it. Raises what `films.groups` raises, and
        UsageError for a model that reads none."""
        if self.films is None:
            raise UsageError(f"{self.tower.config.family}: this model reads pictures, no videos")
        made = groups(self.films, video, where)
        facts = hashlib.blake2b(repr((made.times, made.second)).encode(), person=b"weft.video")
        for part in made.pixels:
            facts.update(part.data)
        name = facts.digest()[:32]
        return self._kept(name, lambda: self._watched(name, made))

    def _watched(self, name: bytes, made: Groups) -> Seen:
        c, tempo = self.tower.config, np.float32(self.sight.tempo * made.second)
        parts = [self.tower.vectors(pixels) for pixels in made.pixels]
        vectors = _finite(np.concatenate(parts))
        beats = np.arange(len(parts), dtype=np.float32) * (tempo or np.float32(1))
        side, count = c.patch * c.projector.block, len(parts)
        height, width = made.pixels[0].shape[-2:]
        lies = height // side, width // side, made.times, tuple(int(b) for b in beats)
        return Seen(name, vectors, Shown(len(parts[0]), count, *lies))

    def _kept(self, name: bytes, read: Callable[[], Seen]) -> Seen:
        with self._lock:
            found = self._seen.pop(name, None)
            if found is None:
                found = read()
                self._bytes += found.vectors.nbytes
            self._seen[name] = found
            while self._bytes > KEPT and len(self._seen) > 1:
                self._bytes -= self._seen.popitem(last=False)[1].vectors.nbytes
        return found

    def _read(self, name: bytes, prepared: Prepared) -> Seen:
        c = self.tower.config
        fills = prepared.filled or [None] * len(prepared.pixels)
        parts = [self.tower.vectors(*tile) for tile in zip(prepared.pixels, fills)]
        lined = c.projector.newline or c.masked
        if c.masked:
            vectors = sheeted(parts, prepared)
        elif lined:
            vectors = packed(parts, prepared, self.tower.newline, c.projector.most_tiles)
        else:
            vectors = np.concatenate(parts)
        _finite(vectors)
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

    def led(self, text: str, pictures: Sequence[Any]) -> str:
        """Returns a text with a place for each picture before it, unless it has places."""
        marks = self.sight.marks
        if marks.given in text or (marks.film and marks.film in text):
            return text
        places = (marks.film if isinstance(one, Video) else marks.given for one in pictures)
        return "".join(places) + text

    def shown(self, pictures: Sequence[Any]) -> list[Seen]:
        """Returns the pictures of one prompt as the text model reads them."""
        several = len(pictures) > 1
        out = []
        for i, one in enumerate(pictures, 1):
            if isinstance(one, Video):
                out.append(self.watch(one, f"video {i}"))
            else:
                out.append(one if isinstance(one, Seen) else self.see(one, f"picture {i}", several))
        return out

    def spelled(self, text: str, seen: Sequence[Seen]) -> str:
        """Returns a text with the placeholders of all vectors. Raises UsageError for another number
        of placeholders than of pictures."""
        return spread(self.sight.marks, text, [one.shown for one in seen])

    def placed(self, ids: Sequence[int], seen: Sequence[Seen]) -> PicturePrompt:
        """Returns ids with the pictures' vectors in place of their placeholders, in order."""
        marks = {self.sight.token, self.sight.film}
        places = [i for i, token in enumerate(ids) if token in marks]
        wanted = sum(len(one.vectors) for one in seen)
        if len(places) != wanted:
            raise UsageError(
                f"the prompt has {len(places)} tokens {self.sight.marks.token!r} for {wanted} "
                "vectors of pictures; the text may not have that token itself"
            )
        parts: list[Inset] = []
        lies: list[np.ndarray] = []
        at = 0
        for one in seen:
            begin, own = 0, places[at : at + len(one.vectors)]
            for end in range(1, len(own) + 1):
                each = self.sight.whole and end - begin == one.shown.each
                if each or end == len(own) or own[end] != own[end - 1] + 1:
                    name = hashlib.blake2b(one.digest + begin.to_bytes(8), digest_size=32).digest()
                    vectors = one.vectors[begin:end]
                    parts.append(Inset(own[begin], name, vectors, self.sight.whole))
                    if self.sight.turned:
                        lies.append(_lies(one.shown, begin, end))
                    begin = end
            at += len(own)
        turned = turns_of(len(ids), parts, lies) if self.sight.turned and parts else None
        return PicturePrompt(ids, Insets(tuple(parts), len(ids), turned))


def turns_of(length: int, parts: Sequence[Inset], lies: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rotary positions of a prompt's tokens in time, height and width, int32 [length,
    3]: a picture's tokens lie side by side, as `lies` int32 [N, 3] says for each part, and the text
    goes on after its longer side."""
    out, at, now = np.zeros((length, 3), np.int32), 0, 0
    for part, lie in zip(parts, lies):
        before = part.start - at
        out[at : part.start] = (now + np.arange(before))[:, None]
        now += before
        out[part.start : part.end] = now + lie
        at, now = part.end, now + int(lie[:, 1:].max()) + 1
    out[at:] = (now + np.arange(length - at))[:, None]
    return out


def _lies(shown: Shown, begin: int, end: int) -> np.ndarray:
    """Returns the places of vectors `begin` to `end` - 1 of a picture or a video: in time from the
    first of them, by row and column, int32 [N, 3]."""
    group, place = np.divmod(np.arange(begin, end), shown.rows * shown.columns)
    y, x = np.divmod(place, shown.columns)
    beats = np.array(shown.beats)[group]
    made: np.ndarray = np.stack([beats - beats[0], y, x], 1).astype(np.int32)
    return made


def _finite(vectors: np.ndarray) -> np.ndarray:
    if not np.isfinite(vectors).all():
        raise ModelError("the vectors of a picture are not finite; load with dtype='float32'")
    return vectors
