"""Records as JSON: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, strategies as st

from weft.core.caps import PRESETS, Caps
from weft.core.dtypes import DType, float32, int8
from weft.core.errors import FileFormatError
from weft.host.records import from_data, to_data


class Pair(NamedTuple):
    a: int
    b: str = "x"


@dataclass(frozen=True)
class Inner:
    kind: DType = float32
    pairs: tuple[Pair, ...] = ()
    both: tuple[int, float] = (1, 2.0)


@dataclass(frozen=True)
class Outer:
    size: int
    mode: Literal["one", 2] = "one"
    rate: float = 1.0
    on: bool = False
    inner: Inner | None = None
    names: frozenset[str] = frozenset()


INNER = st.builds(
    Inner,
    st.sampled_from([float32, int8]),
    st.lists(st.builds(Pair, st.integers(-9, 9), st.text(max_size=5))).map(tuple),
    st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(-1e9, 1e9)),
)
OUTER = st.builds(
    Outer,
    st.integers(0, 99),
    st.sampled_from(["one", 2]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none() | INNER,
    st.frozensets(st.text(max_size=4), max_size=3),
)


@given(OUTER)
def test_there_and_back(record: Outer) -> None:
    data = json.loads(json.dumps(to_data(record)))
    assert from_data(Outer, data, "it") == record


@pytest.mark.parametrize("name", PRESETS)
def test_caps(name: str) -> None:
    data = json.loads(json.dumps(to_data(PRESETS[name])))
    assert from_data(Caps, data, "caps") == PRESETS[name]


FIELDS = st.sampled_from([*Outer.__dataclass_fields__, *Inner.__dataclass_fields__, "a", "b", "z"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=12,
)


@given(JSON, FIELDS)
def test_whatever_comes(value: object, field: str) -> None:
    """A record or a FileFormatError in one line."""
    for data in (value, {"size": 1, field: value}, {"size": 1, "inner": {field: value}}):
        try:
            made = from_data(Outer, data, "it")
        except FileFormatError as error:
            assert str(error).startswith("it") and len(str(error).splitlines()) == 1
        else:
            assert from_data(Outer, to_data(made), "it") == made


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "lacks 'size'"),
        ({"size": True}, "it.size is 'True'; expected int"),
        ({"size": 1, "rate": float("nan")}, "it.rate"),
        ({"size": 1, "mode": True}, "it.mode"),
        ({"size": 1, "wings": 2}, "a field 'wings'"),
        ({"size": 1, "inner": {"both": [1]}}, "it.inner.both has 1 entries; expected 2"),
        ({"size": 1, "inner": {"pairs": [[1, 2]]}}, r"it.inner.pairs\[0\].b"),
        ({"size": 1, "inner": {"kind": "float31"}}, "it.inner.kind"),
    ],
)
def test_the_field_is_named(data: object, words: str) -> None:
    with pytest.raises(FileFormatError, match=words):
        from_data(Outer, data, "it")
