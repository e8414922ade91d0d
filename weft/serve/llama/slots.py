"""GET /slots and POST /slots/{id}: a slot's last conversation, kept on a disk and read again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import WeftError
from weft.engine.kept_cache import KeptCache, put_in, take_out
from weft.serve.guard import key_of
from weft.serve.replies import decoder
from weft.serve.served import ServedDecoder
from weft.serve.sessions import SessionFolder
from weft.serve.shelf import ModelShelf
from weft.serve.wire import HttpError, json_response, read, refusal, unkept

_log = logging.getLogger(__name__)


class SlotFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /slots/{id}?action=save, restore or erase. filename: a plain name; erase needs none."""

    filename: str | None = None


async def slots(request: Request) -> Response:
    """The slots, and how many tokens of the caller's last conversation each has."""
    shelf: ModelShelf = request.app.state.shelf
    _folder(shelf)
    async with shelf.use(request.query_params.get("model")) as served:
        model, salt = decoder(served), key_of(request.scope)
        return json_response([
            {"id": i, "n_ctx": model.model.context, "n_tokens": len(model.slots.tokens(salt, i))}
            for i in range(model.runner.slots)
        ])  # fmt: skip


async def slot(request: Request) -> Response:
    """Saves, restores or erases a slot's conversation."""
    empty = request.headers.get("content-length", "0") == "0"  # as llama-server's clients erase
    chunked = "transfer-encoding" in request.headers
    body = SlotFile() if empty and not chunked else await read(request, SlotFile)
    shelf: ModelShelf = request.app.state.shelf
    folder, salt, began = _folder(shelf), key_of(request.scope), time.monotonic()
    action = request.query_params.get("action")
    if action not in ("save", "restore", "erase"):
        raise HttpError(400, f"action is {str(action)[:40]!r}; expected save, restore or erase",
                        "action")  # fmt: skip
    async with shelf.use(request.query_params.get("model")) as served:
        model = decoder(served)
        number = _number(request, model)
        made: dict[str, Any] = {"id_slot": number}
        if action == "erase":
            made["n_erased"] = len(model.slots.tokens(salt, number))
            model.slots.forget(salt, number)
            return json_response(made)
        path = folder.path(salt, body.filename or "")
        made["filename"] = body.filename
        try:
            if action == "save":
                tokens = model.slots.tokens(salt, number)
                kept = await _between(model, lambda: take_out(model.engine, tokens, salt,
                                                              model.adapter))  # fmt: skip
                made["n_saved"] = len(kept.tokens)
                made["n_written"] = await asyncio.to_thread(
                    folder.write, path, model.print, model.runner.page, kept
                )
            else:
                form = await _between(model, lambda: take_out(model.engine, (), salt,
                                                               model.adapter))  # fmt: skip
                kept, made["n_read"] = await asyncio.to_thread(
                    folder.read, path, model.print, model.runner.page, model.model.context, form
                )
                vocab = model.model.config.vocab
                if not all(0 <= token < vocab for token in kept.tokens):
                    raise HttpError(400, "the session is damaged: its tokens", "filename")
                await _between(model, lambda: put_in(model.engine, kept, salt, model.adapter))
                model.slots.note(salt, number, [*kept.tokens])
                made["n_restored"] = len(kept.tokens)
        except WeftError as e:
            raise refusal(e) from None
        except OSError as e:
            _log.warning("a session cannot be kept: %s", e)
            raise unkept(e) from None
        made["timings"] = {f"{action}_ms": (time.monotonic() - began) * 1e3}
        return json_response(made)


async def _between(model: ServedDecoder, work: Any) -> KeptCache:
    """What `work` gives between two steps."""
    made: list[KeptCache] = []
    await model.player.between_steps(lambda: made.append(work()))
    return made[0]


def _folder(shelf: ModelShelf) -> SessionFolder:
    if shelf.sessions is None:
        raise HttpError(404, "this server keeps no slots; start it with --slot-save-path DIR")
    return shelf.sessions


def _number(request: Request, model: ServedDecoder) -> int:
    given, most = request.path_params["id"], model.runner.slots
    if not (given.isdecimal() and len(given) < 10 and int(given) < most):
        raise HttpError(404, f"there is no slot {given[:40]!r}; expected 0 to {most - 1}", "id")
    return int(given)
