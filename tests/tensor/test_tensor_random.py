"""Random tensors: the generator's published vectors, streams, keys and distributions."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.core.errors import DTypeError, UsageError
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
