"""Adapters put in and taken out while the server runs, as vLLM has it: POST /v1/load_lora_adapter
and /v1/unload_lora_adapter.

Only adapters below a folder that the operator names can be loaded, and they are checked like those
that a server starts with.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from pathlib import Path

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import DeviceError, LimitError, WeftError
from weft.host.samples import files_digest
from weft.models.run.entry import MAX_NAME
from weft.serve.errors import below
from weft.serve.routing import Described, route
from weft.serve.served import ServedDecoder
from weft.serve.shelf import ModelShelf
from weft.serve.wire import HttpError, read, refusal

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)  # no two adapters of a process share cached keys and values


class LoadAdapter(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/load_lora_adapter. `lora_name` is what requests call the adapter, `lora_path` its
    place in the server's folder of adapters. `base_model_name`: the model that it adapts (default:
    the first)."""

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool | None = None

    def refuse(self) -> None:
        """Raises HttpError for what the server does not do."""
        if self.load_inplace:
            raise HttpError(400, "unload the adapter, then load the other", "load_inplace")


class UnloadAdapter(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/unload_lora_adapter. `lora_int_id` is inert."""

    lora_name: str
    lora_int_id: int | None = None


async def load_adapter(request: Request) -> Response:
    """Loads a LoRA adapter from the server's folder of adapters."""
    shelf: ModelShelf = request.app.state.shelf
    body = await read(request, LoadAdapter)
    body.refuse()
    folder = _folder(shelf)
    if body.base_model_name not in (None, shelf.first):
        said = f"adapters are of {shelf.first!r:.100} here"
        raise HttpError(400, said, "base_model_name")
    name = body.lora_name
    if not (name.strip() and len(name) <= MAX_NAME and name.isprintable()):
        said = f"expected 1 to {MAX_NAME} printable characters"
        raise HttpError(400, said, "lora_name")
    path = _within(folder, body.lora_path)
    async with shelf.adapting:
        if name in shelf.paths:
            raise HttpError(400, f"{name!r} is served already; unload it first", "lora_name")
        async with shelf.use(None) as model:
            await _put(model, name, path, folder, body.lora_path)
        shelf.paths[name], shelf.parents[name] = str(path), shelf.first
    return Response(f"Success: LoRA adapter '{name}' added successfully.", media_type="text/plain")


async def unload_adapter(request: Request) -> Response:
    """Unloads a LoRA adapter. Answers that run get their end."""
    shelf: ModelShelf = request.app.state.shelf
    name = (await read(request, UnloadAdapter)).lora_name
    _folder(shelf)
    async with shelf.adapting:
        if name not in shelf.parents:
            raise HttpError(404, f"no adapter is called {name!r:.100}", "lora_name")
        async with shelf.use(None) as model:
            assert isinstance(model, ServedDecoder)
            del shelf.paths[name], shelf.parents[name]
            model.adapted.remove(name)
    said = f"Success: LoRA adapter '{name}' removed successfully."
    return Response(said, media_type="text/plain")


async def _put(model: object, name: str, path: Path, folder: Path, given: str) -> None:
    slots = model.model.slots if isinstance(model, ServedDecoder) else None
    if slots is None or not isinstance(model, ServedDecoder):
        raise HttpError(400, "the first model takes no adapters", "base_model_name")
    try:
        arrays = await asyncio.to_thread(slots.read, name, path)
        digest = await asyncio.to_thread(files_digest, path)
        own = f"{name}\n{next(_numbers)}"
        await model.player.between_steps(lambda: slots.put(own, arrays))
    except (WeftError, OSError) as e:
        _log.warning("the adapter %r cannot be loaded: %s", name, e)
        raise _refused(e, folder, given) from None
    model.adapted.add(name, own, digest)


def _refused(error: Exception, folder: Path, given: str) -> HttpError:
    """The HttpError for an adapter that cannot be loaded, which is called as the client gave
    it."""
    if isinstance(error, DeviceError):
        return refusal(error)
    said = below(str(folder), error)
    if isinstance(error, LimitError):
        return HttpError(409, said, "lora_name")
    if not isinstance(error, WeftError):
        said = f"{given:.100}: cannot be read: {getattr(error, 'strerror', None)}"
    return HttpError(400, said, "lora_path")


def _folder(shelf: ModelShelf) -> Path:
    """The folder of adapters. Raises HttpError if the server has none."""
    if shelf.settings.adapter_folder is None:
        raise HttpError(
            404, "this server loads no adapters while it runs; start it with --adapter-folder DIR"
        )
    return Path(shelf.settings.adapter_folder)


def _within(folder: Path, given: str) -> Path:
    """The path of an adapter in the folder, which links do not leave. Raises HttpError."""
    try:
        root = os.path.realpath(folder)
        path = os.path.realpath(os.path.join(root, given))
        there = os.path.exists(path)
    except (ValueError, OSError):  # a zero byte, a name that is too long
        there, path, root = False, "", "/"
    # The same words for both: nobody learns what is elsewhere.
    if not there or os.path.commonpath([root, path]) != root or path == root:
        said = f"there is no adapter {given!r:.100} in the server's folder of adapters"
        raise HttpError(404, said, "lora_path")
    return Path(path)


def routes() -> list[Described]:
    """Those about adapters."""
    return [
        route("/v1/load_lora_adapter", load_adapter, LoadAdapter),
        route("/v1/unload_lora_adapter", unload_adapter, UnloadAdapter),
    ]
