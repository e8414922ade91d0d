"""An answer as the client gets it: if a replica breaks off during a stream, another goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from weft.serve.router.answer import ReplicaAnswer, broken_off
from weft.serve.router.exchange import Broken
from weft.serve.router.resume import FORMS, MAX_SENT, Differs, StreamRest

RESUME_SECONDS = 20.0  # time for another replica to take over
_LOOKS = 0.1

_log = logging.getLogger(__name__)


class Others(Protocol):
    """The replicas that may go on with an answer."""

    def lost(self) -> bool:
        """Counts a replica that broke off; returns True if another may be asked."""

    async def again(self) -> ReplicaAnswer | None:
        """Asks another replica the same; None: none is there now."""

    def resumed(self) -> None:
        """Counts a stream that goes on."""


class LastingAnswer:
    """The parts of an answer, for a Streamed. `others` is None where another replica would not give
    the same one. Where nothing can go on, the last part says so in the protocol's own words; what
    has none is cut (Broken), which a client sees too."""

    def __init__(self, answer: ReplicaAnswer, path: str, others: Others | None) -> None:
        self._answer, self._path, self._others = answer, path, others
        self._end = answer.end
        self._sent: list[bytes] | None = [] if path in FORMS and others is not None else None
        self._size = 0
        self._rest: StreamRest | None = None
        self._over = False

    def __aiter__(self) -> LastingAnswer:
        return self

    async def __anext__(self) -> bytes:
        while not self._over:
            try:
                part = await self._answer.next()
                if part and self._rest is not None and not (part := self._rest.of(part)):
                    continue
            except Broken as e:
                self._answer.lost(e)
                try:
                    if await self._goes_on():
                        continue
                except Differs:
                    self._answer.close()
                return self._broken(e)
            except Differs:
                self._answer.close()
                _log.warning("another replica gives another answer: the stream ends here")
                return self._broken(Broken("the replicas differ"))
            if not part:
                break
            self._keep(part)
            return part
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends it."""
        self._answer.close()

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._sent is not None:
            self._sent.append(part)
            if self._size > MAX_SENT:
                self._sent = None

    def _broken(self, error: Broken) -> bytes:
        if self._end is None:
            raise error
        self._over = True
        return broken_off(self._path, self._end)

    async def _goes_on(self) -> bool:
        """True if another replica gives the answer now."""
        if self._others is None or self._sent is None or not self._others.lost():
            return False
        over = time.monotonic() + RESUME_SECONDS
        while time.monotonic() < over:
            answer = await self._others.again()
            if answer is not None and answer.status == 200 and answer.end == self._end:
                self._answer = answer
                self._rest = StreamRest(self._path, b"".join(self._sent))
                self._others.resumed()
                return True
            if answer is not None:
                answer.close()
            await asyncio.sleep(_LOOKS)
        return False
