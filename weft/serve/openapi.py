"""The server's OpenAPI 3.1 description, generated from its routes and the types of their bodies.

python -m weft.serve.openapi > docs/openapi.json
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import weft
from weft.serve import errors
from weft.serve.running import HEADER_BYTES
from weft.serve.wire import MAX_BODY, json_response

if TYPE_CHECKING:
    from weft.serve.routing import Described

_REF = "#/components/schemas/{name}"
_TEXT, _TEXT_OR_NULL = {"type": "string"}, {"type": ["string", "null"]}


def _object(required: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of an object."""
    properties = {**required, **more}
    return {"type": "object", "required": list(required), "properties": properties}


_ERRORS = {
    errors.openai: _object({"error": _object(
        {"message": _TEXT, "type": _TEXT}, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL
    )}),
    errors.anthropic: _object({"type": {"const": "error"}, "error": _object(
        {"type": _TEXT, "message": _TEXT}, details={"type": "object"}
    )}),
    errors.ollama: _object({"error": _TEXT}),
}  # fmt: skip
"""The schema of each form of an error."""
_REFUSALS = {
    "400": "A field is wrong; the error names it.",
    "401": "The key is missing or wrong.",
    "403": "A page of another origin asks.",
    "404": "There is no such model.",
    "405": "The route is asked by another method.",
    "408": "The body did not come in time.",
    "413": f"The body has more than {MAX_BODY} bytes.",
    "415": "The body has a Content-Encoding.",
    "421": "The server does not answer to that Host.",
    "431": f"The head has more than {HEADER_BYTES} bytes.",
    "429": "Too many wait; Retry-After says when to come back.",
    "500": "The model or the server failed.",
    "503": "The device, the memory or the server is not there now.",
}
_EVENT = {  # an event of a stream, whose data is JSON or [DONE]
    "type": "object",
    "required": ["data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}
_OF_BODIES = {"400", "408", "413", "415", "429", "503"}


def description() -> dict[str, Any]:
    """The whole document."""
    from weft.serve.app import routes

    found = routes()
    types = [t for r in found for t in (r.body, r.answer) if t is not None]
    schemas, parts = msgspec.json.schema_components(types, ref_template=_REF)
    for part in parts.values():  # lines of docstrings, which versions of msgspec indent or not
        if "description" in part:
            part["description"] = " ".join(part["description"].split())
    by_type: dict[type, Any] = dict(zip(types, schemas))
    paths: dict[str, Any] = {}
    for r in found:
        path = re.sub(r":path\}", "}", r.path)
        for method in sorted((r.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(r, path, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "weft serve", "version": weft.__version__,
            "description": "Answers are functions of model, request and seed. A field is honoured, "
            "known and without effect here, or refused by name.",
        },
        "paths": paths,
        "components": {
            "schemas": {**parts, **{_name(f): schema for f, schema in _ERRORS.items()}},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }  # fmt: skip


def _operation(route: Described, path: str, schemas: Mapping[type, Any]) -> dict[str, Any]:
    body = schemas.get(route.body) if route.body else None
    whole: dict[str, Any] = {"description": "As asked."}
    if route.answer is not None:
        whole["content"] = {"application/json": {"schema": schemas[route.answer]}}
    if route.body is not None and "stream" in getattr(route.body, "__struct_fields__", ()):
        lines = path.startswith("/api/")
        media = "application/x-ndjson" if lines else "text/event-stream"
        whole.setdefault("content", {})[media] = {"schema": {} if lines else _EVENT}
    made: dict[str, Any] = {
        "summary": route.summary,
        "responses": {"200": whole, **_refusals(path, body)},
    }
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if body is not None:
        made["requestBody"] = {"required": True, "content": {route.media: {"schema": body}}}
    return made


def _refusals(path: str, body: Any) -> dict[str, Any]:
    """The responses of a route besides 200. A route without a body has fewer."""
    error = {
        "application/json": {"schema": {"$ref": _REF.format(name=_name(errors.form_of(path)))}}
    }
    return {
        status: {"description": text, "content": error}
        for status, text in _REFUSALS.items()
        if body is not None or status not in _OF_BODIES
    }


def _name(form: errors.Form) -> str:
    if form is errors.openai:
        return "Error"
    return "AnthropicError" if form is errors.anthropic else "OllamaError"


async def openapi(request: Request) -> Response:
    """GET /openapi.json."""
    return json_response(description())


if __name__ == "__main__":
    print(json.dumps(description(), indent=1))
