"""Kernels go through a few of LLVM's passes where a template wrote out their products, or where
WEFT_LLVM=quick asks for it: the same bits as through all."""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.backends.cpu import jit, loader
from weft.backends.cpu.device import CpuDevice
from weft.backends.cpu.host import quickly
from weft.backends.llvm.optimise import has_register_tile
from weft.conform import harness
from weft.conform.check import check_device
from weft.core.errors import UsageError
from weft.tensor import functional as F

ATTENTION = functools.partial(F.attention, causal=True)
CASES = {
    "product": (lambda x, y: x @ y, [(70, 90), (90, 130)], True),
    "convolution": (functools.partial(F.conv2d, padding=1), [(1, 8, 9, 11), (64, 8, 3, 3)], True),
    "depthwise": (
        functools.partial(F.conv2d, padding=1, groups=64), [(1, 64, 9, 11), (64, 1, 3, 3)], False
    ),
    "attention": (ATTENTION, [(1, 2, 70, 64)] * 3, True),
    "gradient": (
        weft.value_and_grad(lambda x, y: (x @ y).tanh().sum(), argnums=(0, 1)),
        [(70, 90), (90, 130)],
        True,
    ),
    "elementwise": (lambda x, y: (x * y).exp() + x, [(70, 90), (70, 90)], False),
}  # fmt: skip


def values(result: Any) -> list[bytes]:
    parts = result if isinstance(result, tuple) else (result,)
    return [
        b for p in parts for b in (values(p) if isinstance(p, tuple) else [p.numpy().tobytes()])
    ]


@pytest.mark.parametrize("name", CASES)
def test_few_passes_give_the_bits_of_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, shapes, tiled = CASES[name]
    rng = np.random.default_rng(0)
    given = [weft.tensor(rng.standard_normal(s, np.float32)) for s in shapes]
    made, seen = [], []

    def noted(text: str) -> bool:
        seen.append(has_register_tile(text))
        return seen[-1] and not made

    monkeypatch.setattr(jit, "has_register_tile", noted)
    for cache in ("few", "all", "quick"):
        monkeypatch.setenv("WEFT_LLVM", "quick" if cache == "quick" else "")
        monkeypatch.setattr(loader, "_linked", OrderedDict())
        on = CpuDevice(threads=1, cache=tmp_path / cache)
        made.append(values(weft.compile(fn, device=on)(*given)))
    assert made[0] == made[1] == made[2]
    if on.caps.lanes >= 8:
        assert any(seen) == tiled


def test_the_passes_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_LLVM", "slow")
    with pytest.raises(UsageError, match="WEFT_LLVM='slow': give quick, or leave it out"):
        quickly()


@pytest.mark.slow
def test_quick_code_has_the_bits_of_all_passes_in_every_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[list[bytes]] = []
    compare = harness.compare

    def noted(got: np.ndarray, *more: Any) -> Any:
        found[-1].append(hashlib.sha256(got.tobytes()).digest())
        return compare(got, *more)

    monkeypatch.setattr(harness, "compare", noted)
    for effort in ("", "quick"):
        monkeypatch.setenv("WEFT_LLVM", effort)
        found.append([])
        assert check_device(registry.get("cpu"), ("kernels", "primitives", "templates")).ok
    assert len(found[0]) > 1000 and found[0] == found[1]
