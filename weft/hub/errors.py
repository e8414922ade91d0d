"""Error messages for failures between a hub and this machine, with the remedy."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.core.errors import HubError, WeftError
from weft.core.text import visible
from weft.hub.names import Name

_LOGIN = "hf auth login, or HF_TOKEN"
_SAYS = "X-Error-Code"


@contextmanager
def explained(name: Name, file: str = "") -> Iterator[None]:
    """Turns errors of huggingface_hub into HubErrors that name the request and the remedy; errors
    of the system pass through. Hides huggingface_hub's logs and warnings."""
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except WeftError:
        raise
    except Exception as error:
        # If a file could not be looked up, the cause has the reason.
        cause = error.__cause__ if type(error).__name__ == "LocalEntryNotFoundError" else None
        reason = cause if isinstance(cause, Exception) else error
        if isinstance(reason, OSError) and reason.errno is not None:
            raise
        raise HubError(_line(name, file, reason)) from None
    finally:
        log.setLevel(level)


def _line(name: Name, file: str, error: Exception) -> str:
    """Returns the message for an error of huggingface_hub or of the library below it."""
    from huggingface_hub import errors

    what = f"{name}: {file}" if file else str(name)
    hub = os.environ.get("HF_ENDPOINT") or "huggingface.co"
    response = getattr(error, "response", None)
    # The class of its HTTP library, which has had several names.
    unreached: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
    if (there := _sent_on(name, error)) and isinstance(error, unreached):
        how = f"failed ({_short(error)})"
        if response is not None:
            how = f"answered {response.status_code}"
        return f"{what}: {hub} sent us on to {there}, which {how}; try again later"
    if isinstance(error, errors.HfHubHTTPError) and response is not None:
        return _refused(name, what, hub, response.status_code, response.headers.get(_SAYS, ""))
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{what}: huggingface_hub is set to be offline, and the cache lacks it"
    if isinstance(error, unreached):
        return (
            f"{what}: {hub} cannot be reached ({_short(error)})\n"
            "a model that is not in the cache takes a network; a path of this machine takes none"
        )
    if isinstance(error, OSError) and "Consistency check failed" in str(error):
        return f"{what}: the hub sent another number of bytes than it said; try again"
    if isinstance(error, (KeyError, TypeError, AttributeError)):
        return f"{what}: {hub} gave an answer that is none of a model hub's ({_short(error)})"
    return f"{what}: cannot be fetched: {_short(error)}"


def _sent_on(name: Name, error: Exception) -> str:
    """Returns the host that the hub redirected to, if the redirect failed; else ""."""
    try:
        response = getattr(error, "response", None)
        asked: Any = error if response is None else response
        url = asked.request.url
        place, path = str(url), str(url.path)
        host = str(url.host)
    except (AttributeError, RuntimeError):  # no request was sent
        return ""
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    own = place.startswith(hub.rstrip("/") + "/") and f"/{name.repo}/" in f"{path}/"
    return "" if own else visible(host[:100])


def _refused(name: Name, what: str, hub: str, status: int, code: str) -> str:
    """Returns the message for an HTTP error."""
    if code == "RevisionNotFound":
        return f"{name.repo} has no revision {name.revision}; its page lists branches and tags"
    if code == "EntryNotFound":
        return f"{what} is not there, though the hub lists it; try again"
    if code == "GatedRepo" and status == 401:
        return f"{name.repo} is gated: accept its terms on its page, then log in ({_LOGIN})"
    if code == "GatedRepo" or status == 403:
        return (
            f"{name.repo} is not open to you: accept its terms on its page, and use a token that "
            f"may read it ({_LOGIN})"
        )
    if status in (401, 404):
        return (
            f"{name.repo} is no path here, and {hub} has no such model, or a private one\n"
            f"check the spelling; for a private model log in ({_LOGIN})"
        )
    if status == 429:
        return f"{what}: {hub} takes no more requests for now; wait a minute, or log in ({_LOGIN})"
    return f"{what}: {hub} answered {status}; try again later"


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines[0] else type(error).__name__
