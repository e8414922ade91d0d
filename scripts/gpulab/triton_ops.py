"""Row kernels and a matmul in Triton's public API, as a reader of its documentation would write
them: a program per row (or per block of the product), block sizes by autotuning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
import triton
import triton.language as tl


@triton.jit
def _softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * stride + at, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + at, powers / tl.sum(powers, axis=0), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Along the last axis of a matrix."""
    out = torch.empty_like(x)
    r, c = x.shape
    block = triton.next_power_of_2(c)
    _softmax[(r,)](x, out, x.stride(0), c, BLOCK=block, num_warps=16 if block > 2048 else 4)
    return out


@triton.jit
def _layernorm(x, w, b, out, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    apart = tl.where(inside, values - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(apart * apart, axis=0) / columns + eps)
    weight = tl.load(w + at, mask=inside, other=0.0)
    bias = tl.load(b + at, mask=inside, other=0.0)
    tl.store(out + row * stride + at, apart * scale * weight + bias, mask=inside)


def layernorm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Along the last axis of a matrix, eps 1e-5."""
    out = torch.empty_like(x)
    r, c = x.shape
    block = triton.next_power_of_2(c)
    warps = 16 if block > 2048 else 4
    _layernorm[(r,)](x, w, b, out, x.stride(0), c, 1e-5, BLOCK=block, num_warps=warps)
    return out


def _blocks() -> list[Any]:
    shapes = ((128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 32, 4, 4), (64, 64, 32, 4, 4))
    return [
        triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in shapes
    ]


@triton.autotune(configs=_blocks(), key=["m", "n", "k"])
@triton.jit
def _matmul(x, y, out, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # Eight blocks of rows share their blocks of columns in the second cache.
    wide, high = tl.cdiv(n, BN), tl.cdiv(m, BM)
    group = tl.program_id(0) // (8 * wide)
    rows = tl.minimum(high - group * 8, 8)
    inner = tl.program_id(0) % (8 * wide)
    bm, bn = group * 8 + inner % rows, inner // rows
    at_m = bm * BM + tl.arange(0, BM)
    at_n = bn * BN + tl.arange(0, BN)
    at_k = tl.arange(0, BK)
    left = x + at_m[:, None] * k + at_k[None, :]
    right = y + at_k[:, None] * n + at_n[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, k, BK):
        kept = at_k < k - step
        a = tl.load(left, mask=(at_m < m)[:, None] & kept[None, :], other=0.0)
        b = tl.load(right, mask=kept[:, None] & (at_n < n)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        left += BK
        right += BK * n
    where = out + at_m[:, None] * n + at_n[None, :]
    inside = (at_m < m)[:, None] & (at_n < n)[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=inside)


def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Row-major matrices; float32 sums (no tf32)."""
    (m, k), n = x.shape, y.shape[1]
    out = torch.empty((m, n), device=x.device, dtype=x.dtype)
    _matmul[lambda c: (triton.cdiv(m, c["BM"]) * triton.cdiv(n, c["BN"]),)](x, y, out, m, n, k)
    return out


OPS: dict[str, Callable[..., Any]] = {"softmax": softmax, "layernorm": layernorm, "matmul": matmul}
