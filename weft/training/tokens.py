"""Turns text into batches: a byte-level BPE, a memory-mapped file of tokens, and their order.

The order depends only on the seed and the step, so a resumed run continues with the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.host.files import replacing, write_json, write_text
from weft.models.text.tokenizer import Tokenizer
from weft.models.text.tokenizer_fields import content_of
from weft.models.text.tokenizer_settings import SETTINGS, read_settings
from weft.training.pieces import encoded, pieces_of

END = "<|endoftext|>"  # separates documents, and ends a text
LEAST_VOCAB = 257  # the bytes, and END
Batch = tuple[np.ndarray, np.ndarray]  # ids, targets: int32 [B, T]


def train_tokenizer(
    texts: Iterable[str], vocab: int, folder: Path, special: Sequence[str] = ()
) -> None:
    """Writes tokenizer.json and tokenizer_config.json of a byte-level BPE (Sennrich et al. 2016;
    like GPT-2's) of at most `vocab` tokens. The first token is END, then come the `special` ones.
    Equal texts give equal files."""
    from tokenizers import Tokenizer as Raw, decoders, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer

    least = LEAST_VOCAB + len(special)
    if vocab < least:
        raise UsageError(f"[tokenizer] vocab is {vocab}; bytes and special tokens take {least}")
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END, *special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(pieces_of(texts), trainer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
    }
    write_text(folder / "tokenizer.json", raw.to_str())
    write_json(folder / "tokenizer_config.json", settings)


def end_token(folder: Path) -> str | None:
    """Returns the end-of-text token in the settings of the folder's tokenizer. Raises
    FileFormatError, ModelError."""
    token = read_settings(folder).get("eos_token")
    text = content_of(token)
    if token is not None and text is None:
        raise FileFormatError(f"{folder / SETTINGS}: eos_token is {token!r:.60}; expected a string")
    return text or None


def write_tokens(texts: Iterable[str], folder: Path, vocab: int, path: Path) -> int:
    """Encodes the texts with the tokenizer in `folder` and writes them to `path` (.npy, uint16 or
    uint32); each is followed by the end token, if any. Returns the number of tokens. Raises
    ModelError for ids outside `vocab`, StorageError."""
    tokenizer = Tokenizer(folder, vocab)
    end = end_token(folder)
    stop = [] if end is None else tokenizer.encode(end, special=False)
    dtype = np.uint16 if vocab <= 1 << 16 else np.uint32
    count = 0
    with replacing(path) as temporary, temporary.open("wb") as f:
        f.write(array_header(dtype, 0))
        for ids, last in encoded(tokenizer, texts):
            part = np.asarray(ids + stop if last else ids, dtype)
            f.write(part.data)
            count += len(part)
        f.seek(0)
        f.write(array_header(dtype, count))
    return count


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes a .npy file of one axis, complete or not at all. Raises StorageError."""
    with replacing(path) as temporary, temporary.open("wb") as f:
        f.write(array_header(array.dtype, len(array)))
        f.write(array.data)  # raises an error that names the cause, unlike np.save


def array_header(dtype: Any, count: int) -> bytes:
    """Returns the first 128 bytes of a .npy file of one axis of `count` elements."""
    descr = np.dtype(dtype).str
    said = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({count},), }}"
    magic = np.lib.format.magic(1, 0) + (118).to_bytes(2, "little")
    return magic + said.ljust(117).encode() + b"\n"


def open_tokens(path: Path, vocab: int) -> np.ndarray:
    """Maps the tokens of a file that `write_tokens` made. Raises FileFormatError, ModelError."""
    try:
        tokens: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: not a token file: {error}; delete the file") from None
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        raise FileFormatError(f"{path}: {tokens.dtype}{list(tokens.shape)} are not tokens")
    highest = int(tokens.max(initial=0))
    if highest >= vocab:
        raise ModelError(
            f"{path} holds token {highest}; the model's vocabulary has {vocab}: "
            "the tokens were made with another tokenizer"
        )
    return tokens


class Batches:
    """Windows of `length` + 1 tokens, each starting where the previous one ends. Their order and
    the offset of the first are new in every epoch."""

    def __init__(self, tokens: np.ndarray, batch: int, length: int, seed: int) -> None:
        self.tokens, self.batch, self.length, self.seed = tokens, batch, length, seed
        self.windows = (len(tokens) - length) // length  # room for every offset below `length`
        if self.windows < 1:
            raise UsageError(
                f"the data has {len(tokens)} tokens; windows of {length} need at least "
                f"{2 * length}: give more text, or a smaller [train] context"
            )
        self._epoch, self._order, self._offset = -1, np.zeros(0, np.int64), 0

    def at(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns batch `number` (0, 1, ...): ids and targets, int32 [batch, length]."""
        first = number * self.batch
        rows = np.stack([self._window(i) for i in range(first, first + self.batch)])
        return rows[:, :-1].copy(), rows[:, 1:].copy()

    def epoch(self, number: int) -> float:
        """Returns how many times the data has been seen before batch `number`."""
        return number * self.batch / self.windows

    def batches(self, epochs: float) -> int:
        """Returns how many batches make `epochs` epochs; the last may run into the next epoch."""
        return max(math.ceil(epochs * self.windows / self.batch), 1)

    def _window(self, index: int) -> np.ndarray:
        epoch, place = divmod(index, self.windows)
        if epoch != self._epoch:
            rng = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._order, self._epoch = rng.permutation(self.windows), epoch
            self._offset = int(rng.integers(self.length))
        start = self._offset + int(self._order[place]) * self.length
        return self.tokens[start : start + self.length + 1].astype(np.int32)


def evaluation(tokens: np.ndarray, batch: int, length: int, most: int) -> list[Batch]:
    """Returns at most `most` batches (ids, targets) of the held-out tokens, evenly spread. Returns
    [] if they do not fill a batch."""
    windows = max(len(tokens) - 1, 0) // length
    count = min(most, windows // batch)
    picked = np.linspace(0, windows - 1, count * batch).astype(np.int64) * length
    rows = [tokens[s : s + length + 1].astype(np.int32) for s in picked]
    out = []
    for i in range(count):
        part = np.stack(rows[i * batch : (i + 1) * batch])
        out.append((part[:, :-1].copy(), part[:, 1:].copy()))
    return out
