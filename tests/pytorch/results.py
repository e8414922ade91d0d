"""Results of weft.torch and PyTorch side by side: which of them must be equal, and how closely."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

import weft.torch

DTYPES = {
    torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.float64: "float64", torch.int64: "int64", torch.int32: "int32", torch.uint8: "uint8",
    torch.int8: "int8", torch.int16: "int16", torch.bool: "bool",
}  # fmt: skip
TESTED = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
          torch.bool]  # fmt: skip
# relative and absolute: PyTorch rounds narrow floats after each step, weft once at the end
CLOSE = {"float32": (2e-5, 2e-6), "float64": (1e-9, 1e-9), "float16": (4e-3, 4e-3),
         "bfloat16": (3e-2, 3e-2)}  # fmt: skip
# results that a generator draws: only shape and dtype can agree
DRAWN = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform", "empty",
    "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
    "resize_", "resize_as_", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward",
}  # fmt: skip
# of equal elements any may be named: the elements are compared, not their indices
TIED = {"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"}

# the argument is symmetric, so only the symmetric part of its gradient means something
SYMMETRIC = {"linalg.eigh", "linalg.eigvalsh"}

# steps of bytes: PyTorch's weights are fixed-point numbers
NEAR = {"nn.functional.interpolate": 2, "nn.functional.upsample_bilinear": 1}
# PyTorch's gradient of the tensor that is written to is that of the part that is overwritten
# (as_strided_scatter); linalg.pinv with hermitian has a matrix that is not symmetric
THEIRS = {"as_strided_scatter", "linalg.pinv/hermitian"}


class Foreign(Exception):
    """A sample with something that weft has nowhere: complex numbers, 16-bit integers, sparsity."""


def array(value: torch.Tensor) -> np.ndarray:
    value = value.detach().clone().resolve_neg().contiguous()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return value.numpy().copy()


def tensors(value: Any) -> list[Any]:
    """The tensors and numbers of a result, in order."""
    if isinstance(value, list | tuple):
        return [x for part in value for x in tensors(part)]
    if isinstance(value, dict):
        return tensors(list(value.values()))
    return [] if value is None else [value]


def difference(got: Any, want: Any, drawn: bool, slack: float = 1, step: int = 0) -> str:
    """What distinguishes two results; "" if they agree."""
    a, b = tensors(got), tensors(want)
    if len(a) != len(b):
        return f"{len(a)} results, PyTorch has {len(b)}"
    for x, y in zip(a, b):
        if not isinstance(y, torch.Tensor):
            if isinstance(x, weft.torch.Tensor) or not np.allclose(x, y, equal_nan=True):
                return f"{x!r:.40}, PyTorch has {y!r:.40}"
            continue
        if y.dtype not in DTYPES:
            raise Foreign(str(y.dtype))
        if type(x) is not weft.torch.Tensor:
            return f"a {type(x).__module__}.{type(x).__name__}"
        if (x.dtype.name, x.shape) != (DTYPES[y.dtype], tuple(y.shape)):
            return f"{x._known()}, PyTorch has {DTYPES[y.dtype]}{list(y.shape)}"
        if not drawn and (said := _numbers(x, array(y), slack, step)):
            return said
    return ""


def _numbers(x: Any, want: np.ndarray, slack: float, step: int = 0) -> str:
    have = x.detach().numpy()
    if want.dtype.kind in "biu":
        bad = np.abs(have.astype(np.int64) - want.astype(np.int64)) > step if step else have != want
    else:
        rtol, atol = CLOSE[x.dtype.name]
        a, b = have.astype(np.float64), want.astype(np.float64)
        scale = np.abs(b[np.isfinite(b)]).max(initial=0)
        same = np.isclose(a, b, rtol * slack, atol * slack * min(max(scale, 1), 1e4), True)
        bad = ~same
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{have[at]} at {list(at)}, PyTorch has {want[at]} ({int(bad.sum())} of {bad.size})"
