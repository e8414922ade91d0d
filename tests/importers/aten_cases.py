"""Arguments for each operator of the ATen table, drawn: tests/importers/test_aten.py runs them."""

from __future__ import annotations

# Each of these adds its kinds of operators to CASES.
import aten_elementwise  # noqa: F401
import aten_layers  # noqa: F401
import aten_movement  # noqa: F401
from aten_draw import CASES, Draw

__all__ = ["CASES", "Draw"]
