"""The server's OpenAPI 3.1 description, made of its routes and the types of their bodies.

python -m weft.serve.openapi > docs/openapi.json
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import weft
from weft.serve.wire import MAX_BODY, json_response

_REF = "#/components/schemas/{name}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_REFUSALS = {
    "400": "A field is wrong: its name is in error.param.",
    "401": "The key is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body did not come in time.",
    "413": f"The body has more than {MAX_BODY} bytes.",
    "421": "The server does not answer to that Host.",
    "429": "Too many wait; Retry-After says when to come back.",
    "500": "The model or the server failed.",
    "503": "The device, the memory or the server is not there now.",
}


def description() -> dict[str, Any]:
    """The whole document."""
    from weft.serve.app import routes

    found = routes()
    bodies = [r.body for r in found if r.body is not None]
    schemas, parts = msgspec.json.schema_components(bodies, ref_template=_REF)
    by_type: dict[type | None, Any] = dict(zip(bodies, schemas))
    paths: dict[str, Any] = {}
    for r in found:
        path = re.sub(r":path\}", "}", r.path)
        for method in sorted((r.methods or set()) - {"HEAD"}):
            operation = _operation(r.summary, path, by_type.get(r.body))
            paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "weft serve", "version": weft.__version__,
            "description": "Answers are functions of model, request and seed. A field is honoured, "
            "known and without effect here, or refused by name.",
        },
        "paths": paths,
        "components": {
            "schemas": {**parts, "Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }  # fmt: skip


def _operation(summary: str, path: str, body: Any) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    made: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": "As asked."}}
        | {status: {"description": text, "content": error} for status, text in _REFUSALS.items()},
    }
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return made


async def openapi(request: Request) -> Response:
    """GET /openapi.json."""
    return json_response(description())


if __name__ == "__main__":
    print(json.dumps(description(), indent=1))
