"""A character GPT: embeddings, causal attention, AdamW, clipping, greedy generation."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F

text = "the quick brown fox jumps over the lazy dog. " * 8
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text], dtype=torch.long)
block, width, heads = 16, 32, 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention()
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(chars), width)
        self.places = nn.Embedding(block, width)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(chars), bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.start)

    def start(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        _, T = idx.shape
        x = self.tokens(idx) + self.places(torch.arange(T, device=idx.device))
        for b in self.blocks:
            x = b(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def generate(self, idx, n):
        for _ in range(n):
            logits, _ = self(idx[:, -block:])
            _, top = torch.topk(logits[:, -1, :], k=1, dim=-1)
            idx = torch.cat((idx, top), dim=1)
        return idx


torch.manual_seed(1337)
model = GPT().to(device)
with torch.no_grad():
    for i, p in enumerate(model.parameters()):
        if p.dim() > 1:
            p.copy_(torch.sin(torch.arange(p.numel()).float() * 0.7 + i).view_as(p) * 0.1)

decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
losses, norms = [], []
for step in range(6):
    for group in optimizer.param_groups:
        group["lr"] = 3e-3 * min(1.0, (step + 1) / 3)
    at = torch.arange(4) * 7 + step
    x = torch.stack([data[i : i + block] for i in at]).to(device)
    y = torch.stack([data[i + 1 : i + 1 + block] for i in at]).to(device)
    logits, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
    optimizer.step()
    losses.append(loss.item())

model.eval()
out = model.generate(torch.zeros((1, 1), dtype=torch.long, device=device), 20)
results = {
    "losses": losses,
    "norms": norms,
    "text": "".join(chars[i] for i in out[0].tolist()),
    "parameters": sum(p.numel() for p in model.parameters()),
    "names": [n for n, _ in model.named_parameters()],
    "shape": tuple(out.shape),
    "dtype": str(out.dtype).replace("torch.", ""),
}
