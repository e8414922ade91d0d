"""The contract of products' bits, a row per tier: one order of every sum (weft/core/order.py). The
streaming and the blocked kernel, any number of rows, any configuration and any target give the
same bits, and those of a plain chain in NumPy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from fractions import Fraction

import dotkit as kit
import numpy as np
import pytest
from harness import targets
from product_kit import GPUS, RUNS, TIERS, TILES, Product, apart, device, fma, plain
from rows import by_turns, covering, few

import weft
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.order import CHUNK, SPAN
from weft.templates import registry

BF16 = dt.bfloat16
ROWS, MORE = (1, 2, 5, 16), (17, 67)  # of the streaming product; the blocked one takes all
LENGTHS = (1, 15, CHUNK, CHUNK + 1, SPAN, SPAN + 1, 4100)
F32, F16, I8 = dt.float32, dt.float16, dt.int8
EACH = targets(*(t for t in TIERS if t != "cpu"))
slow = pytest.mark.slow


def operands(
    *quick: tuple[dt.DType, str], of: Sequence[dt.DType] = (F32, F16, BF16, I8)
) -> pytest.MarkDecorator:
    """Dtypes with layouts; all but some are slow tests."""
    return pytest.mark.parametrize(
        "dtype,layout",
        [
            pytest.param(*pair, id=f"{pair[0]}-{pair[1]}", marks=[] if pair in quick else [slow])
            for pair in itertools.product(of, ("NT", "NN"))
        ],
    )


def test_the_reference_rounds_once() -> None:
    """The reference's fma against exact rationals."""
    rng = np.random.default_rng(3)
    x, y, z = (rng.standard_normal(400).astype(np.float32) for _ in range(3))
    z *= np.float32(2.0) ** rng.integers(-30, 30, 400).astype(np.float32)
    z[:40] = -(x[:40] * y[:40])
    for a, b, c, got in zip(x, y, z, fma(x, y, z)):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = [np.nextafter(got, np.float32(d), dtype=np.float32) for d in (-np.inf, np.inf)]
        gaps = [abs(Fraction(float(v)) - exact) for v in (got, *near)]
        assert gaps[0] == min(gaps)


# -- any number of rows


