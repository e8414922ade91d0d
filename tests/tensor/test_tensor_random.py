"""Random tensors: the generator's published vectors, streams, keys and distributions."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import weft
from weft import functional
from weft.core.errors import DTypeError, UsageError
from weft.nn import init
from weft.tensor.random import threefry

# Random123's known-answer test for threefry2x32, 20 rounds: key, counter, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "want"), KNOWN)
def test_known_answers(key: tuple, counter: tuple, want: tuple) -> None:
    word = lambda pair: tuple(np.array([v], np.uint32) for v in pair)  # noqa: E731
    assert tuple(int(v[0]) for v in threefry(word(key), word(counter))) == want


def test_streams_restart_and_do_not_repeat() -> None:
    weft.manual_seed(5)
    a, b = weft.rand(4), weft.rand(4)
    weft.manual_seed(5)
    assert weft.rand(4).tolist() == a.tolist() != b.tolist()
    weft.manual_seed(6)
    assert weft.rand(4).tolist() != a.tolist()


def test_keys() -> None:
    a = weft.rand(3, 2, key=9)
    assert a.shape == (3, 2)
    assert weft.rand((3, 2), key=weft.tensor([9, 0], "uint32")).tolist() == a.tolist()
    assert weft.rand(2, key=9).tolist() == a.reshape(-1)[:2].tolist()  # element i depends on i only
    with pytest.raises(UsageError, match="uint32"):
        weft.rand(3, key=weft.ones((3,)))
    with pytest.raises(DTypeError, match="randint"):
        weft.rand(3, dtype="int32")


def test_distributions() -> None:
    n = 200_000
    u = weft.rand(n, key=1).numpy()
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.005
    assert np.abs(np.histogram(u, 20, (0, 1))[0] / n - 0.05).max() < 0.003
    z = weft.randn(n, key=2).numpy().astype(np.float64)
    assert abs(z.mean()) < 0.01 and abs(z.std() - 1) < 0.01
    assert abs((z**3).mean()) < 0.05 and abs((z**4).mean() - 3) < 0.1
    i = weft.randint(-3, 4, n, key=3).numpy()
    assert i.min() == -3 and i.max() == 3 and i.dtype == np.int32
    assert np.abs(np.bincount(i + 3) / n - 1 / 7).max() < 0.005
    assert weft.rand(0, key=1).shape == (0,) and weft.rand(key=1).shape == ()
    with pytest.raises(UsageError, match="not a range"):
        weft.randint(3, 3, 1)


# -- limits: half-open ranges stay so in every dtype, and agree with a device ---------------------

NARROW = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("dtype", NARROW)
def test_rand_never_gives_1(dtype: str, device: str | None) -> None:
    u = weft.rand(1 << 20, dtype=dtype, key=1, device=device).numpy().astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003  # 2^-9 below a half in bfloat16
    eager = weft.rand(1 << 20, dtype=dtype, key=1).numpy().astype(np.float64)
    np.testing.assert_array_equal(u, eager)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, 1.0078125), (-3.0, -2.0), (100.0, 101.0)])
def test_uniform_never_gives_its_upper_end(dtype: str, ends: tuple[float, float]) -> None:
    t = weft.zeros((1 << 18,), dtype=dtype)
    u = init.uniform_(t, *ends, key=3).numpy().astype(np.float64)
    assert ends[0] <= u.min() and u.max() < ends[1]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0, 3), (-3, 3), (-(1 << 31), 1 << 31), (-(1 << 31), 1 << 30), (0, (1 << 31) - 1)],
)
def test_randint_is_even_over_any_span(low: int, high: int, device: str | None) -> None:
    i = weft.randint(low, high, 200_000, key=5, device=device).numpy().astype(np.int64)
    assert low <= i.min() and i.max() < high
    assert i.tolist() == weft.randint(low, high, 200_000, key=5).tolist()
    parts = min(3, high - low)
    counts = np.bincount((i - low) * parts // (high - low), minlength=parts)
    assert np.abs(counts / i.size - 1 / parts).max() < 0.005


def test_randint_is_a_fraction_of_64_bits_times_the_span() -> None:
    index, nothing = np.arange(1000, dtype=np.uint32), np.zeros(1000, np.uint32)
    key = (np.full(1000, 7, np.uint32), nothing)
    words = [(int(a) << 32) + int(b) for a, b in zip(*threefry(key, (index, nothing)))]
    for span in (5, 65537, 3_000_000_019, (1 << 32) - 1, 1 << 32):
        got = weft.randint(-(1 << 31), span - (1 << 31), 1000, key=7).numpy().astype(np.int64)
        assert (got + (1 << 31)).tolist() == [w * span >> 64 for w in words]


def test_dropout_of_everything_is_zero_and_of_nothing_is_all() -> None:
    x = weft.tensor(np.float32([1.0, np.inf, np.nan, -2.0]), requires_grad=True)
    out = functional.dropout(x, 1.0, key=1)
    out.sum().backward()
    assert out.tolist() == [0.0] * 4 and x.grad is not None and x.grad.tolist() == [0.0] * 4
    np.testing.assert_array_equal(functional.dropout(x, 0.0).numpy(), x.numpy())


@pytest.mark.parametrize("dtype", NARROW)
def test_randn_is_finite(dtype: str) -> None:
    z = weft.randn(1 << 20, dtype=dtype, key=8).numpy().astype(np.float64)
    assert np.isfinite(z).all() and 4 < np.abs(z).max() < 6


@pytest.mark.parametrize("many", [1, 1 << 40], ids=["kernel", "numpy"])
@pytest.mark.parametrize("kind", ["uniform24", "normal", "below"])
def test_blocks_are_the_numbers_drawn_at_once(
    kind: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = importlib.import_module("weft.tensor.random")
    monkeypatch.setattr(random, "BLOCK", 64)
    monkeypatch.setattr(random, "MANY", many)
    monkeypatch.setattr(random, "_compiled", {})
    key = weft.tensor(np.array([3, 9], np.uint32))
    more = [weft.tensor(np.array([1000], np.uint32))] if kind == "below" else []
    for n in (1, 64, 65, 200):
        whole = random._generate(key, kind, n, *more).numpy()
        assert random._on_host(key, kind, n, *more).numpy().tobytes() == whole.tobytes()
