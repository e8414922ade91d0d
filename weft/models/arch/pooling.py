"""Turns token vectors into one vector per text, on the host (sentence-transformers' modules)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from weft import ops
from weft.core.records import dataclass

Floats = Any  # np.ndarray float32

COMMON_PROMPTS = ("query", "document")  # names that every model has; empty if its files define none

Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
MODES: tuple[Mode, ...] = (
    "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken",
)  # fmt: skip


StepActivation = Literal[  # those of layers, and others
    "silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "tanh", "sigmoid", "identity",
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step that a text's vector goes through after the pooling.

    "normalize" gives it length 1. "dense" is act(W x + b), plus x with `residual` (through a matrix
    of its own, if there is one). "norm" is a layer norm. The arrays of step i are called "i.w",
    "i.b" and "i.residual"; `width` is the length of the result, 0: that of the input.
    """

    kind: Literal["normalize", "dense", "norm"]
    act: StepActivation = "identity"
    residual: bool = False
    width: int = 0
    eps: float = 1e-5


NORMALIZE = Step("normalize")


@dataclass(frozen=True)
class Pooling:
    """The steps from a text to a vector.

    `prompts`, by name, go before the text; `default` names the one used if none is requested.
    Without `include_prompt` the prompt's tokens are not pooled. The results of `modes` are
    concatenated and go through `steps`. The vector is the first `dim` numbers; None: all.
    """

    modes: tuple[Mode, ...] = ("mean",)
    steps: tuple[Step, ...] = ()
    max_length: int | None = None
    lower_case: bool = False
    prompts: tuple[tuple[str, str], ...] = ()
    default: str | None = None
    include_prompt: bool = True
    dim: int | None = None

    def width(self, hidden: int) -> int:
        """Returns the length of a vector made of token vectors of length `hidden`."""
        whole = next((s.width for s in reversed(self.steps) if s.width), hidden * len(self.modes))
        return min(whole, self.dim or whole)


def pool(
    how: Pooling,
    hidden: Floats,
    lengths: np.ndarray,
    skip: np.ndarray | None = None,
    arrays: Mapping[str, np.ndarray] = {},
) -> Floats:
    """Returns one vector per row, float32 [B, dim], from token vectors [B, T, hidden], without the
    first `skip` tokens of each row. `arrays` are the weights of the steps, float32."""
    skip = np.zeros_like(lengths) if skip is None else np.minimum(skip, lengths - 1)
    out = np.concatenate([_pooled(mode, hidden, lengths, skip) for mode in how.modes], axis=1)
    return stepped(how, out.astype(np.float32), arrays)[:, : how.dim]


def stepped(how: Pooling, x: Floats, arrays: Mapping[str, np.ndarray]) -> Floats:
    """Returns rows x float32 [N, K] after the steps."""
    for i, step in enumerate(how.steps):
        own = {k.partition(".")[2]: v for k, v in arrays.items() if k.startswith(f"{i}.")}
        x = _after(step, x, own)
    return x


def normalized(x: Floats) -> Floats:
    """Returns the rows of x float32 [N, dim] with length 1; rows of zeros stay."""
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.maximum(norm, np.float32(1e-12))


def _pooled(mode: Mode, hidden: Floats, lengths: np.ndarray, skip: np.ndarray) -> Floats:
    rows = np.arange(len(hidden))
    if mode == "cls":
        return hidden[rows, skip]
    if mode == "lasttoken":
        return hidden[rows, lengths - 1]
    at = np.arange(hidden.shape[1])[None, :, None]
    inside = (at < lengths[:, None, None]) & (at >= skip[:, None, None])
    if mode == "max":
        return np.where(inside, hidden, -np.inf).max(axis=1)
    # A token of a weighted mean counts as much as its place, from 1 on.
    weights = inside * np.float32(at + 1) if mode == "weightedmean" else inside.astype(np.float32)
    total = np.where(inside, hidden * weights, 0).sum(axis=1, dtype=np.float32)
    count = weights.sum(axis=1, dtype=np.float32)
    return total / (np.sqrt(count) if mode == "mean_sqrt_len_tokens" else count)


def _after(step: Step, x: Floats, w: Mapping[str, np.ndarray]) -> Floats:
    """Returns x float32 [B, K] after a step with the arrays w."""
    if step.kind == "normalize":
        return normalized(x)
    if step.kind == "norm":
        made: np.ndarray = ops.call("layer_norm", x, w["w"], w["b"], eps=step.eps)
        return made
    out = x @ w["w"].T
    out = activated(step.act, out + w["b"] if "b" in w else out)
    if step.residual:
        out = out + (x @ w["residual"].T if "residual" in w else x)
    return out


def activated(name: str, x: Floats) -> Floats:
    """Returns an activation of x float32, which a Step names."""
    if name == "identity":
        return x
    if name == "tanh":
        return np.tanh(x)
    if name == "sigmoid":
        return (0.5 * (1 + np.tanh(0.5 * x))).astype(np.float32)
    from weft.models.arch.layers import activate

    return np.asarray(activate(name, x))  # type: ignore[arg-type]
