"""The replicas together: who gets a request, and who takes part."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from weft.core.errors import UsageError
from weft.serve.router.asked import RoutedRequest
from weft.serve.router.replica import Replica, Told

LOAD = 1.25  # multiple of the mean load from which a replica takes no further conversation

_log = logging.getLogger(__name__)


def ranked(home: bytes, names: Sequence[str]) -> list[str]:
    """The names in the order in which they are home to a conversation, by rendezvous hashing
    (Thaler and Ravishankar 1998). When a replica leaves, only its conversations move, each to its
    next home. A new replica takes an equal share from all others."""

    def weight(name: str) -> bytes:
        return hashlib.blake2b(name.encode(), key=home, digest_size=16).digest()

    return sorted(names, key=weight, reverse=True)


class Fleet:
    """`mixed`: whether replicas may take part whose fingerprints of a model differ, and with them
    their answers. Raises UsageError for an address that is given twice."""

    def __init__(self, replicas: Sequence[Replica], mixed: bool = False) -> None:
        self.replicas, self.mixed = list(replicas), mixed
        names = [replica.name for replica in replicas]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"http://{name} is given twice")

    @property
    def ready(self) -> list[Replica]:
        """Those that take requests."""
        return [r for r in self.replicas if r.status == "up" and r.joined is not None]

    @property
    def models(self) -> dict[str, Told]:
        """All models, as a replica tells of them that has them loaded, where one has; the first of
        the first is what requests mean that name none."""
        made: dict[str, Told] = {}
        for replica in self.ready:
            for name, told in replica.models.items():
                if "fingerprint" not in made.get(name, {}):
                    made[name] = told
        return made

    def choose(self, asked: RoutedRequest, without: Collection[Replica] = ()) -> Replica | None:
        """The replica to ask, or None if none is left. It is the conversation's first home with at
        most its share of the load (consistent hashing with bounded loads: Mirrokni, Thorup and
        Zadimoghaddam 2018). A request without a conversation goes to the replica with the least
        work."""
        models = self.models
        # a replica itself reports an unknown model
        known = asked.model is None or asked.model in models
        first = next(iter(models), None)
        able = [
            r for r in self.ready
            if r not in without and (not known or r.serves(asked.model, first))
        ]  # fmt: skip
        if not able:
            return None
        if asked.home is None:
            return min(able, key=lambda r: r.outstanding)
        most = math.ceil(LOAD * (sum(r.outstanding for r in able) + 1) / len(able))
        by_name = {r.name: r for r in able}
        order = [by_name[name] for name in ranked(asked.home, list(by_name))]
        return next(r for r in order if r.outstanding < most)  # not all are above the mean

    def agree(self) -> None:
        """Lets a replica take part if it is up and its models' fingerprints match the replicas
        already taking part. If several come at once, the first named one counts."""
        known: dict[str, Any] = {}
        for replica in sorted(self.replicas, key=lambda r: r.joined or math.inf):
            if replica.status != "up":
                replica.joined = None
                continue
            marks = {name: told.get("fingerprint") for name, told in replica.models.items()}
            told = {name: mark for name, mark in marks.items() if mark}
            other = tuple(name for name, mark in told.items() if known.get(name, mark) != mark)
            if other and other != replica.differs:
                _log.warning("replica %s has another %s", replica.name, ", ".join(other))
            replica.differs = other
            if other and not self.mixed:
                replica.joined = None
                continue
            replica.joined = replica.joined or time.monotonic()
            known = {**told, **known}

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Inside, replicas are looked at; each has been once when it begins."""
        await asyncio.gather(*(replica.look() for replica in self.replicas))
        self.agree()
        tasks = [asyncio.ensure_future(self._watch(replica)) for replica in self.replicas]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, replica: Replica) -> None:
        while True:
            await replica.pause()
            await replica.look()
            self.agree()
