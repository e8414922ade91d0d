"""Threads for the work of requests that belongs neither to an engine nor on the event loop: texts,
templates, grammars, vectors, sounds."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from weft.core.errors import BusyError

WAITING = 256  # requests of one pool at most

A = TypeVar("A")
B = TypeVar("B")
Stop = Callable[[int], None]
"""Ends what a thread, named by its `ident`, is at."""


class WorkPool:
    """Does the work of requests item by item: the turn goes round among the requests, and one whose
    client has left is forgotten, but for the item that is being done. Used on one event loop."""

    def __init__(self, name: str, threads: int = 1, waiting: int = WAITING) -> None:
        self.name, self.waiting = name, waiting
        self._threads = ThreadPoolExecutor(threads, f"weft-{name}")
        self._idle = threads
        self._turns: deque[_Work] = deque()  # requests with items that no thread has started
        self._open = 0

    async def each(
        self, function: Callable[[A], B], items: Sequence[A], stop: Stop | None = None
    ) -> list[B]:
        """Yields the result of `function` for each item. Raises the first error of one, whose
        further items are left out, and BusyError where too many requests are here. stop: what ends
        the item that a thread is at, where the client leaves meanwhile."""
        if not items:
            return []
        if self._open >= self.waiting:
            raise BusyError(f"{self._open} requests wait for {self.name}; try again later")
        work = _Work(function, items, asyncio.get_running_loop().create_future())
        self._open += 1
        self._turns.append(work)
        self._begin()
        try:
            made: list[B] = await work.done
            return made
        finally:
            self._open -= 1
            self._forget(work)
            if stop is not None:
                for thread in tuple(work.threads):
                    stop(thread)

    async def run(self, function: Callable[..., B], *args: Any, stop: Stop | None = None) -> B:
        """The result of `function`: work of one item."""
        (made,) = await self.each(lambda given: function(*given), [args], stop)
        return made

    def close(self) -> None:
        """Lets the threads go once what they are at is done."""
        self._turns.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Gives idle threads the next item of whose turn it is."""
        while self._idle and self._turns:
            work = self._turns.popleft()
            item, work.begun = work.begun, work.begun + 1
            if work.begun < len(work.items):
                self._turns.append(work)
            self._idle -= 1
            loop = work.done.get_loop()
            made = loop.run_in_executor(self._threads, work.do, item)
            made.add_done_callback(functools.partial(self._came, work, item))

    def _came(self, work: _Work, item: int, made: asyncio.Future[Any]) -> None:
        self._idle += 1
        error = None if made.cancelled() else made.exception()
        if not (made.cancelled() or work.done.done()):
            if error is not None:
                work.done.set_exception(error)
                self._forget(work)
            else:
                work.add(item, made.result())
        self._begin()

    def _forget(self, work: _Work) -> None:
        if work in self._turns:
            self._turns.remove(work)


class _Work:
    """The items of one request, and what came of them."""

    def __init__(
        self, function: Callable[[Any], Any], items: Sequence[Any], done: asyncio.Future[Any]
    ) -> None:
        self.function, self.items, self.done = function, items, done
        self.begun = 0
        self._made: list[Any] = [None] * len(items)
        self._left = len(items)
        self.threads: set[int] = set()  # the threads that work on one of the items

    def do(self, item: int) -> Any:
        self.threads.add(threading.get_ident())
        try:
            return self.function(self.items[item])
        finally:
            self.threads.discard(threading.get_ident())

    def add(self, item: int, made: Any) -> None:
        self._made[item] = made
        self._left -= 1
        if not self._left:
            self.done.set_result(self._made)


class Pools:
    """The pools for the work of a model's requests outside its engine."""

    def __init__(self) -> None:
        self.texts = WorkPool("tokens of texts", 2)
        self.long_texts = WorkPool("tokens of long texts")
        self.templates = WorkPool("the chat template")
        self.forms = WorkPool("known grammars", 2)
        self.grammars = WorkPool("new grammars")
        self.vectors = WorkPool("vectors of texts")
        self.sounds = WorkPool("features of sounds", 2)

    def close(self) -> None:
        """Closes all pools."""
        for pool in vars(self).values():
            pool.close()
