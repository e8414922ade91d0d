"""The bytes of each token of a tokenizer, and the tokens that spell a text.

A text's bytes are those of its tokens, one after the other, in every tokenizer by which a grammar
can steer an answer: BPE on bytes, and pieces of SentencePiece with or without byte fallback.
Tokenizers that put spaces between their tokens, as WordPiece does, have no such bytes and are
rejected.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.core.errors import ModelError, UsageError
from weft.models.text.tokenizer import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_letters() -> dict[str, int]:
    """The letter for each byte in byte-level BPE (GPT-2's encoder.py, 2019): itself if it prints,
    else the next letter from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(hidden)}


_LETTERS = byte_letters()


def token_bytes(tokenizer: Tokenizer, vocab: int) -> tuple[list[bytes], frozenset[int]]:
    """The bytes of each id below `vocab` (none for ids without a token), and the ids of special
    tokens, which no text contains. Raises UsageError naming a decoder whose tokens are not
    bytes."""
    data = _read(tokenizer)
    spell = _speller(_steps(data.get("decoder")))
    tokens = [b""] * vocab
    for text, i in _vocabulary(data["model"]):
        if 0 <= i < vocab:
            tokens[i] = spell(text)
    special = set()
    for added in data.get("added_tokens") or ():
        if 0 <= added["id"] < vocab:
            tokens[added["id"]] = added["content"].encode()
            if added["special"]:
                special.add(added["id"])
    return tokens, frozenset(special)


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens by their text."""
    added = _read(tokenizer).get("added_tokens") or ()
    return {a["content"]: a["id"] for a in added if a["special"]}


def _read(tokenizer: Tokenizer) -> dict[str, Any]:
    try:
        data = json.loads(tokenizer.file())
        data["model"]["vocab"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ModelError(
            f"{tokenizer.path}: no vocabulary that structured output can use"
        ) from None
    return dict(data)


def _vocabulary(model: dict[str, Any]) -> list[tuple[str, int]]:
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return list(vocab.items())
    return [(piece, i) for i, (piece, _score) in enumerate(vocab)]  # unigrams


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _speller(steps: Sequence[dict[str, Any]]) -> Callable[[str], bytes]:
    """A function that converts a token, as the vocabulary spells it, into bytes by the decoder's
    steps."""
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return _letters
    known = {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}
    whole = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    if not set(kinds) & {"Replace", "Metaspace"} or set(kinds) - known or "Strip" in kinds[:whole]:
        raise UsageError(
            f"structured output needs tokens that have bytes; this tokenizer's decoder is "
            f"{', '.join(kinds) or 'none'}; ask without response_format, grammar or forced tools"
        )
    # Steps after Fuse see the whole text: they may drop a space at its start.
    changes = [change for step in steps[:whole] if (change := _replacement(step)) is not None]
    fallback = "ByteFallback" in kinds

    def spell(token: str) -> bytes:
        if fallback and (found := _BYTE.fullmatch(token)):
            return bytes([int(found[1], 16)])
        for old, new in changes:
            token = token.replace(old, new)
        return token.encode()

    return spell


def _letters(token: str) -> bytes:
    """The bytes of a token of byte-level BPE; letters of no byte are themselves."""
    return b"".join(
        bytes([_LETTERS[c]]) if c in _LETTERS else c.encode() for c in token
    )  # fmt: skip


def _replacement(step: dict[str, Any]) -> tuple[str, str] | None:
    if step["type"] == "Metaspace":
        return step.get("replacement", "▁"), " "
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        if pattern is None:
            raise UsageError("structured output needs tokens that have bytes; this tokenizer's "
                             "decoder replaces a pattern")  # fmt: skip
        return pattern, step["content"]
    return None


class GrammarTokens:
    """A tokenizer as llguidance asks for it."""

    bos_token_id = None

    def __init__(
        self, tokenizer: Tokenizer, tokens: list[bytes], special: Iterable[int], ends: list[int]
    ) -> None:
        self.eos_token_id = ends[0]
        self.tokens = tokens
        self.special_token_ids = sorted({*special, *ends})
        self._tokenizer = tokenizer
        self._never = frozenset(self.special_token_ids)
        added = [tokens[i].decode(errors="replace") for i in self._never if i < len(tokens)]
        texts = sorted(filter(None, added), key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._longest: dict[bytes, int] = {}

    def __call__(self, text: bytes) -> list[int]:
        """The tokens that spell `text`, none of them special. They are the tokenizer's own; a text
        that it would take for a special token is cut inside. [] if no tokens spell it."""
        with contextlib.suppress(UnicodeDecodeError):
            whole = text.decode()
            cuts = [found.start() + 1 for found in self._cut.finditer(whole)]
            parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]
            ids = [i for part in parts for i in self._tokenizer.encode(part, special=False)]
            if not self._never & set(ids) and b"".join(self.tokens[i] for i in ids) == text:
                return ids
        return self._by_length(text)

    def _by_length(self, text: bytes) -> list[int]:
        """The longest token that fits, again and again: for tokenizers that put a space before."""
        if not self._longest:
            listed = enumerate(self.tokens)
            self._longest = {t: i for i, t in listed if t and i not in self._never}
        most = max(map(len, self._longest), default=0)
        ids, at = [], 0
        while at < len(text):
            sizes = range(min(most, len(text) - at), 0, -1)
            size = next((n for n in sizes if text[at : at + n] in self._longest), 0)
            if not size:
                return []
            ids.append(self._longest[text[at : at + size]])
            at += size
        return ids
