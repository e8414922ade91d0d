"""Logprobs of prompts, in vLLM's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.engine.job import SampledToken
from weft.serve.served import ServedDecoder


def scored(model: ServedDecoder, prompt: Sequence[SampledToken]) -> list[dict[str, Any] | None]:
    """Returns, for each token of a prompt, logprobs by id: the token's own and those of the most
    probable ones. The first has none."""

    def told(token: SampledToken) -> dict[str, Any] | None:
        if token.logprob is None:
            return None
        ranked = {i: (p, n) for n, (i, p) in enumerate(token.top, 1)}
        ranked[token.id] = token.logprob, token.rank or 0
        return {
            str(i): {"logprob": p, "rank": n, "decoded_token": model.token(i)[0]}
            for i, (p, n) in ranked.items()
        }

    return [told(token) for token in prompt]
