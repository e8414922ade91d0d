"""What scripts ask of a tensor before they choose a way, beside PyTorch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch as theirs

import weft.torch as torch
from weft.core.errors import UsageError

FLAGS = ("is_cpu", "is_cuda", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_meta",
         "is_mps", "is_xpu")  # fmt: skip


def facts(m: Any) -> list[Any]:
    x, small = m.tensor([[1.0, 2.0], [3.0, 4.0]]), m.ones(3, dtype=m.uint8)
    return [
        [getattr(x, flag) for flag in FLAGS], str(x.layout), x.layout == m.strided, x.get_device(),
        x.is_shared(), x.to_dense() is x, x.to_dense(dtype=m.float64).dtype == m.float64,
        m.is_signed(x), small.is_signed(), m.is_same_size(x, x), x.is_same_size(small),
        x.new([1, 2]).tolist(), tuple(x.new(2, 3).shape), x.new([5]).dtype == m.float32,
        x.apply_(lambda v: 2 * v + 1) is x, x.tolist(), tuple(x[m.newaxis].shape),
        m.detach(m.ones(2, requires_grad=True)).requires_grad,
    ]  # fmt: skip


def test_facts_are_pytorchs() -> None:
    assert facts(torch) == facts(theirs)


def test_memory_that_weft_does_not_have() -> None:
    x = torch.ones(2)
    assert x.pin_memory() is x and not x.is_pinned() and x.record_stream(None) is None


def test_threads() -> None:
    script = """
import weft, weft.torch as torch
torch.set_num_threads(1)
assert torch.get_num_threads() == 1
assert weft.compile(lambda x: x + 1)(weft.ones(4)).tolist() == [2.0] * 4
from weft.backends.registry import get
assert get("cpu").threads == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(UsageError, match="above 0"):
            torch.set_num_threads(wrong)
