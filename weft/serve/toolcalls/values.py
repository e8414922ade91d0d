"""Arguments that are not written as JSON, read when a call is whole, in linear time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64  # levels of lists and objects in an argument

Schemas = Mapping[str, Mapping[str, Any]]


def xml_arguments(text: str, tools: Schemas) -> tuple[str, str] | None:
    """(name, arguments as JSON) of <function=NAME><parameter=KEY>VALUE</parameter>...</function>;
    None for other texts."""
    head, found, rest = text.strip().partition(">")
    if not found or not head.startswith("<function=") or not head[10:].strip():
        return None
    name = head[10:].strip()
    whole = tools.get(name, {})
    properties = whole.get("properties")
    out: dict[str, Any] = {}
    at = 0
    while (begin := rest.find("<parameter=", at)) >= 0:
        key_end = rest.find(">", begin)
        if key_end < 0:
            return None
        end = rest.find("</parameter>", key_end)
        following = rest.find("<parameter=", key_end)
        if end < 0 or 0 <= following < end:  # left open
            end = following if following >= 0 else len(rest)
        key = rest[begin + 11 : key_end].strip()
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        schema = _defined(schema, whole)
        value = rest[key_end + 1 : end].removeprefix("\n").removesuffix("\n")
        out[key] = typed(value, schema)
        at = end
    return name, json.dumps(out, ensure_ascii=False)


def _defined(schema: object, whole: Mapping[str, Any]) -> object:
    """The definition in `whole` that a schema refers to; else the schema itself."""
    ref = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(ref, str):
        return schema
    _, _, rest = ref.partition("#/")
    part, _, name = rest.partition("/")
    known = whole.get(part) if part in ("$defs", "definitions") else None
    return known.get(name) if isinstance(known, Mapping) else None


def typed(text: str, schema: object) -> Any:
    """`text` as the kind of value that a schema names; as it is where it names none or does not
    fit."""
    for kind in kinds(schema):
        value = _as_kind(text, kind)
        if value is not None:
            return None if value is _NULL else value
    return text


_NULL = object()
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "object": (dict,), "array": (list,),
}  # fmt: skip


def _as_kind(text: str, kind: str) -> Any:
    if kind == "string":
        return text
    if kind == "null":
        return _NULL if text.strip() in ("null", "None") else None
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower())
    if len(text) > 1 << 20 or (kind in ("integer", "number") and len(text) > 400):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    expected = _TYPES.get(kind)
    fits = expected is not None and isinstance(value, expected) and not isinstance(value, bool)
    return value if fits else None


def kinds(schema: object) -> list[str]:
    """The types that a schema names, its own first, then those of its alternatives."""
    if not isinstance(schema, Mapping):
        return []
    own = schema.get("type")
    found = [own] if isinstance(own, str) else [k for k in own or () if isinstance(k, str)]
    for name in ("anyOf", "oneOf"):
        for inner in schema.get(name) or ():
            if isinstance(inner, Mapping):
                kind = inner.get("type")
                found += [kind] if isinstance(kind, str) else []
    if schema.get("nullable"):
        found.append("null")
    return [*(k for k in found if k != "string"), *(k for k in found if k == "string")]


def gemma_arguments(text: str, quote: str) -> tuple[str, str] | None:
    """(name, arguments as JSON) of call:NAME{key:value,...}, with texts between `quote`s and keys
    without them; None for other texts."""
    head, found, rest = text.strip().partition("{")
    name = head.strip().removeprefix("call:").strip()
    if not found or not head.strip().startswith("call:") or not name:
        return None
    reader = _Gemma("{" + rest, quote)
    try:
        value = reader.value(0)
    except ValueError:
        return None
    if reader.at != len(reader.text):
        return None
    return name, json.dumps(value, ensure_ascii=False)


class _Gemma:
    """Values as Gemma writes them. Raises ValueError for others."""

    def __init__(self, text: str, quote: str) -> None:
        self.text, self.quote, self.at = text, quote, 0

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError
        self._space()
        if self._take("{"):
            return self._object(depth)
        if self._take("["):
            return self._array(depth)
        for quote in (self.quote, '"'):
            if self._take(quote):
                end = self.text.find(quote, self.at)
                if end < 0:
                    raise ValueError
                found, self.at = self.text[self.at : end], end + len(quote)
                return found
        return self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while not self._closed("}"):
            self._space()
            end = self.text.find(":", self.at)
            if end < 0 or end - self.at > 1000:
                raise ValueError
            key = self.text[self.at : end].strip().strip('"').replace(self.quote, "")
            self.at = end + 1
            out[key] = self.value(depth + 1)
            self._comma("}")
        return out

    def _array(self, depth: int) -> list[Any]:
        out: list[Any] = []
        while not self._closed("]"):
            out.append(self.value(depth + 1))
            self._comma("]")
        return out

    def _word(self) -> Any:
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in ",}]":
            self.at += 1
        word = self.text[begin : self.at].strip()
        if not word or len(word) > 10_000:
            raise ValueError
        try:
            found = json.loads(word) if len(word) < 400 else word
        except (ValueError, RecursionError):
            return word
        return found if not isinstance(found, float) or math.isfinite(found) else word

    def _closed(self, bracket: str) -> bool:
        self._space()
        if self.at >= len(self.text):
            raise ValueError
        return self._take(bracket)

    def _comma(self, bracket: str) -> None:
        self._space()
        if not self._take(",") and not self.text.startswith(bracket, self.at):
            raise ValueError

    def _take(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
