"""Schemas that references name: $ref, $anchor, $id and $dynamicRef of draft 2020-12.

`resolved` writes a document so that each reference is `#` or `#/$defs/NAME`. A schema that
$dynamicRef reaches in different ways is written once for each way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

from weft.core.errors import UsageError
from weft.models.grammar.schema_numbers import NUMBERS, Schema

ONE = (
    "additionalProperties", "items", "additionalItems", "not", "if", "then", "else", "contains",
    "propertyNames", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
MANY = ("prefixItems", "anyOf", "oneOf", "allOf", "items")  # lists of schemas
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
         "dependencies")  # fmt: skip
_NAMES = ("$id", "$anchor", "$dynamicAnchor", "$defs", "definitions")
_PLAIN = {
    "type", "enum", "const", "$ref", "$dynamicRef", "required", "dependentRequired",
    "minProperties", "maxProperties", "minItems", "maxItems", "minContains", "maxContains",
    "uniqueItems", "minLength", "maxLength", "pattern", "format",
}  # fmt: skip
INERT = {
    "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary", "title",
    "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "contentEncoding", "contentMediaType", "contentSchema", "markdownDescription",
    "propertyOrdering", "externalDocs", "xml", "discriminator", "errorMessage", "enumNames",
    "enumDescriptions", "strict", "name",
}  # fmt: skip
_KNOWN = {*ONE, *MANY, *NAMED, *NUMBERS, *_PLAIN, *INERT}
_ODD = re.compile(r"[^A-Za-z0-9_.-]")
_MOST = 20_000  # schemas that one document may become

Scope = tuple[str, ...]
"""The resources that lead to a schema, from the outermost on."""


def resolved(root: Schema) -> Schema:
    """A document with the meaning of `root`, whose references are all `#` or `#/$defs/NAME`.
    Raises UsageError for a reference to something that is not in the document."""
    return _Resolving(root).whole()


class _Resolving:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._base: dict[int, str] = {}  # the resource of a schema, by the schema's id()
        self._pointer: dict[int, str] = {}
        self._resources: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[tuple[str, str], Any] = {}
        self._index(root, "", "#")
        self._start = self._base[id(root)]
        self._defs: dict[str, Any] = {}
        self._names: dict[tuple[int, Scope], str] = {(id(root), (self._start,)): "#"}
        self._todo: list[tuple[str, Any, Scope, str]] = []
        self._left = _MOST

    def whole(self) -> Schema:
        made: Schema = self._copy(self._root, (self._start,), self._start)
        while self._todo:
            name, one, scope, base = self._todo.pop()
            self._defs[name] = self._copy(one, scope, base)
        return made | ({"$defs": self._defs} if self._defs else {})

    def _index(self, one: object, base: str, where: str) -> None:
        """Notes the resource and the anchors of each schema."""
        if not isinstance(one, Mapping) or id(one) in self._base:
            return
        own = one.get("$id")
        if isinstance(own, str):
            base = _joined(base, own).rstrip("#")
        if isinstance(own, str) or where == "#":
            self._resources[base] = one
        self._base[id(one)], self._pointer[id(one)] = base, where
        for key, found in (("$anchor", self._anchors), ("$dynamicAnchor", self._dynamic)):
            if isinstance(one.get(key), str):
                found.setdefault((base, one[key]), one)
        for key, _, inner in _inside(one):
            self._index(inner, base, f"{where}/{key}")

    def _copy(self, one: object, scope: Scope, base: str) -> Any:
        if not isinstance(one, Mapping):
            return one
        self._left -= 1
        if not self._left:
            raise UsageError(f"the references of the JSON schema lead to over {_MOST} schemas")
        base = self._base.get(id(one), base)
        scope = scope if base in scope else (*scope, base)
        made = _checked(one, self._pointer[id(one)])
        for key, name, inner in list(_inside(made)):
            copy = self._copy(inner, scope, base)
            if name is None:
                made[key.split("/")[0]] = copy
            else:
                outer = key.split("/")[0]
                if made[outer] is one.get(outer):
                    made[outer] = made[outer].copy()
                made[outer][name] = copy
        if "$dynamicRef" in made:
            ref = made.pop("$dynamicRef")
            found = {"$ref": self._named(ref, self._moving(ref, base, scope, one), scope, base)}
            made = made | found if "$ref" not in made else {**made, "allOf": [
                *made.get("allOf", ()), found]}  # fmt: skip
        if "$ref" in one:
            ref = one["$ref"]
            made["$ref"] = self._named(ref, self._found(ref, base, one), scope, base)
        return made

    def _named(self, ref: str, target: object, scope: Scope, base: str) -> str:
        """The new reference to a schema, which is written if it was not before."""
        if not isinstance(target, Mapping):
            name = self._free("yes" if target else "no")
            self._defs[name] = target
            return f"#/$defs/{name}"
        there = self._base[id(target)]
        scope = scope if there in scope else (*scope, there)
        key = id(target), scope if self._dynamic else scope[:1]
        if key not in self._names:
            name = self._free(self._pointer[id(target)].rsplit("/", 1)[-1])
            self._names[key] = f"#/$defs/{name}"
            self._defs[name] = {}
            self._todo.append((name, target, scope, there))
        return self._names[key]

    def _free(self, name: str) -> str:
        name = _ODD.sub("_", name) or "_"  # llguidance reads the reference as a URI
        while name in self._defs:
            name += "-"
        return name

    def _found(self, ref: object, base: str, holder: Mapping[str, Any]) -> Any:
        """The schema that a reference names."""
        if isinstance(ref, str):
            whole, _, inside = (base + ref if ref[:1] == "#" else _joined(base, ref)).partition("#")
            inside = unquote(inside)
            known = self._resources.get(whole)
            anchors = (self._anchors.get((whole, inside)), self._dynamic.get((whole, inside)))
            found = next((one for one in anchors if one is not None), None)
            if found is None and known is not None and (not inside or inside[0] == "/"):
                found = _followed(known, inside)
            if isinstance(found, bool) or id(found) in self._base:
                return found
        where = self._pointer.get(id(holder), "#")
        raise UsageError(f"{where}/$ref of the JSON schema is {str(ref)[:60]!r}, which is not "
                         "defined in it; define it in $defs")  # fmt: skip

    def _moving(self, ref: object, base: str, scope: Scope, holder: Mapping[str, Any]) -> Any:
        """The schema that $dynamicRef names: of the outermost resource with that anchor."""
        found = self._found(ref, base, holder)
        name = str(ref).partition("#")[2]
        if isinstance(found, Mapping) and found.get("$dynamicAnchor") == name:
            for outer in scope:
                if (outer, name) in self._dynamic:
                    return self._dynamic[outer, name]
        return found


def inert(keyword: object) -> bool:
    """True for keywords that change nothing of what a schema allows."""
    return keyword in INERT or str(keyword).startswith("x-")


def _checked(one: Mapping[str, Any], where: str) -> Schema:
    """A schema without its names, and draft 7's lists of `items` as draft 2020-12 has them. Raises
    UsageError for a keyword that is unknown, or that holds something else than schemas."""
    unknown = sorted(str(key) for key in one if key not in _KNOWN and not inert(key))
    if unknown:
        raise UsageError(f"{where} of the JSON schema has {', '.join(unknown)[:100]}, which is not "
                         "supported: leave it out, or say it otherwise")  # fmt: skip
    made = {key: value for key, value in one.items() if key not in _NAMES}
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        if "additionalItems" in made:
            made["items"] = made["additionalItems"]
    made.pop("additionalItems", None)
    for key, value in made.items():
        listed, named = key in MANY and key != "items", key in NAMED
        if listed and not isinstance(value, list):
            raise _expected(where, key, value, "a list")
        if (named or key == "dependentRequired") and not isinstance(value, Mapping):
            raise _expected(where, key, value, "an object")
        if key == "type" and not _types(value):
            raise _expected(where, key, value, "a type's name, or a list of them")
        inside = [value] if key in ONE else value if listed else value.values() if named else ()
        for inner in inside:
            fits = isinstance(inner, Mapping | bool) or key == "dependencies"
            if not fits:
                raise _expected(where, key, inner, "an object, true or false")
        if key == "dependentRequired" and not all(isinstance(v, list) for v in value.values()):
            raise _expected(where, key, value, "lists of names")
    return made


def _types(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(one, str) for one in value)
    )


def _expected(where: str, key: str, value: object, what: str) -> UsageError:
    return UsageError(f"{where}/{key} of the JSON schema is {str(value)[:40]!r}; expected {what}")


def _inside(one: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The schemas in a schema: pointer, key or index in the list or map (else None), schema."""
    for name in ONE:
        if isinstance(one.get(name), Mapping):
            yield name, None, one[name]
    for name in MANY:
        if isinstance(one.get(name), list):
            yield from ((f"{name}/{i}", i, inner) for i, inner in enumerate(one[name]))
    for name in NAMED:
        if isinstance(one.get(name), Mapping):
            for key, inner in one[name].items():
                if not isinstance(inner, list):
                    yield f"{name}/{str(key).replace('~', '~0').replace('/', '~1')}", key, inner


def _followed(one: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(one, list) and part.isdigit() and int(part) < len(one):
            one = one[int(part)]
        elif isinstance(one, Mapping) and part in one:
            one = one[part]
        else:
            return None
    return one


def _joined(base: str, ref: str) -> str:
    return ref if ":" in ref.split("/")[0] else urljoin(base, ref)
