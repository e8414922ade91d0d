"""A server behind the router: whether it is there, what it serves, what it is at work on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from weft.serve.router.exchange import Broken, Exchange, Headers, ReplicaAddress

CHECK_SECONDS = 1.0  # between two looks at a replica
PATIENCE = 5.0  # time for a reply to a look
MISSES = 3  # looks in a row without an answer, after which it counts as lost
MAX_REPLY = 8 << 20  # bytes of what it says of itself

_log = logging.getLogger(__name__)
Told = dict[str, Any]
"""A model as GET /v1/models has it: `id`, `fingerprint` where it is loaded, and more."""


class Replica:
    """One server behind the router. `status`: "up"; "leaving" and "failed" as its /health says;
    "down" if nothing listens; "silent" if no reply comes; "refuses" if the key is wrong.

    `models`: the facts that it reports of each, by name. `joined`: the time since which it takes
    part (time.monotonic, seconds), else None. `differs`: models whose fingerprint differs from the
    others'.
    """

    def __init__(self, address: ReplicaAddress, key: bytes | None = None) -> None:
        self.address, self._key = address, key
        self.status = "unknown"
        self.models: dict[str, Told] = {}
        self.joined: float | None = None
        self.differs: tuple[str, ...] = ()
        self._open: set[Exchange] = set()
        self._misses = 0
        self._doubted = asyncio.Event()

    @property
    def name(self) -> str:
        return self.address.netloc

    @property
    def outstanding(self) -> int:
        """Requests that it is at work on for this router."""
        return len(self._open)

    def serves(self, model: str | None, first: str | None) -> bool:
        """True if it has the model. A request without a model means the router's first, which must
        be its own first."""
        return model in self.models if model else next(iter(self.models), None) == first

    @property
    def key(self) -> Headers:
        """The headers that open it."""
        return () if self._key is None else ((b"authorization", b"Bearer " + self._key),)

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Exchange]:
        """An exchange that counts as outstanding; closed where an error comes out of the block,
        else by `done`."""
        exchange = Exchange(self.address)
        self._open.add(exchange)
        try:
            yield exchange
        except BaseException:
            self.done(exchange)
            raise

    def done(self, exchange: Exchange) -> None:
        exchange.close()
        self._open.discard(exchange)

    def doubt(self) -> None:
        """Something broke: the next look is now."""
        self._doubted.set()

    async def pause(self) -> None:
        """Until the next look is due."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._doubted.wait(), CHECK_SECONDS)
        self._doubted.clear()

    async def look(self) -> None:
        """Updates its status. If it is lost, its open exchanges are closed: nothing else ends a
        connection to a machine without power."""
        before = self.status
        try:
            async with asyncio.timeout(PATIENCE):
                self.status = await self._health()
            self._misses = 0
        except TimeoutError:
            self._misses += 1
            if self._misses >= MISSES:
                self.status = "silent"
                for exchange in list(self._open):
                    exchange.close()
        except (Broken, msgspec.DecodeError, UnicodeDecodeError):
            self.status, self._misses = "down", 0
        if self.status != before:
            level = logging.INFO if self.status == "up" else logging.WARNING
            _log.log(level, "replica %s is %s", self.name, self.status)

    async def _health(self) -> str:
        status, said = await self.get(b"/health")
        if status == 401:
            return "refuses"
        if status != 200:
            told = msgspec.json.decode(said, type=dict)
            return told["status"] if told.get("status") in ("leaving", "failed") else "failed"
        _, said = await self.get(b"/v1/models")
        found = msgspec.json.decode(said, type=_Models)
        self.models = {str(model.get("id")): model for model in found.data}
        return "up"

    async def get(self, target: bytes) -> tuple[int, bytes]:
        """Status and body of what it says of itself. Raises Broken."""
        exchange = Exchange(self.address)
        try:
            await exchange.ask("GET", target, self.key)
            body = bytearray()
            while part := await exchange.read():
                body += part
                if len(body) > MAX_REPLY:
                    raise Broken(f"{self.name}: {target.decode()} does not end")
            return exchange.status, bytes(body)
        finally:
            exchange.close()

    def told(self) -> dict[str, Any]:
        """The entry for it in the router's /health."""
        status = "differs" if self.status == "up" and self.joined is None else self.status
        models = {name: told.get("fingerprint") for name, told in self.models.items()}
        made = {"status": status, "outstanding": self.outstanding, "models": models}
        return made | ({"differs": list(self.differs)} if self.differs else {})


class _Models(msgspec.Struct):
    data: list[Told]
