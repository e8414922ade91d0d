"""The short way of operators (weft/tensor/quick.py) gives what the long way gives."""

import operator
import warnings

import numpy as np
import pytest

import weft
import weft.torch
from weft.core.dtypes import ALL
from weft.tensor import quick

SIGNS = ("add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "ne", "and_", "or_", "xor")
EDGES = {
    "f": [0.0, -0.0, 1.5, -3.0, np.inf, -np.inf, np.nan, 3e38],
    "i": [0, 1, -1, 7, -128, 127, 3, 2],
    "u": [0, 1, 255, 7, 128, 127, 3, 2],
    "b": [0, 1, 1, 0, 0, 0, 1, 1],
    "V": [0.0, -0.0, 1.5, -3.0, np.inf, -np.inf, np.nan, 3e38],
}


def _outcome(fn, *operands):
    """What a call gives or raises, to the last bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            made = fn(*operands)
        except weft.errors.WeftError as error:
            return type(error), str(error)
    return type(made), made.dtype, made.shape, made.numpy().tobytes()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_results_and_errors_are_those_of_the_long_way(dtype, monkeypatch):
    with np.errstate(all="ignore"):
        x = weft.tensor(np.array(EDGES[dtype.numpy.kind]).astype(dtype.numpy))
        y = weft.tensor(np.array(EDGES[dtype.numpy.kind][::-1]).astype(dtype.numpy))
    calls = []
    for sign in SIGNS:
        fn = getattr(operator, sign)
        for other in (y, y[:1], y[3], y.reshape(2, 4), 2, -1, 300, 10**40, 0.3, 1e300, True):
            calls += [(fn, x, other), (fn, other, x)]
    calls += [
        (getattr(weft, n), x) for n in ("exp", "log", "sqrt", "tanh", "abs", "floor", "round")
    ]
    short = [_outcome(*call) for call in calls]
    monkeypatch.setattr(quick, "_ARRAY", None)  # no tensor holds an array of this class
    for call, made in zip(calls, short):
        assert made == _outcome(*call), call


def test_history_classes_and_traces_take_the_long_way():
    leaf = weft.tensor([1.0], requires_grad=True)
    assert (leaf + leaf).requires_grad and (weft.tensor([1.0]) * leaf).requires_grad
    assert leaf.exp().requires_grad
    frozen = weft.nn.Parameter(weft.tensor([1.0])).requires_grad_(False)
    assert type(frozen + frozen) is weft.Tensor and type(-frozen) is weft.Tensor
    kept = weft.tensor([2.0])
    assert weft.compile(lambda x: (x + kept) * kept)(weft.tensor([1.0])).tolist() == [6.0]
    assert (weft.tensor([1.0]) + weft.tensor([2])).dtype.name == "float32"


def test_a_row_is_the_view_that_the_long_way_gives(monkeypatch):
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

    def seen(t):
        x = t.tensor(a.copy())
        first, last, one = x[1], x.permute(2, 0, 1)[-1], x[0][1][2]
        first[0] = 7.0
        last.mul_(2.0)
        return [y.tolist() for y in (x, first, last, one)] + [tuple(last.shape)]

    for t in (weft, weft.torch):
        short = seen(t)
        with monkeypatch.context() as patched:
            patched.setattr(quick, "type", lambda _: None, raising=False)  # it gives None
            assert quick.row(t.tensor(a), 0) is None
            assert seen(t) == short
        with pytest.raises(IndexError):
            t.tensor(a)[2]
