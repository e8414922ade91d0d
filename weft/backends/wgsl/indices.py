"""Index texts: what is a literal stays one, and stays inside."""

from __future__ import annotations

import re

from weft.backends.wgsl.analysis import StorageWords
from weft.backends.wgsl.constants import INT_MIN, int_text

_NUMBER = re.compile(r"^\(?(-?\d+)i\)?$")


def number(index: str) -> int | None:
    """The value of an index that is a literal."""
    if index == int_text(INT_MIN):
        return INT_MIN
    found = _NUMBER.match(index)
    return int(found[1]) if found else None


def offset(index: str, add: int) -> str:
    """index + add, folded where the index is a number."""
    at = number(index)
    if at is not None:
        return int_text(at + add)
    return f"{index} + {add}i" if add else index


def over(index: str, divisor: int) -> str:
    """index // divisor for a power of two (indices are not negative where they matter)."""
    if divisor == 1:
        return index
    at = number(index)
    if at is not None:
        return int_text(at // divisor)
    return f"({index}) >> {divisor.bit_length() - 1}u"


def within(index: str, divisor: int) -> str:
    """index % divisor as u32."""
    at = number(index)
    return f"(u32({index}) & {divisor - 1}u)" if at is None else f"{at % divisor}u"


def inside(s: StorageWords, index: str) -> str:
    """Moves inside a unit index that a compiler can see to be outside. Such an access never happens
    (its mask or branch is false), but compilers reject it."""
    at = number(index)
    return index if at is None else f"{min(max(at, 0), s.units - 1)}i"
