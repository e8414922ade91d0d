"""Each operator of the ATen table against PyTorch's own, on drawn shapes."""

from __future__ import annotations

import inspect
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from aten_cases import CASES, Draw
from hypothesis import given, settings
from rows import few

from weft.core.tolerance import compare
from weft.host.foreign import shared_array
from weft.importers.aten import TABLE, entry
from weft.importers.torch_export.graph import dtype_of
from weft.tensor.core import Tensor

RANDOM = {f"aten.{n}.default" for n in ("rand", "randn", "rand_like", "randn_like")}
DRAWN = {"aten.randint.low", "aten.randint.default", "aten.randperm.default"}
# numbers of an empty tensor are whatever was there
UNSET = {"aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default",
         "aten.empty_strided.default"}  # fmt: skip
SYMBOLS = {n for n in TABLE if not n.startswith("aten.")} | {
    f"aten.{n}" for n in ("sym_size.int", "size.int", "sym_numel.default", "numel.default",
                          "_assert_scalar.default", "_assert_tensor_metadata.default",
                          "_assert_async.default", "_assert_async.msg",
                          "sym_constrain_range.default", "sym_constrain_range_for_size.default")
}  # fmt: skip


def test_every_operator_has_a_case() -> None:
    assert set(TABLE) - set(CASES) - RANDOM - SYMBOLS == set()
    assert set(CASES) <= set(TABLE)


def test_every_operator_has_a_signature() -> None:
    """Imports bind a call's arguments to it."""
    for rule in TABLE.values():
        inspect.signature(rule.run)


def _weft(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        array = shared_array("a test", x)
        return Tensor(array.astype(np.int32) if array.dtype == np.int64 else array)
    if isinstance(x, torch.dtype):
        return dtype_of(str(x))
    if isinstance(x, torch.device):
        return None
    if isinstance(x, list | tuple):
        return type(x)(_weft(v) for v in x)
    return x


def _check(name: str, got: Any, want: Any) -> None:
    if isinstance(want, list | tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            if g is not None:
                _check(name, g, w)
        return
    reference = want.detach()
    wide = reference.float() if reference.dtype == torch.bfloat16 else reference
    array = wide.numpy()
    dtype = dtype_of(str(reference.dtype))
    assert got.dtype == dtype, (name, got.dtype, dtype)
    if name in UNSET | DRAWN:
        assert got.shape == array.shape
        return
    kind = "dot" if dtype.is_float else "exact"
    found = compare(got.numpy().astype(array.dtype), array, kind, dtype)
    assert found.ok, f"{name}: {found.message}"


@pytest.mark.parametrize("count", few([2, 20], 2))
@pytest.mark.parametrize("name", sorted(CASES))
def test_agrees_with_pytorch(name: str, count: int) -> None:
    @settings(max_examples=count, deadline=None, database=None)
    @given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 10_000))
    def run(shape: list[int], seed: int) -> None:
        agree(name, shape, seed)

    run()


def agree(name: str, shape: list[int], seed: int) -> None:
    args = CASES[name](Draw(tuple(shape), seed))
    kwargs = args[-1] if args and isinstance(args[-1], dict) else {}
    args = args[: len(args) - 1] if kwargs else args
    _, base, overload = name.split(".")
    target = getattr(getattr(torch.ops.aten, base), overload)
    found = entry(name)
    assert found is not None
    got = found.run(*_weft(args), **{k: _weft(v) for k, v in kwargs.items()})
    copies = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    want = target(*copies, **kwargs)
    results = found.results
    _check(name, got[:results] if results else got, want[:results] if results else want)