@functools.cache
def content(n: int, k: int, dtype: dt.DType, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """x of the most rows, and w."""
    x, w = Product(MORE[-1], n, k, dtype, layout).arrays()
    return x, w


def check(tier: str, n: int, k: int, dtype: dt.DType, layout: str, few: tuple, more: tuple) -> None:
    """Few rows by the streaming kernel, few and more by the blocked one."""
    x, w = content(n, k, dtype, layout)

    def rows(kind: str, m: int) -> np.ndarray:
        return Product(m, n, k, dtype, layout).play(tier, kind, [x[:m], w])[0]

    full, p = rows("matvec", few[-1]), Product(few[-1], n, k, dtype, layout)
    arrays = [x[: few[-1]], w]
    if not dtype.is_float:
        np.testing.assert_array_equal(full, p.truth(arrays)[0])
    elif dtype in plain(device(tier).caps):
        want = p.chain(arrays)
        if tier == "vulkan" and not np.array_equal(full, want):
            want = p.chain(arrays, apart)
        np.testing.assert_array_equal(full, want)
    for kind, counts in (("matvec", few[:-1]), ("matmul", more)):
        for m in counts:
            got, shared = rows(kind, m), min(m, few[-1])
            np.testing.assert_array_equal(got[:shared], full[:shared])


@pytest.mark.parametrize(
    "tier,dtype,layout",
    [
        *(pytest.param(*tier.values, F32, "NT", marks=tier.marks) for tier in EACH),
        *by_turns(
            EACH, ((F16, "NN"), (BF16, "NT"), (BF16, "NN"), (I8, "NN"), (F16, "NT"), (I8, "NT"))
        ),
        *(pytest.param(*tier.values, F32, "NN", marks=slow) for tier in EACH),
    ],
)
def test_any_number_of_rows(tier: str, dtype: dt.DType, layout: str) -> None:
    """Small sizes: most targets are interpreted."""
    for n, k in ((5, CHUNK + 9), (19, 47), (3, 1)):
        check(tier, n, k, dtype, layout, (1, 6), (2, 17))


@pytest.mark.parametrize(
    "tier,dtype,layout",
    by_turns(EACH, [(F32, "NN"), (BF16, "NN"), (F32, "NT"), (BF16, "NT")]),
)
def test_spans(tier: str, dtype: dt.DType, layout: str) -> None:
    check(tier, 3, SPAN + CHUNK + 34, dtype, layout, (1,), (2,))


@pytest.mark.parametrize(
    "few,more", [((1, 16), (5, 67)), pytest.param(ROWS, (*ROWS, *MORE), marks=pytest.mark.slow)]
)
@operands((F32, "NT"), *((d, "NN") for d in (F16, BF16, I8)))
def test_every_length_on_the_cpu(
    dtype: dt.DType, layout: str, few: tuple[int, ...], more: tuple[int, ...]
) -> None:
    if not dtype.is_float:  # integers know no order
        return check("cpu", 37, 700, dtype, layout, few, more)
    whole = few == ROWS or (dtype, layout) == (F32, "NT")
    for k in LENGTHS if whole else LENGTHS[3::2]:
        check("cpu", 37, k, dtype, layout, few, more)
    for n in (1, 3, 200):
        check("cpu", n, 133, dtype, layout, few, ())


@pytest.mark.parametrize("dtype", [dt.float32, BF16], ids=repr)
def test_every_length_on_vulkan(dtype: dt.DType) -> None:
    for k in LENGTHS[2:]:
        check("vulkan", 7, k, dtype, "NT", (1, 5), (5, 17))


def bounded(tier: str, kind: str, p: Product, few: tuple[int, ...], **more: object) -> None:
    """Rows counted at run time, and as many rows alone, have the bits they have among all."""
    x, w = p.arrays()
    (full,) = p.play(tier, kind, [x, w], **more)
    for rows in few:
        n = min(rows, len(x))
        (got,) = p.play(tier, kind, [x, w], rows, rows="n", slots={"n": 0}, **more)
        np.testing.assert_array_equal(got[:n], full[:n])
        own = Product(n, w.shape[0], w.shape[1], kit.as_dtype(x.dtype))
        np.testing.assert_array_equal(own.play(tier, kind, [x[:n], w])[0], full[:n])


@pytest.mark.parametrize("tier,kind", targets(*RUNS))
def test_rows_counted_at_run_time(tier: str, kind: str) -> None:
    few = kind == "matvec"
    bounded(tier, kind, Product(8 if few else 40, 20, 37), (3, 9) if few else (5,))
    if tier == "cpu":
        counts = (1, 4, 17, 40) if few else (1, 13, 14, 39)
        bounded(tier, kind, Product(64 if few else 40, 70, 600), counts)
    if tier in GPUS[:2] and not few:
        bounded(tier, kind, Product(200, 40, 51), (1, 17, 33, 130))
        bounded(tier, kind, Product(200, 40, 51, BF16), (1, 17, 33, 130))


@pytest.mark.parametrize("k", few([96, 70], 70))
@pytest.mark.parametrize("tier", TILES)
def test_rows_of_matrix_registers(tier: str, k: int) -> None:
    bounded(tier, "matmul", Product(64, 40, k, BF16), (1, 16, 31, 50))


@pytest.mark.parametrize("tier,dtype", covering(GPUS[:2], [dt.float32, BF16]), ids=repr)
def test_batches_counted_at_run_time(tier: str, dtype: dt.DType) -> None:
    p = Product(20, 24, 32, dtype, "NN", (5,))
    arrays = p.arrays()
    (full,) = p.play(tier, "matmul", arrays)
    (part,) = p.play(tier, "matmul", arrays, 3, rows="n", slots={"n": 0})
    np.testing.assert_array_equal(part[:3], full[:3])


@pytest.mark.parametrize(
    "layout,shape", covering(["NT", "NN", "TN"], [(1024, 200, 256), (1153, 129, 1031)])
)
def test_many_rows_that_are_packed(layout: str, shape: tuple[int, int, int]) -> None:
    """Products of many rows pack their left operand: the same bits as for few rows."""
    m, k, n = shape
    rng = np.random.default_rng(7)
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n), (m, n)))

    def product(x: weft.Tensor, y: weft.Tensor, z: weft.Tensor) -> weft.Tensor:
        left = x.T if layout == "TN" else x
        return (left @ (y.T if layout == "NT" else y)).gelu() * z + z

    def run(rows: int) -> np.ndarray:
        x = np.ascontiguousarray(a[:rows].T) if layout == "TN" else a[:rows]
        y = np.ascontiguousarray(b.T) if layout == "NT" else b
        return np.array(weft.compile(product, "cpu")(x, y, c[:rows]).numpy())

    whole = run(m)
    want = weft.tensor(a.astype(np.float64) @ b.astype(np.float64)).gelu().numpy() * c + c
    np.testing.assert_allclose(whole, want, rtol=2e-4, atol=2e-4)
    assert np.array_equal(whole[:100], run(100)) and np.array_equal(whole[:600], run(600))


