"""Decides which tokenizer files the `tokenizers` library may run in this process.

With some files the library panics, or takes unlimited time and memory: patterns that backtrack,
steps that multiply a text, unchecked numbers. A file is plain if all its steps are listed here,
with patterns of well-known models that take time linear in the text. Other files work too, but in a
child process with limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from weft.models.text.deepseek_patterns import DEEPSEEK, DEEPSEEK3, DEEPSEEK_CODER

MAX_FILE = 64 << 20  # bytes; the largest in use have 34 MB
_MAX_PARTS = 12
_MAX_STATE = 16 << 10  # bytes of the description of one component

_END = r"""|\s+(?!\S)|\s+"""
_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d"""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"


def _cased(tail: str, digits: str) -> str:
    words = rf"{_BEFORE}{_UPPER}*{_LOWER}+{tail}|{_BEFORE}{_UPPER}+{_LOWER}*{tail}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+{_END}"


def _uncased(digits: str, letter: str = r"\p{L}", letters: str = r"\p{L}") -> str:
    words = rf"(?i:{_WORDS})|{_BEFORE}{letter}+|{digits}"
    return rf"{words}| ?[^\s{letters}\p{{N}}]+[\r\n]*|\s*[\r\n]+{_END}"


GPT2 = rf"{_WORDS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+{_END}"
LLAMA3 = _uncased(r"\p{N}{1,3}")  # GPT-4 too
QWEN2 = _uncased(r"\p{N}")
QWEN35 = _uncased(r"\p{N}", r"[\p{L}\p{M}]", r"\p{L}\p{M}")
GPT4O = _cased(rf"(?i:{_WORDS})?", r"\p{N}{1,3}")  # Llama 4 too
TEKKEN = _cased("", r"\p{N}")  # Mistral's
DIGIT = r"\p{N}"
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")  # llama.cpp's
# Each scans a text from start to end and backtracks only within a run of one class.
PATTERNS = {
    GPT2,
    LLAMA3,
    QWEN2,
    QWEN35,
    GPT4O,
    TEKKEN,
    DIGIT,
    *DEFAULT,
    *DEEPSEEK,
    *DEEPSEEK3,
    *DEEPSEEK_CODER,
    rf"{_WORDS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+",  # CLIP
    r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
    r"\d",
    r" {2,}",  # replaced by normalizers
    r"\s+",
} - {r"\s+$"}  # fmt: skip  (DeepSeek's: it scans a long run of spaces from each of them)

_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*"|null|\d)?')
_LETTERS = {b"2", b"3", b"4", b"5", b"6", b"7"}  # begin the two digits of letters and signs


def safe_to_load(data: bytes) -> bool:
    """Returns True if loading the file runs nothing unknown: while loading, the library compiles
    patterns and checks some models by panicking."""
    if len(data) > MAX_FILE or _spells_letters(data):
        return False
    if b"precompiled_charsmap" in data:
        return False
    if not all(map(_known, _values(data, b'"Regex"'))):
        return False
    prefixes = set(_values(data, b'"continuing_subword_prefix"'))
    merges = b'"##"' in prefixes and re.search(rb'"merges"\s*:\s*\[', data)
    return prefixes <= {b"null", b'""', b'"##"'} and not merges


def _spells_letters(data: bytes) -> bool:
    """Returns True if a letter is written as a numeric escape. An expression takes 30 times as long
    for two megabytes."""
    at = data.find(b"\\u00")
    while at >= 0:
        before = at
        while before and data[before - 1 : before] == b"\\":
            before -= 1
        if (at - before) % 2 == 0 and data[at + 4 : at + 5] in _LETTERS:
            return True
        at = data.find(b"\\u00", at + 1)
    return False


def _values(data: bytes, name: bytes) -> Iterator[bytes]:
    """Yields the value of each entry with that name: a string's bytes, null, the first digit of a
    number, or nothing for others. This is twice as fast as one expression for both."""
    at = data.find(name)
    while at >= 0:
        at += len(name)
        if found := _VALUE.match(data, at):
            yield found[1] or b""
        at = data.find(name, at)


