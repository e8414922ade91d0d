"""torch.nn.attention: which kernel computes attention. weft has one, whose results never depend on
a choice; and the attention of many heads as one function."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from weft import nn
from weft.core.errors import ShapeError, UsageError
from weft.host.boundary import guard_calls
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.shapes import cat
from weft.torch.tensor import functions, public


class SDPBackend(enum.Enum):
    """PyTorch's kernels of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[None]:
    """Changes nothing: weft's attention has one kernel per device. Raises UsageError for what is
    not an SDPBackend or a list of them."""
    given = backends if isinstance(backends, list | tuple) else [backends]
    if not given or not all(isinstance(b, SDPBackend) for b in given):
        raise UsageError(f"sdpa_kernel: {backends!r:.60}; expected one SDPBackend or several")
    yield


def attend(
    self: Any, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Returns the result and, unless need_weights is False, the weights, averaged over heads."""
    causal = is_causal and attn_mask is None
    masks = (key_padding_mask, need_weights, attn_mask, causal, average_attn_weights)
    if query.ndim == 3:
        return nn.MultiheadAttention.forward(self, query, key, value, *masks)
    axis = 0 if self.batch_first else 1  # one sequence without a batch
    q, k, v = (x.unsqueeze(axis) for x in (query, key, value))
    padding = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    made, weights = nn.MultiheadAttention.forward(self, q, k, v, padding, *masks[1:])
    return made.squeeze(axis), None if weights is None else weights.squeeze(0)


@public
def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None,
    bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor,
    out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The pass of nn.MultiheadAttention with its parameters as arguments: query [T, B, E], key and
    value [S, B, ...] to [T, B, E], and the weights [B, T, S] if needed."""
    if static_k is not None or static_v is not None:
        raise UsageError("multi_head_attention_forward: static_k and static_v are not supported; "
                         "project queries and use scaled_dot_product_attention")  # fmt: skip
    if query.shape[-1] != embed_dim_to_check:
        raise ShapeError(f"multi_head_attention_forward: query {list(query.shape)} for "
                         f"embed_dim_to_check {embed_dim_to_check}")  # fmt: skip
    if num_heads < 1 or embed_dim_to_check % num_heads:
        raise ShapeError(f"multi_head_attention_forward: {embed_dim_to_check} does not divide by "
                         f"{num_heads} heads")  # fmt: skip
    inner = (key.shape[-1], value.shape[-1]) if use_separate_proj_weight else (query.shape[-1],) * 2
    if use_separate_proj_weight and inner == (query.shape[-1],) * 2:  # as the module has it
        given = (q_proj_weight, k_proj_weight, v_proj_weight)
        in_proj_weight = cat([w for w in given if w is not None])
    bias_k, bias_v = (b if b is None else b.reshape(1, 1, -1) for b in (bias_k, bias_v))
    module: Any = object.__new__(nn.MultiheadAttention)  # its pass, with the tensors given
    attributes = {
        "embed_dim": embed_dim_to_check, "num_heads": num_heads, "batch_first": False,
        "head_dim": embed_dim_to_check // num_heads, "kdim": inner[0], "vdim": inner[1],
        "add_zero_attn": add_zero_attn, "in_proj_weight": in_proj_weight,
        "in_proj_bias": in_proj_bias, "q_proj_weight": q_proj_weight,
        "k_proj_weight": k_proj_weight, "v_proj_weight": v_proj_weight, "bias_k": bias_k,
        "bias_v": bias_v, "dropout": nn.Dropout(dropout_p),
        "out_proj": partial(F.linear, weight=out_proj_weight, bias=out_proj_bias),
    }  # fmt: skip
    for name, x in attributes.items():
        setattr(module, name, x)
    masks = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
    return attend(module.train(training), query, key, value, *masks)


guard_calls(globals(), ["sdpa_kernel"], deep=True)


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)


def __dir__() -> list[str]:
    return sorted([*functions(globals()), "SDPBackend", "sdpa_kernel"])
