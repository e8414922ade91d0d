"""Each elementwise primitive's scalar lowering, run by the kernel interpreter on scalars and on
vectors, against its NumPy meaning."""

from __future__ import annotations

import numpy as np
import pytest
from opkit import FLOATS, INTS, agree, values
from rows import covering

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType, compute_dtype
from weft.core.errors import DTypeError
from weft.kernel import expr as kb, interp
from weft.kernel.builder import Builder

N = 144
ELEMENTWISE = [p for p in ops.PRIMITIVES.values() if p.kind == "elementwise" and p.name != "cast"]
ARITY = {p.name: len(p.ranges) or 3 for p in ELEMENTWISE}  # 3: of where


def lowered(name: str, arrays: list[np.ndarray], lanes: int, **attrs: object) -> np.ndarray:
    """The primitive as a one-thread kernel over all elements, `lanes` at a time."""
    known = [ops.aval(a) for a in arrays]
    primitive = ops.PRIMITIVES[name]
    out = primitive.abstract(*known, **attrs).dtype
    b = Builder("one")
    buffers = [b.buffer(f"x{i}", a.dtype, N) for i, a in enumerate(known)]
    target = b.buffer("out", out, N, "w")
    with b.loop(N, step=lanes) as i:
        loaded = [kb.cast(kb.load(x, i, lanes), compute_dtype(x.dtype)) for x in buffers]
        assert primitive.lower is not None
        value = primitive.lower(b, *[b.let(x) for x in loaded], **attrs)
        b.store(target, i, kb.cast(value, out))
    result = np.zeros(N, out.numpy)
    interp.run(b.kernel(grid=(1,)), [*[np.ascontiguousarray(a) for a in arrays], result])
    return result


def cases() -> list[tuple[str, DType]]:
    found = []
    for p in ELEMENTWISE:
        for d in (*FLOATS, *INTS, dt.bool_):
            a = ops.Aval((N,), d)
            operands = [a] * ARITY[p.name]
            if p.name == "where":
                operands[0] = ops.Aval((N,), dt.bool_)
            try:
                p.abstract(*operands)
            except DTypeError:
                continue
            found.append((p.name, d))
    return found


def operands(name: str, dtype: DType) -> list[np.ndarray]:
    """Every pairing of the dtype's awkward values, and some random ones."""
    count = ARITY[name]
    if count == 1:
        return [values(dtype, N)]
    x, y = np.repeat(values(dtype, 12), 12), np.tile(values(dtype, 12, seed=1), 12)
    if name.startswith("shift"):
        y = np.tile(np.array([0, 1, 2, 5, 7, 8, 9, 31, 32, 40, 100, 3], dtype.numpy), 12)
    if name == "where":
        return [values(dt.bool_, N), x, y]
    return [x, y]


@pytest.mark.parametrize("case,lanes", covering(cases(), [1, 4]), ids=str)
def test_lowering_is_the_numpy_meaning(case: tuple[str, DType], lanes: int) -> None:
    name, dtype = case
    arrays = operands(name, dtype)
    agree(lowered(name, arrays, lanes), ops.bind(name, *arrays), "elementwise")


@pytest.mark.parametrize("target", (*FLOATS, *INTS, dt.bool_), ids=str)
@pytest.mark.parametrize("source", (*FLOATS, *INTS, dt.bool_), ids=str)
def test_casts(source: DType, target: DType) -> None:
    x = values(source, N)
    agree(lowered("cast", [x], 4, dtype=target), ops.cast(x, target), "exact")
