"""The API keys of a server: their names, limits and counts."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from prometheus_client.core import CounterMetricFamily

from weft.serve.wire import HttpError

Clock = Callable[[], float]


class Bucket:
    """An allowance of `amount` per `seconds` that refills steadily. Amounts that are known only
    afterwards may overdraw it."""

    def __init__(self, amount: float, seconds: float, clock: Clock) -> None:
        self.amount, self._rate, self._clock = amount, amount / seconds, clock
        self._level, self._at = float(amount), clock()

    def wait(self, least: float) -> float:
        """Seconds until at least this much is left; 0 if it is."""
        now = self._clock()
        self._level = min(self.amount, self._level + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (least - self._level) / self._rate)

    @property
    def left(self) -> int:
        """The amount that may be taken now, in whole units; 0 while it is overdrawn."""
        self.wait(0)
        return max(0, math.floor(self._level))

    def take(self, amount: float) -> None:
        """Takes an amount, left or not."""
        self._level -= amount

    def resize(self, amount: float, seconds: float) -> None:
        """Changes the allowance; what was taken stays taken."""
        self.wait(0)
        self._level += amount - self.amount
        self.amount, self._rate = amount, amount / seconds


@dataclass(frozen=True)
class KeyLimits:
    """Limits of one key; None: without limit. Tokens are those of prompts and answers."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    running: int | None = None


