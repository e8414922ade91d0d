"""Speech models behind the server: one thread runs the windows of all requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from weft.audio.sound import Sound, sound_of
from weft.core.errors import BusyError, DeviceError, FileFormatError, LimitError
from weft.models.run.listener import Listener
from weft.models.run.transcriber import Transcriber
from weft.models.run.transcript import Segment
from weft.serve.served import Served
from weft.serve.wire import HttpError

MAX_SECONDS = 4 * 3600  # of a sound
WAITING = 32  # sounds of one model at most
_log = logging.getLogger(__name__)


class ServedTranscriber(Served):
    """A model of speech."""

    model: Transcriber

    def __init__(self, name: str, model: Transcriber) -> None:
        model.need_tokenizer("writing text needs one")
        model.check()  # what is missing is an error now, not at the first request
        super().__init__(name, model)
        self._open = 0
        self._thread = _Thread(name, model)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and of what is kept for the sounds at once."""
        return super().nbytes + self.model.cache_bytes

    @contextlib.asynccontextmanager
    async def listening(
        self, file: BinaryIO, where: str, options: Mapping[str, Any]
    ) -> AsyncIterator[Listener]:
        """The listener of an uploaded file, whose features are made in turns with others'. Raises
        HttpError for what is no sound, LimitError for more than MAX_SECONDS, BusyError."""
        if self._open >= WAITING:
            raise BusyError(f"{self._open} sounds wait for {self.name}; try again later")
        left = threading.Event()

        def made() -> Listener:
            return self.model.listen(_watched(sound_of(file, where), left), **options)

        self._open += 1
        try:
            listener = await self.pools.sounds.run(made, stop=lambda thread: left.set())
            try:
                yield listener
            finally:
                self._thread.leave(listener)
        except FileFormatError as error:
            raise HttpError(400, str(error), "file") from None
        finally:
            self._open -= 1

    async def segments(self, listener: Listener) -> AsyncIterator[Segment]:
        """The segments as they are found. Raises the listener's error, or DeviceError."""
        news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._thread.hear(listener, lambda: loop.call_soon_threadsafe(news.set))
        while True:
            over = listener.done  # read first: what came before it is taken below
            while listener.ready:
                yield listener.ready.popleft()
            if listener.error is not None:
                raise listener.error
            if over:
                return
            await news.wait()
            news.clear()

    def warm(self) -> None:
        """Runs each kind of step once, so that requests find compiled Programs."""
        self.model.warm()

    async def close(self) -> None:
        """Ends what is heard and frees the model."""
        await asyncio.to_thread(self._thread.close)
        await super().close()


def _watched(sound: Sound, left: threading.Event) -> Sound:
    """A sound that ends with an error where the client has left, or after MAX_SECONDS."""

    def blocks() -> Iterator[np.ndarray]:
        count = 0
        for block in sound.blocks():
            count += len(block)
            if left.is_set():
                raise LimitError("the client has left")
            if count > MAX_SECONDS * sound.rate:
                hours = MAX_SECONDS // 3600
                raise LimitError(f"the sound is longer than {hours} hours: send parts of it")
            yield block

    return Sound(sound.where, sound.rate, blocks)


class _Thread:
    """Plays a model's sounds until closed."""

    def __init__(self, name: str, model: Transcriber) -> None:
        self._name, self._model = name, model
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tell: dict[Listener, Callable[[], object]] = {}
        self._thread = threading.Thread(target=self._run, name=f"weft-{name}", daemon=True)
        self._thread.start()

    def hear(self, listener: Listener, tell: Callable[[], object]) -> None:
        """Begins a listener; `tell` is called when it has something new."""

        def begin() -> None:
            self._tell[listener] = tell
            self._model.hearing.add(listener)

        self._orders.put(begin)

    def leave(self, listener: Listener) -> None:
        """Ends a listener, whether it has started or not."""

        def end() -> None:
            self._model.hearing.remove(listener)
            self._tell.pop(listener, None)
            listener.close()

        if self._thread.is_alive():
            self._orders.put(end)

    def close(self) -> None:
        """Ends all listeners and the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        hearing = self._model.hearing
        while True:
            try:
                while not hearing.busy or not self._orders.empty():
                    order = self._orders.get()
                    if order is None:
                        self._end_all(DeviceError(f"the server lets {self._name} go"))
                        return
                    order()
                hearing.turn()
            except Exception as error:  # what fails in a turn belongs to no single sound
                _log.exception("hearing with %s failed", self._name)
                self._end_all(error)
            for listener in [k for k in self._tell if k.done]:
                hearing.remove(listener)
            for listener, tell in self._tell.items():
                if listener.ready or listener.done:
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        tell()

    def _end_all(self, error: Exception) -> None:
        for listener, tell in self._tell.items():
            self._model.hearing.remove(listener)
            listener.error, listener.done = listener.error or error, True
            with contextlib.suppress(RuntimeError):
                tell()
