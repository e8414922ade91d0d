"""Functions of one argument against float64: the table of docs/numerics.md, and who is in it."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from present import opened
from rows import covering

import weft
from weft.conform import unary
from weft.conform.unary import DEVICES, FUNCTIONS
from weft.core import dtypes as dt
from weft.tensor import angles, elementwise, signs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
STATED = unary.stated(PAGE.read_text(encoding="utf-8"))
SLACK = 1.0  # ulp: NumPy's own functions differ between CPUs
OTHERS = {"bitwise_invert", "logical_not", "clip"}  # of integers, of bools, of bounds
OTHERS |= {"real", "imag", "conj"}  # of what weft has no numbers for
WITHIN_NN = {"gelu", "gelu, tanh", "relu", "silu"}  # of weft.functional
POLYNOMIALS = ["cos", "erf", "exp", "expm1", "gelu", "gelu, tanh", "log", "log1p", "sin", "tan"]
POLYNOMIALS += ["sign", "tanh"]


def test_the_table_has_every_function_of_one_argument() -> None:
    public = set()
    for module in (elementwise, angles, signs):
        for name in set(weft.__all__) & set(vars(module)):
            fn = getattr(module, name)
            needed = [p for p in inspect.signature(fn).parameters.values() if p.default is p.empty]
            if fn.__module__ == module.__name__ and len(needed) == 1:
                public.add(name)
    assert set(FUNCTIONS) == (public - OTHERS) | WITHIN_NN
    assert list(STATED) == list(FUNCTIONS)


def within(name: str, column: str, dtype: dt.DType, x: np.ndarray, device: str = "") -> None:
    """No error beyond the table's, of the column's device or another that is held to it."""
    found = unary.errors(FUNCTIONS[name], x, device or DEVICES[column])
    at = int(found.argmax())
    stated = STATED[name][column][dtype.itemsize == 2]
    assert found[at] <= stated + SLACK, f"{name}({x[at]}): {found[at]:.3g} ulp, stated {stated}"


@pytest.mark.parametrize("name,column", covering(FUNCTIONS, ["eager", "cpu"]))
def test_some_values(name: str, column: str) -> None:
    within(name, column, dt.float32, unary.operands(dt.float32, 20_000))
    within(name, column, dt.float16, unary.operands(dt.float16, 0)[::3])


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_some_values_on_vulkan(name: str) -> None:
    opened("vulkan")
    within(name, "vulkan", dt.float32, unary.operands(dt.float32, 20_000))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.bfloat16], ids=str)
@pytest.mark.parametrize("column", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_values(name: str, column: str, dtype: dt.DType) -> None:
    if column == "vulkan":
        opened("vulkan")
    within(name, column, dtype, unary.operands(dtype, 1_000_000))


@pytest.mark.parametrize("name", POLYNOMIALS)
@pytest.mark.parametrize("caps", ["cpu-avx512", "cuda"])
def test_few_values_in_the_interpreter(name: str, caps: str) -> None:
    x = unary.operands(dt.float32, 500)
    within(name, "cpu", dt.float32, x, f"interp:{caps}")


def test_eager_and_compiled_agree_where_nothing_is_finite() -> None:
    x = np.float32([np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, 0.0, -0.0, -65504.0])
    for f in FUNCTIONS.values():
        want, got = (unary.compute(f, x, device) for device in (None, "cpu"))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=f.name)
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want), err_msg=f.name)
        np.testing.assert_array_equal(
            np.signbit(got) & (got == 0), np.signbit(want) & (want == 0), err_msg=f.name
        )


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        (1.0, 1.0, 0), (1.0, 1.0 + 2**-24, 0.5), (np.nan, 1.0, np.inf), (1.0, np.nan, np.inf),
        (np.inf, 1.0, np.inf), (1.0, np.inf, np.inf), (-0.0, 0.0, np.inf), (np.nan, np.nan, 0),
        (np.inf, -np.inf, np.inf), (0.0, 1e-37, 0), (0.0, -1e-37, np.inf), (np.inf, 2.0**128, 0),
        (3.4028235e38, 1e300, 1), (0.0, 1e-30, 1e-30 / 2**-123),
    ],
)  # fmt: skip
def test_what_counts_as_an_error(got: float, want: float, expected: float) -> None:
    with np.errstate(all="ignore"):
        found = unary.ulps(np.float32([got]), np.array([want]), dt.float32)[0]
    if np.isinf(expected):
        assert found > 1e6
    else:
        assert found == pytest.approx(expected, rel=1e-6)


def test_a_wrong_function_is_seen() -> None:
    almost = unary.UnaryFunction("sin", lambda x: x.sin() * (1 + 2e-6), np.sin)
    assert unary.errors(almost, unary.operands(dt.float32, 1000), "cpu").max() > 8
