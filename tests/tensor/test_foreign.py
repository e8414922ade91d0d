"""Tensors of PyTorch wherever weft takes arrays; and modules by their public names."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import weft
from weft import nn
from weft.errors import DTypeError, ShapeError, UsageError

NAMES = ["bool", "uint8", "int8", "int32", "int64", "uint32", "float16", "bfloat16", "float32",
         "float64"]  # fmt: skip
VALUES = [[0.0, 1.0, 2.5], [3.0, 100.0, 5.0]]


def theirs(name: str) -> torch.Tensor:
    return torch.tensor(VALUES, dtype=getattr(torch, name))


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_keeps_its_bits(name: str) -> None:
    t = theirs(name)
    views = [t, t.T, t[:, ::2], t[0, 1], t[:0], t.expand(2, 2, 3)]
    for x in views:
        for take in (weft.tensor, weft.asarray, weft.from_dlpack):
            got = take(x)
            assert got.dtype.name == name and got.shape == tuple(x.shape)
            want = x.double().numpy()
            np.testing.assert_array_equal(got.cast("float64").numpy(), want)
    assert weft.tensor(t, dtype="float32").dtype == weft.float32


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_with_a_history(name: str) -> None:
    leaf = theirs(name).requires_grad_()
    for x in (leaf, leaf * 2, torch.nn.Parameter(theirs(name))):
        got = weft.tensor(x, requires_grad=True)
        np.testing.assert_array_equal(got.detach().cast("float64"), x.detach().double().numpy())
        (got * got).sum().backward()
        assert got.grad is not None and leaf.grad is None


def test_a_negation_that_torch_has_put_off() -> None:
    x = torch.view_as_complex(torch.tensor([[1.0, 2.0]])).conj().imag
    assert x.is_neg() and weft.tensor(x).tolist() == [-2.0]


def test_bits_are_copied_by_tensor_and_shared_by_from_dlpack() -> None:
    for name in ("float32", "bfloat16"):
        x = theirs(name)
        copy, shared = weft.tensor(x), weft.from_dlpack(x)
        x[0, 0] = 7.0
        assert copy[0, 0].item() == 0.0 and shared[0, 0].item() == 7.0


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_functions_operators_and_compiled_functions_take_them(name: str) -> None:
    x = theirs(name).requires_grad_()
    ours = weft.tensor(x)
    want = (ours + ours).cast("float32").numpy()
    for got in (
        weft.add(x, x), weft.add(ours, x), ours + x, weft.concat([x, x])[:2] * 2,
        weft.compile(lambda a, b: a + b, device="cpu")(x, ours),
        weft.compile(lambda a, b: a[0] + b["b"], device="cpu")([x], {"b": x}),
    ):  # fmt: skip
        np.testing.assert_array_equal(got.cast("float32").numpy(), want)
    assert (ours == x).all().item()
    assert (ours > 1).where(ours, x).dtype == ours.dtype


def test_state_dicts() -> None:
    layer = torch.nn.Linear(3, 2).bfloat16()
    ours = nn.Linear(3, 2)
    for state in (layer.state_dict(), dict(layer.named_parameters())):
        ours.load_state_dict(state)
        np.testing.assert_array_equal(ours.weight.numpy(), layer.weight.detach().float().numpy())


def test_refused_in_a_line() -> None:
    class Odd:
        def __dlpack__(self) -> None:
            raise BufferError("one\ntwo")

    for bad in (torch.ones(2, 3).to_sparse(), torch.empty(2, device="meta"), Odd(),
                torch.zeros(2, dtype=torch.float8_e4m3fn)):  # fmt: skip
        for call in (weft.tensor, weft.from_dlpack, lambda x: weft.ones(2) + x):
            with pytest.raises(UsageError, match="cannot share this") as caught:
                call(bad)
            assert "\n" not in str(caught.value)
    with pytest.raises(DTypeError, match="complex64"):
        weft.tensor(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ShapeError, match="repeat"):
        weft.repeat(weft.ones(2), True)


@pytest.mark.parametrize(
    "name", ["functional", "linalg", "nn", "optim", "errors", "importers", "models"]
)
def test_modules_are_imported_by_their_public_names(name: str) -> None:
    code = (
        f"import weft.{name} as m, weft, sys\n"
        f"from weft import {name} as n\n"
        f"assert m is n is weft.{name} is sys.modules['weft.{name}']\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_functional_is_one_module() -> None:
    import weft.functional as public
    from weft.functional import relu
    from weft.tensor import functional

    assert public is functional is weft.functional and relu is functional.relu
    assert callable(weft.compile) and callable(weft.tensor)
