"""Grammars of strangers, tried in a process with limits before the server takes them.

llguidance counts its steps, but not all of them: some grammars take minutes to compile. Run by
`weft.host.confined`, nothing of weft can be imported here.
"""

from __future__ import annotations

from typing import Any

import llguidance

_tokenizer: Any = None
_limits: Any = None


class _Bytes:
    """A tokenizer whose tokens are the bytes, the end of the text, and others up to `vocab`."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, vocab: int) -> None:
        more = max(vocab - 257, 0)
        self.tokens = [bytes([i]) for i in range(256)] + [b"<eos>"] + [b"<>"] * more
        self.special_token_ids = [*range(256, len(self.tokens))]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """{"limits", "vocab"} sets what a grammar may take and how many tokens there are; {"grammar"}
    compiles one and makes its first mask: {"wrong": why it cannot be used, or ""}."""
    global _tokenizer, _limits
    if "limits" in request:
        _tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes(request["vocab"])))
        _limits = llguidance.LLParserLimits(**request["limits"])
        return {}
    wrong, said = llguidance.LLMatcher.validate_grammar_with_warnings(
        request["grammar"], _tokenizer, limits=_limits
    )
    if said:
        return {"wrong": said[0] if wrong else f"not supported: {said[0]}"}
    matcher = llguidance.LLMatcher(_tokenizer, request["grammar"], log_level=0, limits=_limits)
    matcher.compute_bitmask()
    if not matcher.is_error() and matcher.is_stopped() and not matcher.is_accepting():
        return {"wrong": "no text satisfies it"}
    return {"wrong": matcher.get_error()}
