"""POST /api/create and /api/copy, DELETE /api/delete: models made of served ones."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import UsageError
from weft.serve.ollama.chat import named
from weft.serve.ollama.modelfile import read_modelfile
from weft.serve.recipes import MAX_RECIPES, Recipe, RecipeFolder, RecipeMessage
from weft.serve.shelf import ModelShelf
from weft.serve.wire import HttpError, Streamed, json_response, read

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_NAME = re.compile(rf"(?:{_PART}/)?{_PART}(?::{_PART})?")


class Create(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /api/create. `from` is the name of a served model. `template` is a Go template.
    `modelfile` holds the same fields as a Modelfile does. `files`, `adapters` and `quantize` are
    refused: the server takes no weights."""

    model: str | None = None
    name: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    modelfile: str | None = None
    system: str | None = None
    template: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None
    messages: Annotated[list[RecipeMessage], Meta(max_length=1000)] | None = None
    stream: bool | None = None
    files: Any = None
    adapters: Any = None
    quantize: Any = None
    quantization: Any = None

    def refuse(self) -> None:
        """Raises HttpError for what the server does not do."""
        hints = {
            "files": "serve the file, or put it in --model-folder, and name it in from",
            "adapters": "serve the model with --adapter, and name the adapter in from",
            "quantize": "quantise the model first, and name the result in from",
            "quantization": "quantise the model first, and name the result in from",
        }
        for field, hint in hints.items():
            if getattr(self, field):
                raise HttpError(400, f"{field} is not supported: {hint}", field)


class Copied(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /api/copy."""

    source: str
    destination: str


class Delete(Struct, forbid_unknown_fields=True, kw_only=True):
    """DELETE /api/delete."""

    model: str | None = None
    name: str | None = None


async def create(request: Request) -> Response:
    """Makes a model of a served one: with a system prompt, parameters, a template, turns."""
    body = await read(request, Create)
    body.refuse()
    given = _fields(body)
    name, base = _new(given.pop("model", None)), given.pop("from", None)
    adapter = given.pop("adapter", None)
    shelf, folder = _kept(request)
    if base is None:
        raise HttpError(400, "name the served model that it is made of", "from")
    if adapter is not None:
        base = _adapter(request, shelf, adapter, base)
    recipe = _recipe(request, shelf, name, base, given)
    _add(shelf, folder, recipe)
    if body.stream is False:
        return json_response({"status": "success"})

    async def told() -> AsyncIterator[bytes]:
        for status in (f"using {recipe.base}", "writing manifest", "success"):
            yield msgspec.json.encode({"status": status}) + b"\n"

    return Streamed(told(), "application/x-ndjson", b"")


async def copied(request: Request) -> Response:
    """Gives a model another name too."""
    body = await read(request, Copied)
    shelf, folder = _kept(request)
    _add(shelf, folder, _recipe(request, shelf, _new(body.destination), body.source, {}))
    return Response(status_code=200)


async def deleted(request: Request) -> Response:
    """Removes a model that was made here. Others come and go on the command line."""
    body = await read(request, Delete)
    shelf, folder = _kept(request)
    name = named(request, body.model or body.name or "")
    if name not in shelf.recipes:
        known = name in shelf.paths
        why = "was not made by a request" if known else "is not here"
        raise HttpError(400 if known else 404, f"the model {name!r:.100} {why}", "model")
    folder.drop(name)
    shelf.forget(name)
    return Response(status_code=200)


def _fields(body: Create) -> dict[str, Any]:
    """The description of the model, from the body's fields and its Modelfile."""
    try:
        made = read_modelfile(body.modelfile or "")
    except UsageError as e:
        raise HttpError(400, str(e), "modelfile") from None
    own = {
        "model": body.model or body.name, "from": body.from_, "system": body.system,
        "template": body.template, "messages": body.messages,
        "license": [body.license] if isinstance(body.license, str) else body.license,
    }  # fmt: skip
    made |= {name: value for name, value in own.items() if value is not None}
    made["parameters"] = {**made.get("parameters", {}), **(body.parameters or {})}
    return made


def _recipe(
    request: Request, shelf: ModelShelf, name: str, base: str, given: dict[str, Any]
) -> Recipe:
    """The recipe of a new model; what is not given is as in the one that it is made of. Raises
    HttpError."""
    base = named(request, base)
    if base not in shelf.paths:
        known = ", ".join(shelf.paths)
        raise HttpError(404, f"unknown model {base!r:.100}; served: {known}", "from")
    if name in shelf.paths and name not in shelf.recipes:
        raise HttpError(400, f"{name!r} is a model of the server itself; choose another", "model")
    old = shelf.recipes.get(base)
    fields = {} if old is None else msgspec.structs.asdict(old)
    own = fields.get("parameters", {}) | given.pop("parameters", {})
    fields |= {"name": name, "base": base if old is None else old.base, **given, "parameters": own}
    made = Recipe(**fields)
    try:
        made.check()
    except UsageError as e:
        raise HttpError(400, str(e), "template") from None
    return made


def _adapter(request: Request, shelf: ModelShelf, adapter: str, base: str) -> str:
    """The name of a served adapter of the model `base`. Raises HttpError."""
    name, base = named(request, adapter), named(request, base)
    if shelf.parents.get(name) != base:
        known = ", ".join(a for a, parent in shelf.parents.items() if parent == base) or "none"
        raise HttpError(400, f"ADAPTER is {adapter!r:.100}; expected a served adapter of {base}, "
                        f"by its name: {known}", "modelfile")  # fmt: skip
    return name


def _new(name: str | None) -> str:
    """A name for a model. Raises HttpError."""
    name = (name or "").removesuffix(":latest")
    if not _NAME.fullmatch(name):
        raise HttpError(400, f"the name is {name[:100]!r}; expected letters, digits, '.', '_' and "
                        "'-', like mario or me/mario:small", "model")  # fmt: skip
    return name


def _kept(request: Request) -> tuple[ModelShelf, RecipeFolder]:
    """The models, and the folder of those that are made. Raises HttpError without one."""
    shelf: ModelShelf = request.app.state.shelf
    if shelf.folder is None:
        raise HttpError(404, "this server keeps no models that requests make; start it with "
                        "--model-folder DIR")  # fmt: skip
    return shelf, shelf.folder


def _add(shelf: ModelShelf, folder: RecipeFolder, recipe: Recipe) -> None:
    if len(shelf.recipes) >= MAX_RECIPES and recipe.name not in shelf.recipes:
        raise HttpError(400, f"{MAX_RECIPES} models were made; delete one first", "model")
    folder.write(recipe)
    shelf.add(recipe)
