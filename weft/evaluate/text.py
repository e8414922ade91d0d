"""The text for an evaluation: turns a file of any size into token ids."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from weft.core.errors import FileFormatError, ModelError, UsageError

if TYPE_CHECKING:
    from weft.models.run.model import Decoder
    from weft.models.text.tokenizer import Tokenizer

Text = str | Path | BinaryIO | Sequence[int] | np.ndarray
READ = 1 << 18  # bytes read at once
BLOCK = 1 << 19  # characters encoded at once
# A line end between visible characters; the usual tokenizers cut there anyway.
_CUT = re.compile(r"(?<=\S)\n(?=\S)")


@dataclass(frozen=True)
class EvaluationTokens:
    """The tokens of a text: `ids` int32 [T], without the `prefix` (bos) that its tokenizer puts
    before a text. `nbytes`: UTF-8 bytes of the text of the ids that have a predecessor (None
    without a text)."""

    ids: np.ndarray
    prefix: tuple[int, ...] = ()
    nbytes: int | None = None


def tokens_of(
    text: Text, model: Decoder, reference: Decoder | None, limit: int | None
) -> EvaluationTokens:
    """Returns at most `limit` tokens of a text, a file (Path, or open in binary) or of ids. A text
    longer than BLOCK characters is encoded in blocks that end at a line end.

    Raises FileFormatError for text that is not UTF-8, UsageError for fewer than two tokens (bos
    counts), ModelError if the reference's tokenizer gives other ids.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}; expected a positive number of tokens")
    where = str(text) if isinstance(text, Path) else "the text"
    if isinstance(text, Sequence | np.ndarray) and not isinstance(text, str):
        made = EvaluationTokens(np.asarray(model.check_ids(text), np.int32)[:limit])
    elif isinstance(text, str):
        made = _encoded(_blocks(iter([text])), model, reference, limit, where)
    elif isinstance(text, Path):
        try:
            with text.open("rb") as file:
                made = _encoded(_blocks(_decoded(file, where)), model, reference, limit, where)
        except OSError as error:
            raise UsageError(f"{text}: cannot be read: {error.strerror}") from None
    else:
        made = _encoded(_blocks(_decoded(text, where)), model, reference, limit, where)
    if len(made.prefix) + len(made.ids) < 2 or not len(made.ids):
        raise UsageError(
            f"{where} has {len(made.ids)} tokens; a loss needs at least two: give more text"
        )
    return made


def _decoded(file: BinaryIO, where: str) -> Iterator[str]:
    """Yields the text of an open file in parts. Raises FileFormatError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    while True:
        data = file.read(READ)
        pending = len(decoder.getstate()[0])
        try:
            yield decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            at = done - pending + error.start
            raise FileFormatError(
                f"{where} is not UTF-8 text (byte {at}); convert it with iconv -t UTF-8"
            ) from None
        if not data:
            return
        done += len(data)


def _blocks(parts: Iterator[str]) -> Iterator[str]:
    """Yields the same text in blocks of about BLOCK characters."""
    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        while size >= 2 * BLOCK:
            text = "".join(held)
            cuts = list(_CUT.finditer(text, BLOCK, 2 * BLOCK))
            cut = cuts[0].end() if cuts else BLOCK
            yield text[:cut]
            held, size = [text[cut:]], size - cut
    yield "".join(held)


def _encoded(
    blocks: Iterator[str],
    model: Decoder,
    reference: Decoder | None,
    limit: int | None,
    where: str,
) -> EvaluationTokens:
    why = f"{where} cannot be encoded"
    tokenizer = model.need_tokenizer(why)
    other = None if reference is None else reference.need_tokenizer(why)
    prefix = _prefix(tokenizer)
    if other is not None and reference is not None and _prefix(other) != prefix:
        raise _differ(model, reference, "put other tokens before a text")
    parts: list[np.ndarray] = []
    count = nbytes = 0
    for block in blocks:
        ids = tokenizer.encode(block, special=False) if block else []
        if other is not None and ids != (other.encode(block, special=False) if block else []):
            assert reference is not None
            raise _differ(model, reference, f"give other ids for {where}")
        whole = limit is None or count + len(ids) <= limit
        if not whole:
            assert limit is not None
            ids = ids[: limit - count]
        parts.append(np.asarray(ids, np.int32))
        count += len(ids)
        nbytes += len(block.encode()) if whole else _size(tokenizer, ids)
        if count == limit:
            break
    found = np.concatenate(parts)
    if not prefix:  # the first token has no predecessor, so it is not predicted
        nbytes -= _size(tokenizer, found[:1].tolist())
    return EvaluationTokens(found, prefix, max(nbytes, 0))


def _size(tokenizer: Tokenizer, ids: list[int]) -> int:
    """Returns the UTF-8 bytes of the ids' text; a character that is cut off at the end counts as
    one."""
    text = tokenizer.decode(ids, skip_special=False)
    whole = text.rstrip("\ufffd")
    return len(whole.encode()) + (len(text) - len(whole))


def _prefix(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the tokens that the tokenizer puts before a text: bos, or none."""
    bare, full = tokenizer.encode("a", special=False), tokenizer.encode("a")
    for i in range(len(full) - len(bare) + 1):
        if full[i : i + len(bare)] == bare:
            return tuple(full[:i])
    return ()


def _differ(model: Decoder, reference: Decoder, how: str) -> ModelError:
    return ModelError(
        f"the tokenizers of {model.folder} and {reference.folder} {how}: "
        "only models with one tokenizer can be compared token by token"
    )