def _known(value: bytes) -> bool:
    """Returns True if a value of "Regex" is a known pattern, or not a string (the id of a
    token)."""
    if value[:1] != b'"':
        return True
    try:
        return json.loads(value) in PATTERNS
    except ValueError:
        return False


def safe_to_use(raw: Any) -> bool:
    """Returns True if every step of a loaded tokenizer is listed here."""
    try:
        return _model(raw.model) and all(
            check(part)
            for name, check in _CHECKS.items()
            for part in _parts(getattr(raw, name), name)
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return False


def _model(model: Any) -> bool:
    kind = type(model).__name__
    if kind == "BPE":
        around = (model.continuing_subword_prefix or "", model.end_of_word_suffix or "")
        return max(map(len, around)) <= 8
    return kind == "WordLevel" or (kind == "WordPiece" and model.max_input_chars_per_word <= 200)


def _parts(component: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yields the steps of a component, with sequences flattened."""
    if component is None:
        return
    state = component.__getstate__()
    if len(state) > _MAX_STATE:
        raise ValueError
    steps = list(_flat(json.loads(state)))
    once = [s["type"] for s in steps if s["type"] in _ONCE]
    if len(steps) > _MAX_PARTS or len(set(once)) < len(once):
        raise ValueError
    yield from steps


_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_ONCE = {"ByteLevel", "Metaspace", "TemplateProcessing", "Prepend", "BertProcessing"}
_ONCE |= {"RobertaProcessing"}  # each of them lengthens a text


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
        return
    for inner in next(step[name] for name in _LISTS if name in step):
        yield from _flat(inner)


_SIMPLE = {
    "normalizer": {
        "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Strip", "StripAccents",
    },
    "pre_tokenizer": {
        "BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Whitespace",
        "WhitespaceSplit",
    },
    "decoder": {"ByteFallback", "ByteLevel", "Fuse", "Metaspace"},
    "post_processor": {"BertProcessing", "ByteLevel", "RobertaProcessing"},
}  # fmt: skip


def _normalizer(s: dict[str, Any]) -> bool:
    if s["type"] == "Replace":
        return _pattern(s["pattern"]) and len(s["content"]) <= 1
    if s["type"] == "Prepend":
        return len(s["prepend"]) == 1
    return s["type"] in _SIMPLE["normalizer"]


def _pattern(pattern: dict[str, str]) -> bool:
    if "Regex" in pattern:
        return pattern["Regex"] in PATTERNS
    return 1 <= len(pattern["String"]) <= 8


def _pre_tokenizer(s: dict[str, Any]) -> bool:
    if s["type"] == "Split":
        return _pattern(s["pattern"])
    return s["type"] in _SIMPLE["pre_tokenizer"]


def _decoder(s: dict[str, Any]) -> bool:
    if s["type"] == "Replace":
        return _pattern(s["pattern"]) and len(s["content"]) <= 1
    if s["type"] == "Strip":
        return bool(s["start"] <= 8 and s["stop"] == 0)
    if s["type"] in ("WordPiece", "BPEDecoder"):
        return 1 <= len(s.get("prefix", s.get("suffix", ""))) <= 8
    return s["type"] in _SIMPLE["decoder"]


def _post_processor(s: dict[str, Any]) -> bool:
    if s["type"] != "TemplateProcessing":
        return s["type"] in _SIMPLE["post_processor"]
    pieces = [*s["single"], *s["pair"]]
    named = {p["SpecialToken"]["id"] for p in pieces if "SpecialToken" in p}
    texts = [p for p in s["single"] if "Sequence" in p]
    return len(texts) == 1 and named <= set(s["special_tokens"])


_CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "normalizer": _normalizer,
    "pre_tokenizer": _pre_tokenizer,
    "decoder": _decoder,
    "post_processor": _post_processor,
}
