"""Calls the `tokenizers` library: in this process for plain files (see tokenizer_plain.py), else in
a child process, where `weft.host.confined` runs it and nothing of weft can be imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

_tokenizer: Any = None


def handle(request: dict[str, Any]) -> Any:
    """Handles a request. {"path" or "text", "limit", "side", "split"} loads a tokenizer and returns
    its number of tokens. {"texts", "special"} returns the ids of each, {"rows"} what `read` does;
    {"ids", "skip"} returns a text."""
    global _tokenizer
    if "limit" in request:
        _tokenizer = load(_content(request), request["limit"], request["side"], request["split"])
        check_ids(_tokenizer)
        return _tokenizer.get_vocab_size()
    if "rows" in request:
        return read(_tokenizer, request["rows"])
    if "texts" in request:
        return encode(_tokenizer, request["texts"], request["special"])
    return _tokenizer.decode(request["ids"], skip_special_tokens=request["skip"])


def _content(request: dict[str, Any]) -> bytes:
    if "text" in request:
        return str(request["text"]).encode()
    with open(request["path"], "rb") as f:
        return f.read()


def load(data: bytes, limit: int | None, side: str | None = None, split: bool = False) -> Any:
    """Loads a tokenizer.json for inference.

    `limit` replaces the file's settings for length (None: unlimited). Random segmentation is turned
    off: BPE-dropout (Provilkov et al. 2020) and sampled unigrams (Kudo 2018) are for training.
    `side` is where texts are cut (None: the file's). With `split` the text of a special token is
    plain text.
    """
    raw = Tokenizer.from_buffer(data)
    side = side or (raw.truncation or {}).get("direction", "right")
    raw.encode_special_tokens = split
    raw.no_padding()
    if limit is None:
        raw.no_truncation()
    else:
        raw.enable_truncation(limit, direction=side)
    for name in ("dropout", "alpha", "nbest_size"):
        if getattr(raw.model, name, None) is not None:
            setattr(raw.model, name, None)
    return raw


def check_ids(raw: Any) -> None:
    """Raises ValueError if two tokens share an id: decoding would return either, by chance."""
    size = raw.get_vocab_size(with_added_tokens=False)
    if None in map(raw.model.id_to_token, range(size)):  # otherwise every id has a token
        ids = raw.get_vocab(with_added_tokens=False).values()
        if len(set(ids)) < len(ids) and type(raw.model).__name__ != "Unigram":
            raise ValueError("two tokens of its vocabulary have the same id")


def read(raw: Any, texts: Sequence[Any]) -> list[list[Any]]:
    """Returns ids, parts, spans of characters and marks of special tokens of each text or pair."""
    given = [text if isinstance(text, str) else tuple(text) for text in texts]
    rows = raw.encode_batch(given, add_special_tokens=True)
    return [[e.ids, e.type_ids, [list(s) for s in e.offsets], e.special_tokens_mask] for e in rows]


def encode(raw: Any, texts: Sequence[str], special: bool) -> list[list[int]]:
    """Returns the ids of each text; `special` adds the tokens around it."""
    return [e.ids for e in raw.encode_batch_fast(list(texts), add_special_tokens=special)]
