"""Decimal, as pydantic writes it into JSON schemas."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Annotated

import numpy as np
import pydantic
import pytest
from schema_kit import compiled, drawn, takes


@pytest.mark.parametrize(
    "digits, places",
    [(None, None), (None, 2), (None, 0), (4, None), (4, 2), (2, 2), (2, 3), (3, 0), (500, 9)],
)
def test_decimals_of_pydantic(digits: int | None, places: int | None) -> None:
    """Its patterns have look-ahead. What comes is a Decimal within its bounds."""
    pattern = decimal_pattern(digits, places)
    matcher = compiled({"type": "string", "pattern": pattern})
    bounds = pydantic.Field(max_digits=digits, decimal_places=places)
    kind = pydantic.TypeAdapter(Annotated[Decimal, bounds])
    found = {drawn(matcher, np.random.default_rng(seed)) for seed in range(60)} - {None}
    found |= {t for t in ('"0"', '"-1"', '"12"', '"0.5"', '"1.25"', '"+123.4"', '"1234"')
              if takes(matcher, t)}  # fmt: skip
    for text in found:
        assert re.search(pattern, json.loads(text or ""))
        kind.validate_python(json.loads(text or ""))
    assert len(found) > 12
    assert not any(takes(matcher, text) for text in ('""', '"-"', '"."', '"+."', '"1e3"', '"x"'))


def decimal_pattern(digits: int | None, places: int | None) -> str:
    """As pydantic 2.13 writes it."""
    end = r"\d*\.?\d*$" if places is None else rf"\d*\.?\d{{0,{places}}}0*$"
    if digits is not None:
        whole = max(digits - (places or 0), 0)
        some = r"\d*\.\d*" if places is None else rf"\d{{0,{whole}}}\.\d{{0,{places}}}"
        end = rf"(?:\d{{0,{whole}}}|(?=[\d.]{{1,{digits + 1}}}0*$){some}0*$)"
    return rf"^(?!^[-+.]*$)[+-]?0*{end}"
