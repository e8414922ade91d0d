"""Reads the settings files of a tokenizer.json, like transformers 5."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import ModelError
from weft.core.text import shown
from weft.importers.hf_config import MAX_CONFIG, read_object
from weft.models.text.tokenizer_fields import FIX, NAMED, OLDER_TOKENS, content_of

SETTINGS = "tokenizer_config.json"
_NAMES = "special_tokens_map.json"
_EXTRA, _EXTRA_BEFORE = "extra_special_tokens", "additional_special_tokens"
# Models whose tokenizers were converted with a wrong pattern, and the versions that did so.
_MISTRAL = (None, "mistral", "mistral3", "voxtral", "ministral", "pixtral")
_BEFORE_5 = re.compile(r"v?([0-4](?!\d)|5(\.0)*[-_.]?(a|b|c|rc|pre|dev))", re.IGNORECASE)


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns the fields of tokenizer_config.json, {} without the file.

    Two older files count if it has no `added_tokens_decoder`. The names in special_tokens_map.json
    take precedence over its own; the tokens of added_tokens.json are added under OLDER_TOKENS, by
    their ids. `fix_mistral_regex` is dropped for models that it does not change. Raises
    FileFormatError, ModelError.
    """
    found = _object(folder / SETTINGS)
    found.pop(OLDER_TOKENS, None)
    if found.get(FIX) and not _has_wrong_pattern(folder):
        del found[FIX]
    if _EXTRA_BEFORE in found and not found.get(_EXTRA):
        found[_EXTRA] = found.pop(_EXTRA_BEFORE)
    if "added_tokens_decoder" in found:
        return found
    for name, value in _object(folder / _NAMES).items():
        if name == _EXTRA and isinstance(value, list) and isinstance(found.get(name), list):
            have = found[name]
            value = [*have, *(v for v in value if v not in have)]
        found[name] = value
    older = _object(folder / OLDER_TOKENS)
    if older:
        found[OLDER_TOKENS] = _by_id(folder / OLDER_TOKENS, older, _special(found))
    return found


def _object(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _special(found: Mapping[str, Any]) -> set[str | None]:
    """Returns the texts of special tokens, except those that tokenizer_config.json writes as
    objects with a `__type`, which transformers adds only later."""
    extra = found.get(_EXTRA)
    values = [found.get(name) for name in NAMED] + (extra if isinstance(extra, list) else [])
    return {content_of(v) for v in values if not (isinstance(v, dict) and "__type" in v)}


def _by_id(path: Path, ids: Mapping[str, Any], special: set[str | None]) -> dict[str, Any]:
    """Returns the tokens of added_tokens.json in the form of `added_tokens_decoder`."""
    for token, number in ids.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            said = f"{token[:40]!r} has the id {shown(number, 40)}"
            raise ModelError(f"{path}: the token {said}; expected a whole number from 0")
    return {
        str(number): {"content": token, "special": token in special,
                      "normalized": token not in special}
        for token, number in ids.items()
    }  # fmt: skip


def _has_wrong_pattern(folder: Path) -> bool:
    """Returns True for a Mistral model written by a transformers before 5, according to its
    config.json."""
    path = folder / "config.json"
    if not path.exists():
        return False
    config = read_object(path, MAX_CONFIG)
    version = config.get("transformers_version")
    old = not version or (isinstance(version, str) and _BEFORE_5.match(version) is not None)
    return old and config.get("model_type") in _MISTRAL
