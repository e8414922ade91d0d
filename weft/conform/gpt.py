"""The small GPT that `weft bench train` measures: the peers' model (shared shapes, hyper-parameters
and data), on plain tensors. Tied head, learned positions, biases, pre-norm, gelu by tanh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.tensor import functional as F


@dataclass(frozen=True)
class Shape:
    """Layers, width, heads, context, batch and vocabulary; the default is the peers' model."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 256
    batch: int = 8
    vocab: int = 512

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.context

    @property
    def matmul_flops(self) -> float:
        """FLOPs of one step's matrix products: forward once, backward twice; causal attention
        counts only the scores that are seen."""
        d, t = self.width, self.context
        linear = 2.0 * self.tokens * (12 * d * d * self.layers + self.vocab * d)
        attention = 4.0 * self.batch * d * (t * (t + 1) / 2) * self.layers
        return 3.0 * (linear + attention)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """One batch of ids and targets, int32 [batch, context]."""
        ids = np.random.default_rng(0).integers(0, self.vocab, (self.batch, self.context + 1))
        return ids[:, :-1].astype(np.int32).copy(), ids[:, 1:].astype(np.int32).copy()

    def parameters(self, device: str = "cpu", seed: int = 1) -> dict[str, weft.Tensor]:
        """Fresh parameters by name: matrices N(0, 0.02), biases 0, norm weights 1."""
        rng, d = np.random.default_rng(seed), self.width
        shapes = {"wte": (self.vocab, d), "wpe": (self.context, d), "lnf.weight": (d,)}
        shapes["lnf.bias"] = (d,)
        for i in range(self.layers):
            for name, (rows, columns) in {
                "qkv": (3 * d, d), "proj": (d, d), "fc": (4 * d, d), "out": (d, 4 * d)
            }.items():  # fmt: skip
                shapes[f"h.{i}.{name}.weight"] = (rows, columns)
                shapes[f"h.{i}.{name}.bias"] = (rows,)
            for name in ("ln1", "ln2"):
                shapes[f"h.{i}.{name}.weight"] = shapes[f"h.{i}.{name}.bias"] = (d,)
        made = {}
        for name, shape in shapes.items():
            if len(shape) > 1:
                array = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
            else:
                array = np.full(shape, float(name.endswith("weight")), np.float32)
            made[name] = weft.tensor(array, device=device, name=name, requires_grad=True)
        return made


def loss(
    shape: Shape, p: Mapping[str, Any], ids: Any, targets: Any, dtype: DType = dt.float32
) -> Any:
    """Mean cross-entropy of the next token; matrix products and attention in `dtype`, the rest
    in float32."""
    x = F.embedding(ids, p["wte"]) + p["wpe"]
    for i in range(shape.layers):
        x = _block(shape, {k: p[f"h.{i}.{k}"] for k in _BLOCK}, x, dtype)
    x = F.layer_norm(x, p["lnf.weight"], p["lnf.bias"])
    logits = _linear(x, p["wte"], None, dtype, dt.float32).reshape(shape.tokens, shape.vocab)
    picked = F.one_hot(targets.reshape(shape.tokens), shape.vocab) * F.log_softmax(logits)
    return -picked.sum() / shape.tokens


_BLOCK = [
    f"{n}.{k}" for n in ("ln1", "qkv", "proj", "ln2", "fc", "out") for k in ("weight", "bias")
]


def _block(s: Shape, p: Mapping[str, Any], x: Any, dtype: DType) -> Any:
    b, t, d = x.shape
    y = F.layer_norm(x, p["ln1.weight"], p["ln1.bias"])
    qkv = _linear(y, p["qkv.weight"], p["qkv.bias"], dtype)
    q, k, v = (
        z.reshape(b, t, s.heads, d // s.heads).transpose(1, 2) for z in qkv.split(d, axis=-1)
    )
    y = F.attention(q, k, v, causal=True).transpose(1, 2).reshape(b, t, d)
    x = x + _linear(y, p["proj.weight"], p["proj.bias"], dtype, dt.float32)
    y = F.layer_norm(x, p["ln2.weight"], p["ln2.bias"])
    y = F.gelu(_linear(y, p["fc.weight"], p["fc.bias"], dtype), approximate="tanh")
    return x + _linear(y, p["out.weight"], p["out.bias"], dtype, dt.float32)


def _linear(x: Any, w: Any, b: Any, dtype: DType, out: DType | None = None) -> Any:
    if dtype != dt.float32:
        x, w = x.cast(dtype), w.cast(dtype)
        b = b if b is None else b.cast(out or dtype)
    return F.linear(x, w, b, out_dtype=out)


class AdamW:
    """Decoupled weight decay Adam (Loshchilov & Hutter 2019) with the peers' hyper-parameters."""

    def __init__(self, parameters: Mapping[str, Any]):
        self.parameters = parameters
        zeros = lambda kind: {  # noqa: E731
            n: weft.tensor(np.zeros(t.shape, np.float32), device=t.device, name=f"{kind}.{n}")
            for n, t in parameters.items()
        }
        self.mean, self.square = zeros("exp_avg"), zeros("exp_avg_sq")
        device = next(iter(parameters.values())).device
        self.count = weft.tensor(0, device=device, name="count")

    def step(self) -> None:
        """Updates every parameter from its .grad and forgets the gradients."""
        lr, b1, b2, eps, decay = 3e-4, 0.9, 0.95, 1e-8, 0.1
        with weft.no_grad():
            count = self.count.assign(self.count + 1).cast(dt.float32)
            c1, c2 = 1.0 - b1**count, 1.0 - b2**count
            for name, t in self.parameters.items():
                g, m, v = t.grad, self.mean[name], self.square[name]
                m.assign(b1 * m + (1.0 - b1) * g)
                v.assign(b2 * v + (1.0 - b2) * g * g)
                t.assign(t * (1.0 - lr * decay) - lr * (m / c1) / ((v / c2).sqrt() + eps))
                t.grad = None
