"""The replies of every generating route: in one piece, or as a stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from weft.serve import errors
from weft.serve.chatting import Turn, prompt_of
from weft.serve.choices import Choice
from weft.serve.served import Served, ServedDecoder
from weft.serve.shelf import ModelShelf
from weft.serve.wire import HttpError, Streamed, event, json_response, while_there


class ReplyWriter:
    """Turns the pieces of `choices` into a protocol's words. `media` and `ping` are a stream's."""

    choices: Sequence[Choice]
    media = "text/event-stream"
    ping = b": \n\n"

    async def whole(self) -> Mapping[str, Any]:
        """The whole answer as JSON."""
        raise NotImplementedError

    def parts(self) -> AsyncIterator[bytes]:
        """The answer as a stream."""
        raise NotImplementedError

    def failed(self, error: HttpError) -> bytes:
        """The last bytes of a stream that breaks off: its error."""
        return event(errors.openai(error))


async def reply(
    request: Request,
    name: str | None,
    start: Callable[[ServedDecoder], Awaitable[ReplyWriter]],
    stream: bool,
    keep: float | None = None,
) -> Response:
    """The response of the writer that `start` makes for the model called `name`, which stays
    loaded until it is sent (`keep`: see ModelShelf.use). A client that leaves ends its answers.
    Raises HttpError."""
    shelf: ModelShelf = request.app.state.shelf
    async with contextlib.AsyncExitStack() as stack:

        async def begun() -> ReplyWriter:
            return await start(decoder(await stack.enter_async_context(shelf.use(name, keep))))

        writer = await while_there(request, begun())
        if not stream:
            return json_response(await while_there(request, writer.whole()))
        return Streamed(StreamParts(writer, stack.pop_all()), writer.media, writer.ping)
    raise AssertionError  # an exit stack swallows nothing


async def counted(request: Request, name: str | None, turn: Turn) -> int:
    """Counts the tokens in the prompt of a turn, for the model `name`. Raises HttpError."""
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(name) as model:
        return len((await while_there(request, prompt_of(decoder(model), turn)))[1])


def decoder(model: Served) -> ServedDecoder:
    """The model, if it writes. Raises HttpError."""
    if not isinstance(model, ServedDecoder):
        raise HttpError(400, f"{model.name} does not write texts", "model")
    return model


class StreamParts:
    """The parts of a stream. `aclose`, which has to be called, ends its answers and lets the model
    go, also where nothing was taken yet (a generator's own would not begin, and so not end)."""

    def __init__(self, writer: ReplyWriter, held: contextlib.AsyncExitStack) -> None:
        self._writer, self._held, self._parts = writer, held, writer.parts()

    def __aiter__(self) -> StreamParts:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._parts)
        except HttpError as e:  # after which the generator has ended
            return self._writer.failed(e)

    async def aclose(self) -> None:
        """Ends the answers and lets the model go."""
        async with self._held:
            for choice in self._writer.choices:
                choice.close()
            await self._parts.aclose()  # type: ignore[attr-defined]