class ApiKey:
    """One key with its limits, and what it has used: `requests`, `refused` ones, `tokens`."""

    def __init__(
        self,
        name: str,
        secret: bytes,
        limits: KeyLimits = KeyLimits(),
        clock: Clock = time.monotonic,
    ) -> None:
        self.name, self.digest, self._clock = name, hashlib.sha256(secret).digest(), clock
        self.requests = self.refused = self.tokens = self.running = 0
        self._buckets: dict[str, Bucket] = {}
        self.limit(limits)

    def limit(self, limits: KeyLimits) -> None:
        """Sets the limits; what the key has used of an old one counts under the new one."""
        self.limits, old = limits, self._buckets
        given = {"requests": (limits.requests_per_minute, 60.0),
                 "minute": (limits.tokens_per_minute, 60.0),
                 "day": (limits.tokens_per_day, 86400.0)}  # fmt: skip
        self._buckets = {}
        for unit, (amount, seconds) in given.items():
            if amount is not None:
                bucket = old.get(unit) or Bucket(amount, seconds, self._clock)
                bucket.resize(amount, seconds)
                self._buckets[unit] = bucket
        self._requests = self._buckets.get("requests")
        self._tokens = [(u, bucket) for u, bucket in self._buckets.items() if u != "requests"]

    def enter(self) -> None:
        """Counts a request that begins. Raises HttpError 429 where it is one too many."""
        try:
            self._check()
        except HttpError:
            self.refused += 1
            raise
        if self._requests is not None:
            self._requests.take(1)
        self.requests += 1
        self.running += 1

    def leave(self, held: int = 0) -> None:
        """Counts a request that has ended, and gives back the tokens that were held for it."""
        self.running -= 1
        for _, bucket in self._tokens:
            bucket.take(-held)

    def spend(self, tokens: int) -> None:
        """Counts tokens."""
        self.tokens += tokens
        for _, bucket in self._tokens:
            bucket.take(tokens)

    def hold(self, tokens: int) -> None:
        """Takes the most tokens that a request asks for, until it leaves: requests that each fit
        do not overdraw a limit together. Raises HttpError: 400 for more than the key ever has at
        once (clients repeat a 429 by themselves), 429 for more than it has now."""
        for unit, bucket in self._tokens:
            if tokens > bucket.amount:
                self.refused += 1
                raise HttpError(400, f"the request asks for {tokens} tokens, of prompts and "
                                f"answers; this key has {bucket.amount:.0f} tokens per {unit}: "
                                "shorten it, or lower max_tokens or n",
                                code="request_too_large")  # fmt: skip
        for unit, bucket in self._tokens:
            if wait := bucket.wait(tokens):
                self.refused += 1
                raise _late(f"the request asks for {tokens} tokens; this key has {bucket.left} "
                            f"left of its {bucket.amount:.0f} tokens per {unit}", wait)  # fmt: skip
        for _, bucket in self._tokens:
            bucket.take(tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Returns OpenAI's headers with the amounts left: of two limits of tokens, the lesser."""
        told = [("requests", self._requests)] if self._requests is not None else []
        if self._tokens:
            told.append(("tokens", min((b for _, b in self._tokens), key=lambda b: b.left)))
        return [
            (f"x-ratelimit-{figure}-{unit}".encode(), text.encode())
            for unit, bucket in told
            for figure, text in (("limit", f"{bucket.amount:.0f}"), ("remaining", f"{bucket.left}"),
                                 ("reset", f"{math.ceil(bucket.wait(bucket.amount))}s"))
        ]  # fmt: skip

    def _check(self) -> None:
        most = self.limits.running
        if most is not None and self.running >= most:
            raise HttpError(429, f"{self.running} requests of this key are running, as many as "
                            "may; wait for one to end", retry=1)  # fmt: skip
        if self._requests is not None and (wait := self._requests.wait(1)):
            raise _late(f"{_USED} {self.limits.requests_per_minute} requests per minute", wait)
        for unit, bucket in self._tokens:
            if wait := bucket.wait(1):
                raise _late(f"{_USED} {bucket.amount:.0f} tokens per {unit}", wait)


_USED = "this key has used up its"


def _late(said: str, wait: float) -> HttpError:
    seconds = int(wait) + 1
    return HttpError(429, f"{said}; ask again in {seconds} s", retry=seconds)


class ApiKeys:
    """The keys of a server, one of which every request must bring."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self.keys = list(keys)
        self._by_digest = {key.digest: key for key in self.keys}
        self.gone: Callable[[str], None] = lambda name: None  # told the names that are removed

    def become(self, others: ApiKeys) -> None:
        """Takes other keys and limits. A name that stays keeps its counts, also with another
        secret; the requests of one that goes run to their end."""
        old = {key.name: key for key in self.keys}
        self.keys = []
        for other in others.keys:
            if (key := old.pop(other.name, None)) is not None:
                key.digest = other.digest
                key.limit(other.limits)
            self.keys.append(key or other)
        self._by_digest = {key.digest: key for key in self.keys}
        for name in old:
            self.gone(name)

    @classmethod
    def of(cls, secret: bytes) -> ApiKeys:
        """One key without a name or limits."""
        return cls([ApiKey("", secret)])

    def find(self, given: Sequence[bytes]) -> ApiKey | None:
        """Returns the first key that is among those `given`. Takes as long for a wrong key as for a
        right one of the same length."""
        digests = [hashlib.sha256(each).digest() for each in given]
        found = [k for k in self.keys for d in digests if hmac.compare_digest(d, k.digest)]
        return found[0] if found else None

    def of_salt(self, salt: bytes) -> ApiKey | None:
        """The key whose job has this salt, which begins with the key's digest."""
        return self._by_digest.get(salt[:32])

    def collect(self) -> Any:
        """Yields Prometheus's counters of the keys that have names."""
        for figure, text in (("requests", "Requests"), ("refused", "Requests over a limit"),
                             ("tokens", "Tokens of prompts and answers")):  # fmt: skip
            family = CounterMetricFamily(f"weft_key_{figure}", f"{text}, by key.", labels=("key",))
            for key in self.keys:
                if key.name:
                    family.add_metric((key.name,), getattr(key, figure))
            yield family


present: ContextVar[Mapping[str, Any]] = ContextVar(
    "present", default=MappingProxyType({"headers": ()})
)
"""The ASGI scope of the request that is being answered."""


def hold_tokens(tokens: int) -> None:
    """Holds tokens for the present request until it ends. Raises HttpError if its key does not
    allow so many at once."""
    scope = present.get()
    key = scope.get("weft.key")
    if isinstance(key, ApiKey):
        key.hold(tokens)
        scope["weft.held"].append(tokens)


def spent(scope: Any, tokens: int) -> None:
    """Counts tokens of the request that `scope` is of, if it brought a key."""
    key = scope.get("weft.key")
    if isinstance(key, ApiKey):
        key.spend(tokens)
