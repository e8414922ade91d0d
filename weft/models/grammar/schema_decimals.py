"""The patterns that pydantic (from 2.12 on) writes for Decimal, without their look-ahead, which
llguidance lacks."""

from __future__ import annotations

import re

_BEGIN = re.escape(r"^(?!^[-+.]*$)[+-]?0*")
_ANY = re.escape(r"\d*\.?\d*$")
_PLACES = re.escape(r"\d*\.?\d{0,") + r"(?P<places>\d+)\}0\*\$"
_DIGITS = (
    r"\(\?:\\d\{0,(?P<whole>\d+)\}\|\(\?=\[\\d\.\]\{1,(?P<room>\d+)\}0\*\$\)"
    r"\\d(?:\*|\{0,\d+\})\\\.\\d(?:\*|\{0,(?P<fraction>\d+)\})0\*\$\)"
)
_DECIMAL = re.compile(f"{_BEGIN}(?:{_ANY}|{_PLACES}|{_DIGITS})")
_MOST = 40  # digits: those of answers, where a type allows thousands


def without_look_ahead(pattern: str) -> str | None:
    """A pattern of numbers that all match `pattern`: signs, digits and a point, without zeros that
    say nothing. None if `pattern` is not pydantic's for Decimal."""
    found = _DECIMAL.fullmatch(pattern)
    if found is None:
        return None
    if found["whole"] is None:
        places = found["places"]
        fraction = r"(?:\.[0-9]+)?" if places is None else _fraction(int(places))
        return f"^[+-]?[0-9]+{fraction}$"
    most = min(int(found["room"]) - 1, _MOST)
    whole = min(int(found["whole"]), most)
    forms = [_whole(whole)] if whole else []  # pydantic counts the digit of a 0
    for places in range(1, min(int(found["fraction"] or most), most) + 1):
        forms.append(rf"{_whole(min(whole, most - places))}\.[0-9]{{{places}}}")
    return f"^[+-]?(?:{'|'.join(forms)})$" if forms else None


def _whole(digits: int) -> str:
    return f"[0-9]{{1,{digits}}}" if digits else "0"


def _fraction(places: int) -> str:
    return rf"(?:\.[0-9]{{1,{places}}})?" if places else ""
