"""The GPT of weft.conform.gpt in PyTorch: pre-norm, tied head, learned positions, gelu by tanh."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpulab.cases import Train


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); x is [batch, context, width]."""

    def __init__(self, t: Train) -> None:
        super().__init__()
        d = t.width
        self.heads = t.heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            z.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for z in self.qkv(self.ln1(x)).split(d, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, d))
        wider: torch.Tensor = self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))
        return x + wider


class GPT(nn.Module):
    """ids and targets int64 [batch, context] -> mean cross-entropy."""

    def __init__(self, t: Train) -> None:
        super().__init__()
        self.vocab = t.vocab
        self.wte, self.wpe = nn.Embedding(t.vocab, t.width), nn.Embedding(t.context, t.width)
        self.h = nn.ModuleList(Block(t) for _ in range(t.layers))
        self.lnf = nn.LayerNorm(t.width)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = block(x)
        logits = self.lnf(x) @ self.wte.weight.T
        return F.cross_entropy(logits.view(-1, self.vocab), targets.view(-1))


class Stepper:
    """A training step in bf16 products and float32 weights: forward, backward, fused AdamW."""

    def __init__(self, t: Train, device: torch.device, compiled: bool) -> None:
        torch.manual_seed(0)
        self.kind = device.type
        model: Any = GPT(t).to(device)
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
        )
        make = torch.Generator().manual_seed(0)
        both = torch.randint(0, t.vocab, (t.batch, t.context + 1), generator=make).to(device)
        self.batch = both[:, :-1].contiguous(), both[:, 1:].contiguous()
        self.model = torch.compile(model) if compiled else model
        self.losses: list[float] = []

    def step(self) -> None:
        """One step; the loss is read, as weft's is."""
        with torch.autocast(self.kind, torch.bfloat16):
            loss = self.model(*self.batch)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.losses.append(loss.item())
