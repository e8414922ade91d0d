"""Numbers of JSON schemas as llguidance keeps them: bounds, multiples, and no number that float64
does not hold."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from weft.core.errors import UsageError

Schema = dict[str, Any]

NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
DIGITS = 15  # number of digits that float64 always distinguishes, and llguidance keeps
LARGEST = Fraction(2**63 - 1024)  # the largest float64 that its expressions hold
EXACT = 2**53  # integers up to here are float64


def bound(made: Schema, where: str) -> None:
    """Gives a schema inclusive bounds of at most DIGITS digits, inside the ones that are asked for
    and within LARGEST. Between bounds llguidance writes no exponent, so no 1e400 comes."""
    whole = made.get("type") != "number" and not may_be(made, "number")
    low, high = _bounds(made, whole, where)
    step = made.get("multipleOf")
    if step is not None:
        _check_step(step, where)
        if not whole or isinstance(step, float):
            low, high = max(low, Fraction(-EXACT)), min(high, Fraction(EXACT))
    if low > high:
        raise UsageError(f"no number satisfies {where} of the JSON schema: its bounds leave none "
                         "that llguidance tells apart")  # fmt: skip
    for name in NUMBERS[:4]:
        made.pop(name, None)
    left_out = [
        float(n)
        for n in [*_beginnings(high), *(-n for n in _beginnings(-low))]
        if low <= n <= high and (step is None or n % Fraction(step) == 0)
    ]  # fmt: skip
    if left_out and not whole:
        either = {"anyOf": [_range(low, high), {"enum": left_out}]}
        made["allOf"] = [*made.get("allOf", ()), either]
    else:
        made |= _range(low, high)


def _range(low: Fraction, high: Fraction) -> Schema:
    bounds = {"minimum": low, "maximum": high}
    return {name: int(b) if b.denominator == 1 else float(b) for name, b in bounds.items()}


def _beginnings(bound: Fraction) -> Iterator[Fraction]:
    """The numbers that llguidance forgets below a positive bound: 0.2 and 0.24 below 0.245."""
    if bound <= 0:
        return
    for digits in range(1, DIGITS):
        found = Fraction(math.floor(bound * 10**digits), 10**digits)
        if found == bound:
            return
        if (found * 10 ** (digits - 1)).denominator > 1:
            yield found


def _check_step(step: object, where: str) -> None:
    exact = _number(step, "multipleOf", where)
    if exact <= 0:
        raise UsageError(f"{where}/multipleOf of the JSON schema is {step}; expected more than 0")
    if Fraction(step) != exact:  # type: ignore[call-overload]
        raise unsupported(f"multipleOf {step} (readers that compute in binary disagree on its "
                          "multiples)", where, "an integer of that unit")  # fmt: skip


def _bounds(made: Schema, whole: bool, where: str) -> tuple[Fraction, Fraction]:
    """The least and the greatest number that may come."""
    ends: list[Fraction] = []
    pairs = ((1, "minimum", "exclusiveMinimum"), (-1, "maximum", "exclusiveMaximum"))
    for sign, plain, other in pairs:
        found = []
        for name in (plain, other):
            if name not in made:
                continue
            if isinstance(made[name], bool):  # draft 4: whether the other bound is exclusive
                raise unsupported(f"{name} {str(made[name]).lower()}", where, "a number")
            _number(made[name], name, where)
            found.append(_least(sign * made[name], name == other, whole))
        end = max([*found, -LARGEST])
        if end > LARGEST:
            raise unsupported(f"{plain} or {other} beyond 2^63", where, "a smaller one")
        ends.append(sign * end)
    return ends[0], ends[1]


def _least(bound: int | float, exclusive: bool, whole: bool) -> Fraction:
    """The least number that those above the bound (or, unless exclusive, it) may begin at: of
    integers a float64, of others one of at most DIGITS digits."""
    exact = Fraction(str(bound))
    if whole:
        unit = Fraction(1)
    else:
        unit = Fraction(10) ** (len(str(abs(math.floor(exact)))) - DIGITS)
    found = unit * (math.floor(exact / unit) + 1 if exclusive else math.ceil(exact / unit))
    if abs(found) > LARGEST:
        return found
    if whole:
        return Fraction(_above(int(found)))
    while float(found) < bound or (exclusive and float(found) == bound):
        found += max(unit, Fraction(math.ulp(float(found))))
    return found


def _above(number: int) -> int:
    """The least integer from `number` on that float64 holds."""
    found = float(number)
    return int(found if found >= number else math.nextafter(found, math.inf))


def _number(value: object, name: str, where: str) -> Fraction:
    """The number as it is written in decimals."""
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not abs(value) <= sys.float_info.max:  # type: ignore[arg-type]
        raise UsageError(f"{where}/{name} of the JSON schema is {str(value)[:40]}; expected a "
                         "number that float64 holds")  # fmt: skip
    return Fraction(str(value))


def may_be(made: Schema, kind: str) -> bool:
    """True if a value of this type may satisfy the schema's own type."""
    given = made.get("type")
    return given is None or given == kind or (isinstance(given, list) and kind in given)


def unsupported(what: str, where: str, instead: str) -> UsageError:
    return UsageError(f"{where} of the JSON schema has {what}, which is not supported; use "
                      f"{instead}")  # fmt: skip
