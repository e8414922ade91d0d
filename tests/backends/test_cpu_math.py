"""weft's own polynomials through LLVM: every vector width, CPUs without AVX-512 and without fma."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_case import play

from weft.conform import unary
from weft.core import dtypes as dt
from weft.kernel import math as km
from weft.kernel.builder import Builder
from weft.kernel.expr import load

X = unary.operands(dt.float32, 6000)[:6016]
BOUND = 6.0  # ulp


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("target", ["host", "avx512", "avx2", "base"])
def test_polynomials(target: str, lanes: int) -> None:
    names = ("cos", "erf", "exp", "log", "sin", "tanh")
    b = Builder("polynomials")
    x = b.buffer("x", dt.float32, X.size)
    outs = [b.buffer(name, dt.float32, X.size, "w") for name in names]
    at = b.let(b.group(0) * lanes, "at")
    v = b.let(load(x, at, lanes), "v")
    for name, out in zip(names, outs):
        b.store(out, at, getattr(km, name)(b, v))
    kernel = b.kernel((X.size // lanes,))
    found = play(kernel, [X, *(np.zeros_like(X) for _ in names)], target=target)[1:]
    with np.errstate(all="ignore"):
        for name, got in zip(names, found):
            want = unary.FUNCTIONS[name].truth(X.astype(np.float64))
            error = unary.ulps(got, want, dt.float32)
            worst = int(error.argmax())
            assert error[worst] <= BOUND, (name, X[worst], got[worst], want[worst])
