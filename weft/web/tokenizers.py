"""The tokenizer files that the page's own tokenizer (js/tokenizer.js) reads as Python does. It
knows all of their steps, and their patterns were tried (tests/web/test_tokenizers.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from weft.core.errors import ModelError
from weft.importers.hf_config import parse_json
from weft.models.text.tokenizer import Tokenizer
from weft.models.text.tokenizer_plain import PATTERNS

_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"  # its brackets mean another thing in JavaScript
_STEPS = {
    "model": {"BPE", "Unigram", "WordLevel", "WordPiece"},
    "normalizer": {
        "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Prepend",
        "Replace", "Sequence", "Strip", "StripAccents",
    },
    "pre_tokenizer": {
        "BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split",
        "Whitespace", "WhitespaceSplit",
    },
    "decoder": {
        "BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Sequence",
        "Strip", "WordPiece",
    },
}  # fmt: skip


def for_page(tokenizer: Tokenizer) -> bytes:
    """The tokenizer's file for a page. Raises ModelError where that would read a text otherwise."""
    if tokenizer.splits:
        raise ModelError(
            f"{tokenizer.path}: a page's tokenizer knows special tokens; split_special_tokens is "
            "not supported there"
        )
    data = tokenizer.file()
    parsed = parse_json(data, str(tokenizer.path))
    for name, known in _STEPS.items():
        step = parsed.get(name) or {}
        inner = [step] if name == "model" else list(_dicts(step))
        kinds = {s["type"] for s in inner if "type" in s}
        patterns = {s["Regex"] for s in inner if "Regex" in s}
        odd = sorted(kinds - known) + sorted(patterns - (PATTERNS - {_BLOOM}))
        if odd:
            raise ModelError(
                f"{tokenizer.path}: a page's tokenizer does not have the {name} {odd[0][:80]!r}; "
                f"it has {', '.join(sorted(known))}, with the patterns of well-known models"
            )
    return _as_read(data, parsed) if parsed["model"].get("type") == "Unigram" else data


def _as_read(data: bytes, parsed: dict[str, Any]) -> bytes:
    """The file with the scores that the library reads from it: some differ in the last digit, which
    decides between two ways to cut a text that are equally likely."""
    from tokenizers import Tokenizer as Library

    read = json.loads(Library.from_str(data.decode()).to_str())
    parsed["model"]["vocab"] = read["model"]["vocab"]
    return json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode()


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _dicts(inner)
