"""A JSON schema in the keywords that llguidance has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from weft.core.errors import UsageError
from weft.models.grammar.schema_choices import Choices
from weft.models.grammar.schema_complement import Complement
from weft.models.grammar.schema_logic import (
    NOT_OBJECTS,
    containing,
    dependent,
    names,
    subsets,
    without,
)
from weft.models.grammar.schema_numbers import Schema, unsupported
from weft.models.grammar.schema_refs import resolved
from weft.models.grammar.schema_sets import Sets

Given = Mapping[str, Any]
MANY = 256  # alternatives that unevaluated keywords may lead to
_REWRITTEN = {
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "propertyNames", "contains", "minContains", "maxContains", "unevaluatedItems",
    "unevaluatedProperties",
}  # fmt: skip
_SAME = {"allOf", "anyOf", "oneOf", "$ref"}  # with those above: schemas of the same value


def plain(schema: Schema) -> Schema:
    """`schema` with references to `#` and `#/$defs/NAME` alone, and without the keywords of
    _REWRITTEN: the same values satisfy it, or fewer. Raises UsageError, naming what has no such
    form."""
    return _Plain(resolved(schema)).whole()


@dataclass(frozen=True)
class Branch:
    """One way for a value to satisfy a schema: it satisfies all `parts`. The rest says which
    properties and items they evaluate, as draft 2020-12 has it."""

    parts: tuple[Any, ...] = ()
    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    items: frozenset[int] = field(default=frozenset())
    all_names: bool = False
    all_items: bool = False

    def __and__(self, other: Branch) -> Branch:
        return Branch(
            self.parts + other.parts,
            self.names | other.names,
            self.patterns | other.patterns,
            self.items | other.items,
            self.all_names or other.all_names,
            self.all_items or other.all_items,
        )


class _Plain:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._given: Mapping[str, Any] = root.get("$defs", {})
        self._sets = Sets()
        self._choices = Choices(self._known)
        self._no = Complement(self.schema, self._target, self._sets)
        self._leads: list[str] = []

    def whole(self) -> Schema:
        made = self.schema({k: v for k, v in self._root.items() if k != "$defs"}, "#")
        if made is False:
            raise UsageError("no value satisfies the JSON schema")
        made = {} if made is True else made
        defs = {name: self.schema(one, f"#/$defs/{name}") for name, one in self._given.items()}
        return made | ({"$defs": defs} if defs else {})

    def _target(self, ref: str) -> Any:
        if ref == "#":
            return {k: v for k, v in self._root.items() if k != "$defs"}
        return self._given[ref.removeprefix("#/$defs/")]

    def _known(self, ref: str) -> Given | None:
        found = self._target(ref)
        return found if isinstance(found, Mapping) else None

    def schema(self, given: Any, where: str) -> Any:
        """A schema written with llguidance's keywords."""
        self._sets.step()
        if isinstance(given, bool):
            return given
        if "unevaluatedProperties" in given or "unevaluatedItems" in given:
            return self._either(self._branches(given, where))
        made, more = self._own(given, where, _REWRITTEN)
        exclusive = self._exclusive(given, where)
        if exclusive is not None:
            del made["oneOf"]
            more.append(exclusive)
        if "if" in given and ("then" in given or "else" in given):
            more.append(
                self._sets.any_of(
                    self._sets.all_of(one.parts) for one in self._tested(given, where)
                )
            )
        for name, one in dependent(given):
            there = self._sets.all_of(
                [{"type": "object", "required": [name]}, self.schema(one, where)]
            )
            more.append(self._sets.any_of([without(name), there]))
        more += [self._sets.any_of(one for one, _ in self._containing(given, where))]
        return self._sets.all_of([made, *more])

    def _either(self, branches: Iterable[Branch]) -> Any:
        return self._sets.any_of(self._sets.all_of(one.parts) for one in branches)

    def _own(self, given: Given, where: str, left_out: set[str]) -> tuple[Schema, list[Any]]:
        """A schema without the keywords `left_out`, and forms of `not` and propertyNames."""
        made: Schema = {}
        for key, value in given.items():
            if key in left_out:
                continue
            inside = f"{where}/{key}"
            if key in ("additionalProperties", "items"):
                value = self.schema(value, inside)
            elif key in ("prefixItems", "anyOf", "oneOf", "allOf"):
                value = [self.schema(one, f"{inside}/{i}") for i, one in enumerate(value)]
            elif key in ("properties", "patternProperties"):
                value = {name: self.schema(one, f"{inside}/{name}") for name, one in value.items()}
            made[key] = value
        more = [self._no(given["not"], where)] if "not" in given else []
        if "propertyNames" in given:
            named = self._followed(given["propertyNames"])
            objects = names(named, where, self._sets)
            more.append(self._sets.any_of([NOT_OBJECTS, objects]))
        return made, more

    def _followed(self, one: Any) -> Any:
        for _ in range(8):
            if not isinstance(one, Mapping) or set(one) != {"$ref"}:
                break
            one = self._target(one["$ref"])
        return one

    def _exclusive(self, given: Given, where: str) -> Any:
        """oneOf as alternatives of which each denies the others; None where weft or llguidance
        sees by itself that they exclude one another, or where that cannot be said."""
        one = given.get("oneOf")
        if one is None or self._choices.apart([o if isinstance(o, Mapping) else {} for o in one]):
            return None
        try:
            return self._sets.any_of(
                self._sets.all_of(branch.parts) for branch in self._single(one, where)
            )
        except UsageError:
            return None

    def _single(self, alternatives: Sequence[Any], where: str) -> Iterator[Branch]:
        """One alternative each, without the others."""
        for i, one in enumerate(alternatives):
            denied = [self._no(o, where) for j, o in enumerate(alternatives) if j != i]
            if False not in denied:
                for branch in self._branches(one, where):
                    yield branch & Branch(tuple(denied))

    def _tested(self, given: Given, where: str) -> Iterator[Branch]:
        """`if` with `then`, or not `if` with `else`."""
        test = given["if"]
        if "then" not in given and "else" not in given:  # it evaluates, and asks for nothing
            yield from [*self._branches(test, where), Branch()]
            return
        for branch in self._branches(test, where):
            for then in self._branches(given.get("then", True), where):
                yield branch & then
        for otherwise in self._branches(given.get("else", True), where):
            yield Branch((self._no(test, where),)) & otherwise

    def _containing(self, given: Given, where: str) -> Iterator[tuple[Any, range]]:
        if "contains" not in given:
            yield True, range(0)
            return
        one = given["contains"]
        yield from containing(
            given, where, self.schema(one, where), lambda: self._no(one, where)
        )  # fmt: skip

    def _branches(self, given: Any, where: str) -> Iterator[Branch]:
        """The ways to satisfy a schema, each with what it evaluates."""
        if isinstance(given, bool):
            if given:
                yield Branch()
            return
        own, more = self._own(given, where, _REWRITTEN | _SAME)
        base = Branch(
            (own, *more),
            frozenset(given.get("properties", ())),
            frozenset(given.get("patternProperties", ())),
            frozenset(range(len(given.get("prefixItems", ())))),
            "additionalProperties" in given,
            "items" in given,
        )
        for count, found in enumerate(product(*self._choices_of(given, where))):
            if count >= MANY:
                raise unsupported(f"over {MANY} alternatives under unevaluatedProperties or "
                                  "unevaluatedItems", where, "additionalProperties")  # fmt: skip
            yield self._closed(given, sum_of([base, *found]), where)

    def _choices_of(self, given: Given, where: str) -> Iterator[list[Branch]]:
        """For each keyword about the same value, the ways to satisfy it."""
        for i, one in enumerate(given.get("allOf", ())):
            yield list(self._branches(one, f"{where}/allOf/{i}"))
        if "anyOf" in given:
            each = [list(self._branches(one, f"{where}/anyOf")) for one in given["anyOf"]]
            yield [sum_of(way) for some in subsets(each) for way in product(*some)]
        if "oneOf" in given:
            yield list(self._single(given["oneOf"], where))
        if "if" in given:
            yield list(self._tested(given, where))
        for name, one in dependent(given):
            there = Branch(({"type": "object", "required": [name]},))
            ways = [there & branch for branch in self._branches(one, where)]
            yield [Branch((without(name),)), *ways]
        if "contains" in given:
            found = self._containing(given, where)
            yield [Branch((one,), items=frozenset(places)) for one, places in found]
        if "$ref" in given:
            ref = given["$ref"]
            if ref in self._leads:
                raise unsupported(f"a schema that leads to itself ({ref})", where, "another")
            self._leads.append(ref)
            try:
                ways = list(self._branches(self._target(ref), where))
            finally:
                self._leads.pop()
            yield ways

    def _closed(self, given: Given, branch: Branch, where: str) -> Branch:
        """A branch that holds what it leaves to the unevaluated keywords of its schema."""
        if "unevaluatedProperties" in given:
            if not branch.all_names:
                rest = self.schema(given["unevaluatedProperties"], where)
                closing = {"properties": dict.fromkeys(sorted(branch.names), True),
                           "patternProperties": dict.fromkeys(sorted(branch.patterns), True),
                           "additionalProperties": rest}  # fmt: skip
                branch = branch & Branch(({k: v for k, v in closing.items() if v != {}},))
            branch = replace(branch, all_names=True)
        if "unevaluatedItems" in given:
            if not branch.all_items:
                rest = self.schema(given["unevaluatedItems"], where)
                places = range(max(branch.items, default=-1) + 1)
                before = [i in branch.items or rest for i in places]
                closing = {"items": rest} | ({"prefixItems": before} if before else {})
                branch = branch & Branch((closing,))
            branch = replace(branch, all_items=True)
        return branch


def sum_of(branches: Sequence[Branch]) -> Branch:
    made = Branch()
    for one in branches:
        made = made & one
    return made
