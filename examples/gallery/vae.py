"""A variational autoencoder: each digit becomes a point of the plane, and each point a digit
(Kingma and Welling, arXiv:1312.6114)."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from kit import digits, figure, finish, tiles, training

import weft
from weft import data, functional as F, nn, optim

EPOCHS = 120
weft.manual_seed(0)
x, y, test_x, test_y = digits()
encode = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
)
decode = nn.Sequential(
    nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64)
)
both = nn.ModuleList([encode, decode])


def bound(x: Any, noise: Any) -> Any:
    """The negative evidence lower bound of a digit, in nats."""
    found = encode(x)
    mean, log_var = found[:, :2], found[:, 2:]
    seen = decode(mean + (log_var * 0.5).exp() * noise)
    wrong = F.binary_cross_entropy_with_logits(seen, x, reduction="none").sum(-1)
    far = 0.5 * (log_var.exp() + mean * mean - 1.0 - log_var).sum(-1)
    return (wrong + far).mean()


steps = EPOCHS * -(-len(x) // 100)
opt = optim.Adam(both.parameters(), lr=optim.cosine(3e-3, steps, warmup=50))
step, measure = training(bound, opt), weft.compile(bound)
rows = data.TensorDataset(x.reshape(-1, 64))
flat = weft.tensor(test_x.reshape(-1, 64))
losses = []
for _ in range(EPOCHS):
    seen = [
        step(images, weft.randn(len(images), 2)).item()
        for (images,) in data.DataLoader(rows, 100, shuffle=True)
    ]
    losses.append((np.mean(seen), measure(flat, weft.randn(len(test_x), 2)).item()))
print(f"bound: {losses[-1][0]:.2f} nats a digit, {losses[-1][1]:.2f} for new ones")

made = figure(11, 4)
left, middle, last = made.subplots(1, 3, width_ratios=(1.1, 1.2, 1))
left.plot(losses, label=["digits trained on", "new digits"])
left.set(xlabel="epoch", ylabel="bound (nats)")
left.legend(frameon=False)
with weft.no_grad():
    places = encode(flat)[:, :2].numpy()
    line = [NormalDist().inv_cdf((i + 0.5) / 12) for i in range(12)]
    grid = weft.tensor([[a, b] for b in reversed(line) for a in line])
    shown = decode(grid).sigmoid().numpy()
dots = middle.scatter(*places.T, c=test_y, cmap="tab10", s=9)
made.colorbar(dots, ax=middle, label="class (the net never saw it)")
middle.set_title("where new digits lie", fontsize=9)
tiles(last, shown.reshape(-1, 8, 8), 12)
last.set_title("what lies there", fontsize=9)
finish(made)
