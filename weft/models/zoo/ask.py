"""Asks the tracing process for a model's form, or finds it where an earlier process kept it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from weft.core import install
from weft.core.errors import ModelError
from weft.core.text import shown
from weft.core.versions import stamp
from weft.host import cache
from weft.host.confined import ChildError, Confined, Limits, Stopped

NEEDS = ("torch", "transformers")
LIMITS = Limits(seconds=600.0, memory=16 << 30, reply=256 << 20)


def traced_form(
    where: str, config: Mapping[str, Any], names: Mapping[str, tuple[int, ...]], whole: bool = False
) -> dict[str, Any]:
    """Returns the form (`form`) of the model that config.json describes, for a checkpoint of
    tensors `names`; with `whole` it reads whole texts. Raises ModelError where transformers is
    missing, does not know the model, or computes what the engine does not."""
    kind = str(config.get("model_type"))[:80]
    versions = _versions(where, kind)
    request: dict[str, Any] = {"config": dict(config), "whole": whole}
    request["names"] = {n: list(s) for n, s in names.items()}
    key = _key(request, versions)
    kept = cache.programs().get(key)
    if kept is not None:
        found: dict[str, Any] = json.loads(kept)
        return found
    made = _asked(where, kind, request)["traced"]
    cache.programs().put(key, json.dumps(made).encode())
    return dict(made)


def check_type(where: str, kind: str) -> None:
    """Raises ModelError unless transformers has causal models of this type."""
    _versions(where, kind)
    _asked(where, kind, {"type": kind})


def _versions(where: str, kind: str) -> dict[str, str]:
    versions = {name: _version(name) for name in NEEDS}
    missing = [name for name, version in versions.items() if not version]
    if missing:
        raise ModelError(
            f"{where}: architecture {shown(kind)} is not supported by weft itself, and without "
            f"{' and '.join(missing)} its code cannot be traced: {install.how('zoo')}"
        )
    return versions


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _key(request: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    text = json.dumps([request, versions, stamp("traces")], sort_keys=True)
    return f"traced-{hashlib.sha256(text.encode()).hexdigest()}"


def _asked(where: str, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
    child = Confined(Path(__file__).with_name("worker.py"), (*NEEDS, "weft"), {}, LIMITS)
    try:
        answer = child.call(request, LIMITS)
    except (Stopped, ChildError) as error:
        raise ModelError(f"{where}: tracing {kind!r} by transformers {error}") from None
    finally:
        child.close()
    if "refused" in answer:
        raise refusal(where, kind, answer)
    return dict(answer)


def refusal(where: str, kind: str, answer: Mapping[str, Any]) -> ModelError:
    """Returns the error for an answer {"refused": the reason}; "recomputes" is True for a model
    that can read whole texts."""
    more = '; cache="none" recomputes the whole text for each token' * ("recomputes" in answer)
    said = f"{where}: architecture {shown(kind)} is not supported: {answer['refused']}{more}"
    return ModelError(said)
