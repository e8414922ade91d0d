"""The small GPT that `weft bench train` measures: the peers' model, data and hyper-parameters.
Pre-norm, tied head, learned positions, biases, gelu by tanh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft import nn, optim
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.tensor import functional as F


@dataclass(frozen=True)
class GptSizes:
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


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); x is [batch, context, width]."""

    def __init__(self, s: GptSizes):
        d = s.width
        self.heads = s.heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = (
            z.reshape(b, t, self.heads, d // self.heads).transpose(1, 2)
            for z in self.qkv(self.ln1(x)).split(d, axis=-1)
        )
        mixed = F.attention(q, k, v, causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(mixed)
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    """ids and targets int32 [batch, context] -> mean cross-entropy. Matrices start N(0, 0.02),
    biases 0. With `checkpoint` the backward pass computes each block again."""

    def __init__(self, s: GptSizes, checkpoint: bool = False, seed: int = 1):
        self.shape, self.checkpoint = s, checkpoint
        self.wte, self.wpe = nn.Embedding(s.vocab, s.width), nn.Embedding(s.context, s.width)
        self.h = nn.ModuleList([TransformerBlock(s) for _ in range(s.layers)])
        self.lnf = nn.LayerNorm(s.width)
        rng, state = np.random.default_rng(seed), self.state_dict()
        for name, array in state.items():
            if array.ndim > 1:
                state[name] = rng.standard_normal(array.shape, np.float32) * np.float32(0.02)
            elif name.endswith("bias"):
                state[name] = np.zeros_like(array)
        self.load_state_dict(state)

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = weft.checkpoint(block, x) if self.checkpoint else block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        rows = self.shape.tokens
        return F.cross_entropy(logits.reshape(rows, self.shape.vocab), targets.reshape(rows))


class Trainer:
    """The model, AdamW over all of its parameters, one batch, and the compiled step. Matrix
    products run in `dtype`; weights, optimiser and the rest stay float32."""

    def __init__(
        self, s: GptSizes, device: str, dtype: DType = dt.float32, checkpoint: bool = False
    ):  # fmt: skip
        self.model = GPT(s, checkpoint).to(device)
        self.optimiser = optim.AdamW(
            self.model.named_parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
        )
        self.batch = [weft.tensor(a, device=device) for a in s.data()]

        def train_step(ids: Any, targets: Any) -> Any:
            with weft.autocast(dtype, dtype != dt.float32):
                loss = self.model(ids, targets)
            loss.backward()
            self.optimiser.step()
            self.optimiser.zero_grad()
            return loss

        self.compiled = weft.compile(train_step, device=device)

    def step(self) -> float:
        """One step; returns the loss before it."""
        return float(self.compiled(*self.batch).item())

    def arena_bytes(self) -> int:
        """Bytes that the step's Program needs for what it computes on the way."""
        (program,) = self.compiled.programs()
        return sum(b.nbytes for b in program.buffers if b.role == "arena")

    def size(self) -> int:
        """The number of parameters of the model."""
        return sum(t.size for t in self.model.parameters())
