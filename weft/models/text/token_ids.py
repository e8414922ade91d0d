"""The ids that end, begin and pad a text, from the places where a folder may define them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.importers.hf_config import Fields, read_object
from weft.models.arch.config import TokenIds
from weft.models.arch.family_parts import MAX_VOCAB
from weft.models.text.tokenizer_fields import content_of
from weft.models.text.tokenizer_settings import read_settings


def read_token_ids(folder: Path, config: Fields) -> TokenIds:
    """Returns end, begin and padding ids. The precedence is generation_config.json, config.json,
    its text_config, then the end token that tokenizer_config.json names."""
    path = folder / "generation_config.json"
    places = [config]
    if path.exists():
        places.insert(0, Fields(read_object(path), str(path)))
    text = config.section("text_config")
    places += [] if text is None else [text]
    eos = _first(places, "eos_token_id", 0) or _named_end(folder)
    own = [config, *places]  # config.json takes precedence for these, as in older folders
    bos, pad = _first(own, "bos_token_id", 0), _first(own, "pad_token_id", -1)
    return TokenIds(eos, bos[0] if bos else None, pad[0] if pad else None)


def _first(places: Sequence[Fields], name: str, lo: int) -> tuple[int, ...]:
    return next((ids for c in places if (ids := c.integers(name, lo, MAX_VOCAB))), ())


def _named_end(folder: Path) -> tuple[int, ...]:
    """Returns the id of the end token in the tokenizer's settings."""
    found, tokens = read_settings(folder), folder / "tokenizer.json"
    end = content_of(found.get("eos_token"))
    if end is None:
        return ()
    added = found.get("added_tokens_decoder")
    added = added if isinstance(added, dict) else {}
    known = {v.get("content"): k for k, v in added.items() if isinstance(v, dict)}
    if end not in known and tokens.exists():
        listing = read_object(tokens).get("added_tokens")
        for token in listing if isinstance(listing, list) else ():
            if isinstance(token, dict) and token.get("content") == end:
                known[end] = token.get("id")
    number = str(known.get(end, ""))
    return (int(number),) if number.isdecimal() and int(number) <= MAX_VOCAB else ()
