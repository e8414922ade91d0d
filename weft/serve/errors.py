"""The forms in which the protocols say that a request is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from weft.serve.wire import HttpError, TooLong

Form = Callable[[HttpError], dict[str, Any]]
"""A protocol's JSON of a refusal."""

_OPENAI = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def openai(error: HttpError) -> dict[str, Any]:
    """{"error": {"message", "type", "param", "code"}}. For an over-long prompt the message begins
    with OpenAI's words, by which LiteLLM and other clients know it."""
    kind, said = _OPENAI.get(error.status, _kind(error)), error.message
    if isinstance(error, TooLong):
        said = f"This model's maximum context length is {error.context} tokens: {said}"
    told = {"message": said, "type": kind, "param": error.param, "code": error.code}
    return {"error": told}


def anthropic(error: HttpError) -> dict[str, Any]:
    """{"type": "error", "error": {"type", "message"}}, with "details" if the refusal has any; the
    message names the parameter. For an over-long prompt it uses Anthropic's exact wording, because
    clients match on it."""
    kind = _ANTHROPIC.get(error.status, _kind(error))
    said = _named(error)
    if isinstance(error, TooLong):
        said = f"prompt is too long: {error.tokens} tokens > {error.context} maximum"
    details = {} if error.details is None else {"details": error.details}
    return {"type": "error", "error": {"type": kind, "message": said, **details}}


def ollama(error: HttpError) -> dict[str, Any]:
    """{"error": message}; the message names the parameter."""
    return {"error": _named(error)}


def form_of(path: str) -> Form:
    """The form of the protocol that a path belongs to."""
    if path.startswith("/api/"):
        return ollama
    return anthropic if f"{path}/".startswith("/v1/messages/") else openai


def below(folder: str | None, error: Exception) -> str:
    """The words of an error about files in a folder of the server's (None: it has none). They are
    named from there on: clients learn no more of their place."""
    if folder is None:
        return str(error)
    return str(error).replace(f"{os.path.realpath(folder)}{os.sep}", "")


def _kind(error: HttpError) -> str:
    return "invalid_request_error" if error.status < 500 else "api_error"


def _named(error: HttpError) -> str:
    named = error.param is None or error.param in error.message
    return error.message if named else f"{error.param}: {error.message}"
