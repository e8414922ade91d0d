"""Schemas compiled for constrained texts, and what they take."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import numpy as np

from weft.core.errors import UsageError
from weft.models.grammar import grammars as grammar

Schema = dict[str, Any]


class _Bytes:
    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([i]) for i in range(256)] + [b"<eos>"]
    special_token_ids = [256]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


BYTES = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
LIMITS = llguidance.LLParserLimits(**grammar.LIMITS)


def compiled(schema: Schema) -> Any:
    """A matcher over bytes. Raises UsageError for what is refused, here or by llguidance."""
    text = json.dumps({"grammars": [grammar.json_schema(schema)]})
    _, said = llguidance.LLMatcher.validate_grammar_with_warnings(text, BYTES, limits=LIMITS)
    if said:
        raise UsageError(said[0])
    made = llguidance.LLMatcher(BYTES, text, log_level=0, limits=LIMITS)
    made.compute_bitmask()
    if made.is_stopped() and not made.is_accepting():
        raise UsageError("no text satisfies it")
    return made


def takes(matcher: Any, text: str) -> bool:
    own = matcher.deep_copy()
    data = list(text.encode())
    return own.try_consume_tokens(data) == len(data) and bool(own.is_accepting())


PATTERNS = [
    '^[^"]*$', r'^[^"\\]+$', r"^[\x00-!]$", r"^[^ -~]$", r"^[^\n]$", '^["]$', r"^\\$", r"^[\]\\-]$",
    "^[a-f0-9]{2}$", "a|b$", r"^\d+$", r"^\w{1,2}$", r"^\S$", r"^\s?x", r"^[^\s]$", r"^[^\w]$",
    r"^[\W]$", r"^\D$", "^.$", r"^[\d.-]+$", "^$", "x", r"^\/a\<b\>$", "^[[]$", "^[a&&b]$",
    "[~]{2}",
    "^{a}$", r"^\x41\u00e9$", "(?i)^ab$", "^(?:a|bc)*$", "^é{1,2}$", "^[^a]$", "^<think>$", r"\.$",
]  # fmt: skip
TEXTS = [
    '"', "\\", 'a"', "a\\", "!", '""', "\r", "\b", "\x0b",
    "", "a", "ab", "abc", "A", "x", "ax", "xb", "b", "é", "éé", "Aé", "1", "12", "٣", "ª",
    " ", "\n", "a\n", "\x1c", "\ufeff", "\u2028", "\x85", "\x7f", "\0", "😀", "😀😀", "e\u0301",
    "/a<b>", "[", "&", "a&", "~~", "{a}", "<think>", ".", "-", "1.5", "ſ", "K", "2024-02-29",
    "2023-02-29",
    "0000-01-01",
    "2024-04-31", "12:00:60Z", "23:59:59.5+01:00", "24:00:00Z", "2024-02-29T10:00:00Z", "1.2.3.4",
    "1.2.3.256", "::1", "::g", "a@b.c", "P1D", "P", "a-b.example", "-a", "ab" * 40,
    "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "http://a/b", "[[", "]",
]  # fmt: skip


def drawn(matcher: Any, stream: np.random.Generator, limit: int = 150) -> str | None:
    """A text of bytes drawn from those that may come; None where it does not end in time."""
    own, out = matcher.deep_copy(), bytearray()
    for _ in range(limit):
        if own.is_stopped():
            assert own.is_accepting()
            return out.decode()
        bits = np.frombuffer(own.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:257])
        if not own.is_accepting():
            allowed = allowed[allowed < 256]
            assert len(allowed), "nothing may follow"
        if 256 in allowed and (len(allowed) == 1 or stream.random() < 0.4):
            return out.decode()
        allowed = allowed[allowed < 256]
        closing = allowed[np.isin(allowed, list(b'"}]'))]
        pick = closing if len(closing) and stream.random() < 0.3 else allowed
        out.append(int(stream.choice(pick)))
        own.consume_token(out[-1])
    return None
