"""Pictures in conversations. The vision tower reads each once, before the run; its vectors are kept
with the tokens, and steps take them from there.

In a row of tokens an id of `vocab` + k is the place of vector k (~id where it is not said, as all
places are).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np

from weft.backends import registry
from weft.core.errors import FileFormatError, LimitError, ModelError, UsageError
from weft.engine.insets import Inset
from weft.host.files import replacing
from weft.importers.hf_config import read_config
from weft.models.arch.config import DecoderConfig
from weft.models.run.eyes import Eyes
from weft.models.run.sight import eyes_maker, sighted
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.placement import Placement
from weft.training.conversations import Conversations
from weft.training.settings import TrainingSettings
from weft.training.tokens import array_header

VECTORS, PLACES = "pictures.npy", "picture_places.npy"
# What is kept of a vector: its turns in time, height and width from where its picture begins, the
# vectors before and after it in its inset, 1 if those see each other, and how far the turns go on.
COLUMNS = 7


class PictureWriter:
    """Writes the vectors of the pictures in conversations, each content once. Close it before the
    files are read."""

    def __init__(self, eyes: Eyes, tokenizer: Tokenizer, vocab: int, folder: Path) -> None:
        self.eyes, self._vocab = eyes, vocab
        self.lists = tokenizer.takes_parts
        self._first: dict[bytes, int] = {}
        self._count, self._wide = 0, 0
        self._open = ExitStack()
        self._files = [self._file(folder / VECTORS), self._file(folder / PLACES)]

    def _file(self, path: Path) -> IO[bytes]:
        file = self._open.enter_context(self._open.enter_context(replacing(path)).open("wb"))
        file.write(array_header(np.float32, 0))
        return file

    def __enter__(self) -> PictureWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            kinds: list[tuple[Any, int]] = [(np.float32, self._wide), (np.int32, COLUMNS)]
            for file, (dtype, wide) in zip(self._files, kinds):
                file.seek(0)
                file.write(array_header(dtype, self._count * wide))
        self._open.__exit__(*error)

    def spelled(self, text: str, pictures: Sequence[Any]) -> str:
        """Returns a prompt with the placeholders of all vectors. Raises what `Eyes` raises."""
        return self.eyes.spelled(text, self.eyes.shown(pictures))

    def placed(self, ids: Sequence[int], pictures: Sequence[Any]) -> np.ndarray:
        """Returns the ids of a text, int32, with the places of its pictures' vectors."""
        found = self.eyes.placed(ids, self.eyes.shown(pictures)).insets
        out = np.array(ids, np.int32)
        turns = np.zeros((len(ids), 3), np.int32) if found.turns is None else found.turns
        for part in found.parts:
            at = slice(part.start, part.end)
            first = self._vocab + self._kept(part, turns[at] - turns[part.start, 0])
            out[at] = np.arange(first, first + len(part.vectors))
        return out

    def _kept(self, part: Inset, turns: np.ndarray) -> int:
        """Returns the number of the first vector of a part."""
        if part.digest not in self._first:
            self._first[part.digest] = self._count
            count, self._wide = part.vectors.shape
            number = np.arange(count)[:, None]
            last = [np.full_like(number, int(part.whole)), np.full_like(number, turns.max() + 1)]
            places = np.concatenate([turns, number, number[::-1], *last], 1)
            self._files[0].write(np.ascontiguousarray(part.vectors, np.float32).data)
            self._files[1].write(np.ascontiguousarray(places, np.int32).data)
            self._count += count
        return self._first[part.digest]


