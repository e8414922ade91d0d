"""A small GPT and a small convolutional net, in weft and in PyTorch, with equal names."""

from __future__ import annotations

import math

import torch

import weft
from weft import functional as F, nn

T = torch.nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        b, t, width = x.shape
        shape = (b, t, self.heads, width // self.heads)
        q, k, v = (
            part.reshape(shape).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(width, -1)
        )
        mixed = F.attention(q, k, v, causal=True).transpose(1, 2).reshape(b, t, width)
        x = x + self.proj(mixed)
        return x + self.down(self.up(self.ln_2(x)).gelu("tanh"))


class GPT(nn.Module):
    """Token ids [B, T] -> logits [B, T, vocab]."""

    def __init__(self, vocab: int, context: int, width: int, layers: int, heads: int):
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: weft.Tensor) -> weft.Tensor:
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class TorchBlock(T.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = T.LayerNorm(width), T.LayerNorm(width)
        self.qkv, self.proj = T.Linear(width, 3 * width), T.Linear(width, width)
        self.up, self.down = T.Linear(width, 4 * width), T.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        shape = (b, t, self.heads, width // self.heads)
        q, k, v = (
            part.reshape(shape).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(width, -1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        hidden = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, width))
        return x + self.down(T.functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class TorchGPT(T.Module):
    """The same in PyTorch."""

    def __init__(self, vocab: int, context: int, width: int, layers: int, heads: int):
        super().__init__()
        self.wte, self.wpe = T.Embedding(vocab, width), T.Embedding(context, width)
        self.h = T.ModuleList(TorchBlock(width, heads) for _ in range(layers))
        self.ln_f, self.head = T.LayerNorm(width), T.Linear(width, vocab, bias=False)
        for p in self.parameters():
            if p.ndim > 1:
                T.init.normal_(p, 0.0, 0.08)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def images(m: type) -> object:
    """A net for images [N, 3, 12, 12] in ten classes, of weft.nn or torch.nn."""
    return m.Sequential(  # type: ignore[attr-defined]
        m.Conv2d(3, 8, 3, padding=1, bias=False), m.BatchNorm2d(8), m.ReLU(), m.MaxPool2d(2),
        m.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), m.Conv2d(8, 16, 1, bias=False),
        m.BatchNorm2d(16), m.ReLU(), m.AdaptiveAvgPool2d(1), m.Flatten(), m.Linear(16, 10),
    )  # fmt: skip
