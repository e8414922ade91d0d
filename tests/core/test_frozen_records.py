"""Dataclasses that are made quickly are those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from weft.core import records

OPTIONS: list[dict[str, Any]] = [
    {"frozen": True}, {"frozen": True, "slots": True}, {"frozen": True, "eq": False},
    {"frozen": True, "slots": True, "eq": False}, {}, {"slots": True},
    {"frozen": True, "order": True}, {"frozen": True, "kw_only": True},
]  # fmt: skip


def point(dataclass: Any, **options: Any) -> tuple[Any, Any]:
    """A class with fields of every kind, and one that inherits."""

    @dataclass(**options)
    class Point:
        """A point."""

        kind: ClassVar[str] = "point"
        x: int
        y: float = 1.5
        more: list[int] = field(default_factory=list, compare=False)
        hidden: str = field(default="h", repr=False)
        total: float = field(init=False, default=0.0)
        _cache: dict[str, int] = field(init=False, default_factory=dict, compare=False, repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

        def double(self) -> int:
            return self.x * 2

    @dataclass(**options)
    class Place(Point):
        name: str = "here"

    return Point, Place


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_they_behave_as_those_of_the_standard_library(options: dict[str, Any]) -> None:
    both = [point(dataclasses.dataclass, **options), point(records.dataclass, **options)]
    known, mine = ([made(x=2), made(x=2, y=3.0, more=[1]), made(x=2)] for made, _ in both)
    name = "test_they_behave_as"
    assert [repr(v).replace(name, "") for v in known] == [repr(v).replace(name, "") for v in mine]
    for a, b, c in (known, mine):
        assert a.double() == 4 and a.kind == "point" and a.more is not c.more and a._cache == {}
        assert (a == c) is options.get("eq", True) and a != b and a != "text"
    for which in (0, 1):
        wanted, made = both[0][which], both[1][which]
        assert made.__doc__ in (wanted.__doc__, "Place")
        assert made.__match_args__ == wanted.__match_args__
        assert str(inspect.signature(made)) == str(inspect.signature(wanted))
        assert hasattr(made(x=1), "__dict__") == hasattr(wanted(x=1), "__dict__")
        assert [f.name for f in dataclasses.fields(made)] == [
            f.name for f in dataclasses.fields(wanted)
        ]
        assert dataclasses.asdict(made(x=1)) == dataclasses.asdict(wanted(x=1))
        assert dataclasses.replace(made(x=1), x=5).total == 6.5
        assert (made.__hash__ is None) == (wanted.__hash__ is None)
        with pytest.raises(TypeError):
            made()
        with pytest.raises(TypeError):
            made(1, 2, 3, 4, 5, 6, 7, 8)
    if options.get("frozen"):
        for value in (both[0][0](x=1), both[1][0](x=1)):
            with pytest.raises(dataclasses.FrozenInstanceError, match="x"):
                value.x = 3
            with pytest.raises(dataclasses.FrozenInstanceError, match="x"):
                del value.x
        if options.get("eq", True):
            assert hash(mine[0]) == hash(mine[2]) == hash(known[0])


@records.dataclass(frozen=True, slots=True)
class One:
    only: tuple[int, ...]


@records.dataclass(frozen=True)
class Empty: ...


@records.dataclass(frozen=True)
class Own:
    x: int

    def __eq__(self, other: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "own"

    def __hash__(self) -> int:
        return 7


def test_few_fields_and_methods_of_ones_own() -> None:
    assert One((1,)) == One((1,)) != One((2,)) and hash(One((1,))) == hash(((1,),))
    assert Empty() == Empty() and repr(Empty()) == "Empty()" and hash(Empty()) == hash(())
    assert Own(1) == Own(2) and repr(Own(1)) == "own" and hash(Own(1)) == 7


@pytest.mark.parametrize("value", [One((1, 2)), Empty(), Own(3)], ids=repr)
def test_they_are_copied_and_pickled(value: Any) -> None:
    assert copy.deepcopy(value) == value == pickle.loads(pickle.dumps(value))
    assert repr(copy.copy(value)) == repr(value)
