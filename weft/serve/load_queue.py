"""Requests that wait until their model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from weft.engine.limits import SHARE
from weft.serve.served import Served
from weft.serve.wire import HttpError


class LoadQueue:
    """Waiting requests by the name of their model, the oldest first.

    `load` loads a model, one at a time; all who wait for it then have it, those that came meanwhile
    too. So models that do not fit together take turns. At most `most` requests wait, each for
    `seconds` at most. In a full queue an owner of few waiting requests still has place, up to twice
    `most`, as in an engine's (check_queue)."""

    def __init__(self, load: Callable[[str], Awaitable[Served]], most: int, seconds: float) -> None:
        self._load, self._most, self.seconds = load, most, seconds
        self._waiting: dict[str, list[asyncio.Future[Served]]] = {}
        self._owners: dict[asyncio.Future[Served], bytes] = {}  # of those that wait
        self._task: asyncio.Task[None] | None = None

    def waits(self, name: str) -> bool:
        """True if a request waits for the model."""
        return any(not one.done() for one in self._waiting.get(name, ()))

    async def take(self, name: str, owner: bytes = b"") -> Served:
        """Returns the model once it is loaded, with one user more. Raises HttpError: 429 where too
        many wait, 503 where it takes too long; and what `load` raises."""
        waiting, own = len(self._owners), sum(one == owner for one in self._owners.values())
        few = own < self._most // SHARE and waiting < 2 * self._most
        if waiting >= self._most and not few:
            raise HttpError(429, f"{waiting} requests wait for models, {own} of them of this key; "
                            "try again later", retry=5)  # fmt: skip
        place: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
        self._owners[place] = owner
        place.add_done_callback(lambda place: self._owners.pop(place, None))
        self._waiting.setdefault(name, []).append(place)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())
        try:
            done, _ = await asyncio.wait({place}, timeout=self.seconds)
        except asyncio.CancelledError:
            self._leave(name, place)
            raise
        if not done:
            self._leave(name, place)
            raise HttpError(503, f"{name} was not loaded within {self.seconds:g} s: others are at "
                            "work; ask again", retry=5)  # fmt: skip
        return place.result()

    async def _work(self) -> None:
        while self._waiting:
            name = next(iter(self._waiting))
            if not self.waits(name):
                del self._waiting[name]
                continue
            try:
                model = await self._load(name)
            except Exception as e:
                for place in self._waiting.pop(name):
                    if not place.done():
                        place.set_exception(e)
                        place.exception()  # whoever waits has it: not a lost one
                continue
            for place in self._waiting.pop(name):
                if not place.done():
                    model.users += 1
                    place.set_result(model)

    def _leave(self, name: str, place: asyncio.Future[Served]) -> None:
        """Takes a request out that waits no longer, and a user from the model that it just got."""
        if place.done() and not place.cancelled() and place.exception() is None:
            place.result().users -= 1
        elif place in (left := self._waiting.get(name, [])):
            left.remove(place)
        place.cancel()

    async def close(self) -> None:
        """Ends the waiting; nothing is loaded after it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for place in [place for places in self._waiting.values() for place in places]:
            if not place.done():
                place.set_exception(HttpError(503, "the server is going; ask another", retry=1))
        self._waiting.clear()
