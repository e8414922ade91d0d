"""Tensors made of lists and arrays, and turned into them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import weft
from weft.core import dtypes as dt
from weft.core.errors import DeviceError, DTypeError, ShapeError, UsageError


def test_creation() -> None:
    assert weft.arange(5).tolist() == [0, 1, 2, 3, 4] and weft.arange(5).dtype is dt.int32
    np.testing.assert_allclose(weft.arange(1, 2, 0.25).numpy(), np.arange(1, 2, 0.25), atol=1e-5)
    assert weft.arange(5, 0, -2).tolist() == [5, 3, 1] and weft.arange(3, 1).shape == (0,)
    np.testing.assert_allclose(weft.linspace(-1, 1, 7).numpy(), np.linspace(-1, 1, 7), atol=1e-5)
    assert weft.linspace(0, 1, 10).numpy()[-1] == 1 and weft.linspace(2, 3, 1).tolist() == [2]
    np.testing.assert_allclose(weft.eye(3, 4).numpy(), np.eye(3, 4), atol=1e-5)
    np.testing.assert_allclose(
        weft.tril(weft.ones((4, 4)), -1).numpy(), np.tril(np.ones((4, 4)), -1), atol=1e-5
    )
    np.testing.assert_allclose(
        weft.triu(weft.ones((2, 3, 4)), 1).numpy(), np.triu(np.ones((2, 3, 4)), 1), atol=1e-5
    )
    assert weft.full((2,), True).dtype is dt.bool_ and weft.full((), 3).item() == 3
    assert weft.zeros_like(weft.ones((2,), "int8")).dtype is dt.int8
    with pytest.raises(UsageError, match="step of 0"):
        weft.arange(0, 3, 0)


def test_tensor_of_lists_and_arrays() -> None:
    assert weft.tensor([[1, 2], [3, 4]]).dtype is dt.int32
    assert weft.tensor([1.5]).dtype is dt.float32 and weft.tensor([]).dtype is dt.float32
    assert weft.tensor(np.ones(2)).dtype is dt.float64
    assert weft.tensor([1, 2], dtype="bf16").numpy().dtype == ml_dtypes.bfloat16
    source = np.zeros(3, np.float32)
    t = weft.tensor(source)
    source[0] = 9
    assert t.tolist() == [0, 0, 0]
    assert weft.tensor(torch.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(ShapeError, match="ragged"):
        weft.tensor([[1], [1, 2]])
    with pytest.raises(DTypeError, match="do not fit int32"):
        weft.tensor([1 << 40], dtype="int32")
    with pytest.raises(DTypeError):
        weft.tensor(["a"])
    with pytest.raises(DTypeError):
        weft.tensor(1 + 2j)


def test_dlpack_both_ways_without_a_copy() -> None:
    t = weft.arange(6).reshape(2, 3)
    shared = torch.from_dlpack(t)
    assert shared.tolist() == t.tolist()
    source = torch.arange(4, dtype=torch.float32)
    back = weft.from_dlpack(source)
    source[1] = 50
    assert back.tolist() == [0, 50, 2, 3]
    with pytest.raises(DTypeError, match="bfloat16"):
        torch.from_dlpack(weft.ones((2,), "bfloat16"))
    with pytest.raises(UsageError):
        weft.from_dlpack("no")


def test_conversions() -> None:
    t = weft.tensor([[1.5, 2.0]])
    assert np.asarray(t).dtype == np.float32 and np.array(t, dtype=np.float64).dtype == np.float64
    assert repr(t) == "Tensor([[1.5, 2. ]])"
    assert repr(weft.ones((2,), "bfloat16")) == "Tensor([1., 1.], dtype=bfloat16)"
    assert len(t) == 1 and [r.tolist() for r in t] == [[1.5, 2.0]]
    assert float(weft.tensor(2.5)) == 2.5 and int(weft.tensor(2.5)) == 2
    assert [10, 20][weft.tensor(1)] == 20
    assert isinstance(weft.tensor(True).item(), bool)
    with pytest.raises(ShapeError, match="ambiguous"):
        bool(t > 0)
    with pytest.raises(ShapeError, match="2 elements"):
        t.item()
    with pytest.raises(DTypeError, match="not an index"):
        [1][weft.tensor(0.0)]
    with pytest.raises(DTypeError, match="cannot combine"):
        t + "a"
    with pytest.raises(ShapeError, match="do not broadcast"):
        t + weft.ones((3,))
    with pytest.raises(DeviceError, match="unknown device"):
        t.to("abacus")