class PictureTable:
    """The vectors in a folder that a PictureWriter wrote, mapped. `looks` and `turned`: tokens of a
    picture see each other; turn by their places. Raises FileFormatError, ModelError."""

    def __init__(self, folder: Path, vocab: int, wide: int, looks: bool, turned: bool) -> None:
        self._vocab, self._looks, self._turned = vocab, looks, turned
        flat = [_mapped(folder / VECTORS, np.float32), _mapped(folder / PLACES, np.int32)]
        if len(flat[1]) % COLUMNS or len(flat[0]) != len(flat[1]) // COLUMNS * wide:
            raise ModelError(
                f"{folder / VECTORS} holds vectors of another model: this one's are {wide} wide; "
                f"delete {folder}"
            )
        self._vectors = flat[0].reshape(-1, wide)
        self._places = flat[1].reshape(-1, COLUMNS)

    def __len__(self) -> int:
        """Returns the number of vectors."""
        return len(self._vectors)

    def inputs(self, ids: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns ids int32 [..., T] that the model has (0 in place of vectors), and what
        `train_forward` takes of pictures: "vectors" float32 [..., T, wide], "here" int32 [..., T],
        perhaps "span" [..., T, 2] and "turns" [..., T, 3]."""
        first = ids < 0
        plain = np.where(first, ~ids, ids)
        here = plain >= self._vocab
        number = np.where(here, plain - self._vocab, 0)
        plain = np.where(here, 0, plain)
        vectors = np.zeros((*ids.shape, self._vectors.shape[1]), np.float32)
        vectors[here] = self._vectors[number[here]]
        made = {"vectors": vectors, "here": here.astype(np.int32)}
        places = np.zeros((*ids.shape, COLUMNS), np.int32)
        places[here] = self._places[number[here]]
        if self._looks:
            row = np.arange(ids.shape[-1], dtype=np.int32)
            before, after = (places[..., k] * places[..., 5] for k in (3, 4))
            made["span"] = np.stack([row - before, row + after], -1)
        if self._turned:
            made["turns"] = _turns(first, here, places)
        return np.where(first, ~plain, plain), made


def _turns(first: np.ndarray, here: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns the rotary positions of rows, int32 [..., T, 3]. A text's token goes on by one; a
    picture's tokens turn from where it begins, and the text goes on after its farthest."""
    step = np.where(here, np.where(places[..., 4] == 0, places[..., 6], 0), 1)
    now = np.cumsum(step, -1) - step
    row = np.broadcast_to(np.arange(first.shape[-1]), first.shape)
    begins = np.maximum.accumulate(np.where(first, row, 0), -1)
    now = now - np.take_along_axis(now, begins, -1)
    made: np.ndarray = (now[..., None] + places[..., :3]).astype(np.int32)
    return made


def _mapped(path: Path, dtype: Any) -> np.ndarray:
    try:
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path}: not the vectors of pictures: {error}; delete {path.parent}"
        ) from None
    if found.ndim != 1 or found.dtype != dtype:
        raise FileFormatError(f"{path}: {found.dtype}{list(found.shape)} are not vectors")
    return found


def writer(
    settings: TrainingSettings, corpus: Conversations, tokenizer: Tokenizer, config: DecoderConfig,
    folder: Path,
) -> AbstractContextManager[PictureWriter | None]:  # fmt: skip
    """Returns the writer of the conversations' pictures, which opens the vision tower; None without
    pictures. Raises UsageError for a model that reads none."""
    first = next((one for one in (*corpus.train, *corpus.held_out) if one.pictures), None)
    if first is None:
        return nullcontext()
    base = Path(settings.model.base)
    raw = read_config(base) if settings.model.base else None
    found = None if raw is None else sighted(raw, config)
    if raw is None or found is None:
        what = base if settings.model.base else "a new model"
        raise UsageError(f"{first.where} has a picture; {what} reads text alone")
    if not settings.lora.rank:
        raise UsageError(
            f"{first.where} has a picture; weft trains models that see by adapters: give [lora] "
            "rank"
        )
    place = Placement(dtype="float32")
    made = eyes_maker(base, raw, found[1], registry.get(settings.train.device), place)(tokenizer)
    return PictureWriter(made, tokenizer, config.vocab, folder)


@contextmanager
def about(where: str) -> Iterator[None]:
    """Puts the line of a conversation before what is wrong with its pictures."""
    try:
        yield
    except (UsageError, FileFormatError, LimitError, ModelError) as error:
        raise type(error)(f"{where}: {error}") from None
