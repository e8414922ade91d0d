"""An open-loop load: requests are sent at their own times, even while earlier ones are unanswered.

Waiting counts from the moment a request was due. A closed loop would wait with the server and so
hide its slowness.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.bench.load_client import RequestTrace, complete
from weft.core.errors import UsageError

FIRST_ID = 3  # tokenizers use lower ids for special tokens: unknown, begin, end


@dataclass(frozen=True)
class RequestLoad:
    """The load: `requests` by a Poisson process of `rate` per second (0: all at once).

    Each has `prompt` random tokens (ids below `vocab`) and `answer` new ones. The first `shared`
    share of the prompt is the same in all. The same seed gives the same times and tokens.
    """

    requests: int = 32
    rate: float = 1.0
    prompt: int = 128
    answer: int = 64
    shared: float = 0.5
    vocab: int = 1000
    seed: int = 0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.vocab <= FIRST_ID or self.requests < 1 or not 0 <= self.shared <= 1:
            raise UsageError(
                f"a load of {self.requests} requests of ids below {self.vocab}, {self.shared} of "
                f"them shared; expected 1 or more, more than {FIRST_ID}, 0 to 1"
            )

    def arrivals(self) -> np.ndarray:
        """Seconds from the start at which requests are due, float64 [requests], ascending."""
        if not self.rate:
            return np.zeros(self.requests)
        gaps = self._stream(0).exponential(1 / self.rate, self.requests)
        times: np.ndarray = np.cumsum(gaps) - gaps[0]
        return times

    def prompts(self) -> list[list[int]]:
        """Token ids of each request."""
        ids = self._stream(1).integers(FIRST_ID, self.vocab, (self.requests, self.prompt))
        ids[:, : round(self.shared * self.prompt)] = ids[0, : round(self.shared * self.prompt)]
        made: list[list[int]] = ids.tolist()
        return made

    def bodies(self) -> list[dict[str, Any]]:
        """The requests of /v1/completions."""
        return [
            body(ids, self.answer, self.temperature, self.seed + i)
            for i, ids in enumerate(self.prompts())
        ]

    def _stream(self, number: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=np.array([self.seed, number], np.uint64)))


def body(ids: Sequence[int], answer: int, temperature: float, seed: int) -> dict[str, Any]:
    """A streamed request for `answer` tokens. Servers differ in what they leave out of a
    distribution where a request does not say; here nothing is left out."""
    return {
        "prompt": list(ids), "max_tokens": answer, "temperature": temperature, "seed": seed,
        "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


async def play(url: str, load: RequestLoad, key: str = "") -> list[RequestTrace]:
    """Sends the load's requests when they are due; what came of each."""
    begun = time.perf_counter()

    async def one(after: float, asked: dict[str, Any]) -> RequestTrace:
        await asyncio.sleep(begun + after - time.perf_counter())
        return await complete(url, asked, begun + after, key)

    asked = zip(load.arrivals().tolist(), load.bodies())
    return list(await asyncio.gather(*(one(after, body) for after, body in asked)))


def figures(traces: Sequence[RequestTrace]) -> dict[str, Any]:
    """Returns a load's figures: counts, tokens per second over the whole, milliseconds to the first
    event and between events at the 50th and 99th percentile."""
    whole = [t for t in traces if t.error is None]
    made: dict[str, Any] = {"requests": len(traces), "errors": len(traces) - len(whole)}
    if made["errors"]:
        made["error"] = next(t.error for t in traces if t.error is not None)
    if not whole:
        return made
    seconds = max(t.times[-1] for t in whole) - min(t.due for t in whole)
    new = sum(t.new for t in whole)
    return made | {
        "tok_s": round(new / seconds, 2), "requests_s": round(len(whole) / seconds, 3),
        **percentiles("first", [t.first for t in whole]),
        **percentiles("next", [gap for t in whole for gap in t.gaps]),
        "prompt_tokens": sum(t.prompt for t in whole),
        "cached_tokens": sum(t.cached for t in whole), "new_tokens": new,
    }  # fmt: skip


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """`name_p50_ms` and `name_p99_ms`: between neighbours by straight lines; none of nothing."""
    if not seconds:
        return {}
    found = np.percentile(np.asarray(seconds), (50, 99)) * 1e3
    return {f"{name}_p{p}_ms": round(float(ms), 3) for p, ms in zip((50, 99), found)}


def decoding(traces: Sequence[RequestTrace]) -> float:
    """Tokens per second of all answers together while all of them were being written: from the
    last one's first event to the first one's last. Where an event brings several tokens, each
    counts as its answer's mean. Raises UsageError where they were never written at once."""
    begin, end = max(t.times[0] for t in traces), min(t.times[-1] for t in traces)
    made = sum(sum(begin < at <= end for at in t.times) * t.new / len(t.times) for t in traces)
    if not made:
        raise UsageError(f"{len(traces)} answers never ran at once: ask for longer ones")
    return made / (end - begin)
