"""Errors in a request's JSON, in JSON's words: the field, what it is, what was expected.

msgspec's own messages name Python's types, and they do not list the choices of a field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

_KINDS = {
    "bool": "a boolean", "int": "an integer", "float": "a number", "str": "a string",
    "array": "an array", "object": "an object", "null": "null",
}  # fmt: skip
_FIELD = re.compile(r"Object (?:(missing required)|contains unknown) field `(.*)`", re.S)
_GOT = re.compile(r"got `(\w+)`")
_VALUE = re.compile(r"Invalid (?:enum )?value (.*)", re.S)
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")


def mistake_in(error: msgspec.ValidationError, kind: Any, where: str = "") -> tuple[str, str]:
    """Returns the wrong field ("": the whole) of JSON that does not fit `kind`, a type of
    msgspec's, and the words for it. `where`: the place of this JSON in the request."""
    said, _, at = str(error).partition(" - at ")
    path = at.rpartition("`$")[2].removesuffix("`")
    if (named := _FIELD.match(said)) is not None:
        field = f"{where}{path}.{named[2]}".lstrip(".")
        return field, f"{field} is " + ("missing" if named[1] else "not a known field")
    types = [_type_of(kind)]
    for field, _ in _STEP.findall(path):
        types = [*_inside(types, field)]
    field = f"{where}{path}".lstrip(".")
    name = field or "the body"
    if at.startswith("`key`"):
        types, name = [one.key_type for one in _all(types, inspect.DictType)], f"a name in {name}"
    found = _found(said)
    told = f"{name} is {found}; expected " if found else f"{name}: expected "
    return field, told + _listed(_expected(types))


_type_of = lru_cache(64)(inspect.type_info)


def _found(said: str) -> str:
    """The value or its kind, as far as msgspec tells it."""
    if (value := _VALUE.match(said)) is not None:
        return f"{value[1]:.100}".replace("True", "true").replace("False", "false")
    got = _GOT.search(said)
    return "" if got is None else _KINDS.get(got[1], got[1])


def _all(types: Iterable[Any], kind: Any) -> Iterable[Any]:
    """The types of a kind, those in unions too."""
    for one in types:
        yield from (
            _all(one.types, kind)
            if isinstance(one, inspect.UnionType)
            else ([one] if isinstance(one, kind) else [])
        )


def _inside(types: Sequence[Any], field: str) -> Iterable[Any]:
    """The types of a field of these, or with "" of their items."""
    if not field:
        for one in _all(types, inspect.Type):
            if isinstance(one, inspect.DictType):
                yield one.value_type
            elif isinstance(one, inspect.TupleType):
                yield from one.item_types
            elif hasattr(one, "item_type"):
                yield one.item_type
        return
    for one in _all(types, inspect.StructType):
        if field == one.tag_field:
            yield inspect.LiteralType((one.tag,))
        yield from (each.type for each in one.fields if each.encode_name == field)


def _expected(types: Iterable[Any]) -> list[str]:
    """Returns the values of these types in words; null only if there is nothing else."""
    found, choices = [], []
    for one in _all(types, inspect.Type):
        if isinstance(one, inspect.LiteralType):
            choices += [json.dumps(value) for value in one.values]
        else:
            found.append(_words(one))
    words = [*dict.fromkeys([*choices, *found])]
    return [word for word in words if word != "null"] or ["null"]


def _words(one: Any) -> str:
    if isinstance(one, inspect.IntType | inspect.FloatType):
        kind = "an integer" if isinstance(one, inspect.IntType) else "a number"
        if one.ge is not None and one.le is not None:
            return f"{kind} from {one.ge} to {one.le}"
        least = "" if one.ge is None else f" of {one.ge} or more"
        return kind + (least if one.le is None else f" of {one.le} or less")
    if isinstance(one, inspect.StrType):
        return "a string" + _sizes(one, "characters")
    if isinstance(one, inspect.BoolType):
        return "true or false"
    if isinstance(one, inspect.NoneType):
        return "null"
    if isinstance(one, inspect.TupleType):
        return f"an array of {len(one.item_types)}"
    if hasattr(one, "item_type"):
        inner = _expected([one.item_type])
        plain = inner[0].split(" ")[-1] if len(inner) == 1 and " of " not in inner[0] else ""
        return (f"an array of {plain}s" if plain in ("string", "integer", "number", "object")
                else "an array") + _sizes(one, "items")  # fmt: skip
    return "any value" if isinstance(one, inspect.AnyType) else "an object"


def _sizes(one: Any, what: str) -> str:
    least, most = one.min_length or 0, one.max_length
    if not least and most is None:
        return ""
    joined = " with " if what == "items" else " of "
    if most is None:
        return f"{joined}{least} {what} or more"
    return f"{joined}{least} to {most} {what}" if least else f"{joined}at most {most} {what}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
