"""Where an intermediate leaves the range of float16: eager mode rounds every result, a fused chain
only what it stores (docs/numerics.md). The truth is float64, rounded where the rule says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from present import opened

import weft

VALUES = [300.0, 2.0, -1.0, 0.5]
NARROW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def exact_softmax(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max())
        return e / e.sum()


# name -> the function, and what it is in float64 with `r` rounding each stored result
CHAINS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "softmax of squares": (lambda a: (a * a).softmax(), lambda a, r: exact_softmax(r(a * a))),
    "difference of squares": (lambda a: a * a - a * a, lambda a, r: r(a * a) - r(a * a)),
    "back into range": (lambda a: a * a / 4.0, lambda a, r: r(a * a) / 4.0),
    "logarithm": (lambda a: (a * a * 1e-4 * 1e-6).log(),
                  lambda a, r: np.log(r(r(r(a * a) * r(1e-4)) * r(1e-6)))),
}  # fmt: skip


def once(x: Any) -> Any:
    return x


@pytest.mark.parametrize("device", ["eager", "cpu", "interp", "vulkan"])
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("dtype", NARROW)
def test_eager_rounds_each_result_and_compiled_code_the_last(
    dtype: str, name: str, device: str
) -> None:
    fn, truth = CHAINS[name]
    narrow = NARROW[dtype]
    a = np.array(VALUES).astype(narrow).astype(np.float64)

    def rounded(x: Any) -> Any:
        return np.asarray(x).astype(narrow).astype(np.float64)

    constants = (lambda x: rounded(x) if np.ndim(x) == 0 else x) if device != "eager" else rounded
    with np.errstate(all="ignore"):
        want = np.asarray(truth(a, constants)).astype(narrow).astype(np.float64)
    x = weft.tensor(a, dtype=dtype)
    got = fn(x) if device == "eager" else weft.compile(fn, device=opened(device))(x)
    assert got.dtype.name == dtype
    close = 2e-3 if dtype == "float16" else 1.6e-2
    np.testing.assert_allclose(got.numpy().astype(np.float64), want, rtol=close, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "interp", "vulkan"])
@pytest.mark.parametrize("name", ["softmax of squares", "difference of squares", "back into range"])
def test_in_float32_both_are_the_same(name: str, device: str) -> None:
    """Whoever wants the range kept says so: then eager and compiled agree, NaN and infinities
    included."""
    fn, _ = CHAINS[name]
    x = weft.tensor(np.array(VALUES), dtype="float16")

    def wide(a: weft.Tensor) -> weft.Tensor:
        return fn(a.cast("float32")).cast("float16")

    got = weft.compile(wide, device=opened(device))(x).cast("float32").numpy()
    np.testing.assert_allclose(got, wide(x).cast("float32").numpy(), rtol=2e-3, atol=1e-6)


def test_the_two_do_differ() -> None:
    """The case itself: NaN in eager mode, 1 and zeros where nothing but the end is rounded."""
    x = weft.tensor(np.array(VALUES), dtype="float16")
    assert np.isnan((x * x).softmax().numpy()).all()
    fused = weft.compile(lambda a: (a * a).softmax(), device="cpu")(x).numpy()
    np.testing.assert_array_equal(fused, [1, 0, 0, 0])