# -- any configuration


@pytest.mark.parametrize("layout", few(["NN", "NT", "TN", "TT"], "TN"))
def test_configurations_of_the_cpu(layout: str) -> None:
    p = Product(77, 70, SPAN + CHUNK + 37, layout=layout)
    arrays = p.arrays()
    want = p.chain(arrays)
    found = registry.candidates(p.group(), device("cpu").caps)
    for config in [{}, {"mr": 5}, {"mb": 12, "mr": 4}, *found]:
        (got,) = p.play("cpu", "matmul", arrays, config=config)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "kind,tier,dtype",
    by_turns(
        [
            pytest.param(kind, *tier.values, marks=tier.marks)
            for kind in ("matmul", "matvec")
            for tier in targets(
                "cuda", "hip-wave64", "hip-wave32", "webgpu", "webgpu-small", "lavapipe", "cpu-avx2"
            )
        ],
        [BF16, dt.float32],
    ),
)
def test_configurations_give_the_same_bits(tier: str, kind: str, dtype: dt.DType) -> None:
    p = Product(*((70, 139, 40) if kind == "matmul" else (3, 72, 1100)), dtype)
    arrays = p.arrays()
    (first,) = p.play(tier, kind, arrays)
    if dtype in plain(PRESETS[tier]):
        np.testing.assert_array_equal(first, p.chain(arrays))
    found = registry.candidates(p.group(kind), PRESETS[tier])
    assert len(found) > (1 if tier in GPUS else -1)
    for config in found[:: 1 if kind == "matmul" else 3]:
        np.testing.assert_array_equal(p.play(tier, kind, arrays, config=config)[0], first)


@pytest.mark.parametrize("tier,dtype", covering(GPUS[:2], [BF16, dt.float32]), ids=repr)
def test_strips_of_blocks(tier: str, dtype: dt.DType) -> None:
    """Groups of large problems walk strips: each block is computed once, also under a bound."""
    config = {"rows": 32, "columns": 32, "tm": 4, "tn": 4, "down": 1, "across": 2, "bk": 16}
    p = Product(32 * 10 - 5, 32 * 9, 16, dtype)
    p.check(tier, config=config)
    bounded(tier, "matmul", p, (1, 300), config=config)


# -- other units


@pytest.mark.parametrize(
    "tier,cut",
    [("cuda", SPAN), ("hip-wave64", SPAN), ("cpu-amx", SPAN), ("cpu-avx512", CHUNK)],
)
def test_pairs_and_units_join(tier: str, cut: int) -> None:
    """What goes by pairs or through a unit is the sum of its chunks' or spans' products."""
    p = Product(5, 18, 2 * cut + 32, BF16)
    arrays, total = p.arrays(), None
    for s in range(0, p.k, cut):
        part = [np.ascontiguousarray(v[:, s : s + cut]) for v in arrays]
        (span,) = Product(5, 18, part[0].shape[1], BF16).play(tier, "matmul", part)
        total = span if total is None else total + span
    np.testing.assert_array_equal(p.play(tier, "matmul", arrays)[0], total)
