"""Functions of two arguments against float64: the table of docs/numerics.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from present import opened

from weft.conform import binary, unary
from weft.conform.binary import FUNCTIONS
from weft.conform.unary import DEVICES
from weft.core import dtypes as dt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
STATED = unary.stated(PAGE.read_text(encoding="utf-8").split("<!-- binary -->")[1])
SLACK = 1.0  # ulp: NumPy's own functions differ between CPUs


def within(name: str, column: str, dtype: dt.DType, count: int, device: str = "") -> None:
    """No error beyond the table's."""
    x, y = binary.operands(FUNCTIONS[name], dtype, count)
    found = binary.errors(FUNCTIONS[name], x, y, device or DEVICES[column])
    at, stated = int(found.argmax()), STATED[name][column][dtype.itemsize == 2]
    assert found[at] <= stated + SLACK, f"{name}({x[at]}, {y[at]}): {found[at]:.3g} ulp"


def vulkan(column: str) -> None:
    if column == "vulkan":
        opened(column)


def test_the_table_has_them_all() -> None:
    assert list(STATED) == list(FUNCTIONS)


@pytest.mark.parametrize("column", DEVICES)
@pytest.mark.parametrize("name", ["atan2", "hypot", "logaddexp", "pow", "remainder"])
def test_some_pairs(name: str, column: str) -> None:
    vulkan(column)
    within(name, column, dt.float32, 10_000)


@pytest.mark.parametrize("caps", ["cpu-avx512", "cuda"])
def test_some_powers_in_the_interpreter(caps: str) -> None:
    within("pow", "cpu", dt.float32, 300, f"interp:{caps}")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.bfloat16], ids=str)
@pytest.mark.parametrize("column", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_many_pairs(name: str, column: str, dtype: dt.DType) -> None:
    vulkan(column)
    within(name, column, dtype, 100_000)


def test_powers_of_zero_and_infinity_to_the_least_exponent() -> None:
    x = np.float32([0.0, 0.0, np.inf, np.inf, -0.0, -np.inf])
    y = np.float32([1e-45, -1e-45, 1e-45, -1e-45, -1e-45, 1e-45])
    got = binary.compute(FUNCTIONS["pow"], x, y, "cpu")
    assert got.tolist() == [0.0, np.inf, np.inf, 0.0, np.inf, np.inf]


def test_a_wrong_function_is_seen() -> None:
    almost = binary.BinaryFunction(
        "pow", lambda x, y: (x.log() * y).exp(), np.power, binary._powers
    )
    x, y = binary.operands(almost, dt.float32, 1000)
    assert binary.errors(almost, x, y, "cpu").max() > 100
