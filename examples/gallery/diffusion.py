"""A diffusion model of digits: a net learns to see the noise in an image; taking it away step by
step turns noise into digits of a class (Ho et al., arXiv:2006.11239)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from kit import digits, figure, finish, tiles, training

import weft
from weft import data, nn, optim

STEPS, WIDTH, EPOCHS = 100, 256, 150

angle = (np.arange(STEPS + 1) / STEPS + 0.008) / 1.008 * math.pi / 2
kept = np.cos(angle) ** 2 / np.cos(angle[0]) ** 2  # the share of the image, by step
share = weft.tensor(np.clip(kept[1:], 1e-4, 1.0).astype(np.float32))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        self.time, self.label = nn.Embedding(STEPS, WIDTH), nn.Embedding(10, WIDTH)
        self.start = nn.Linear(64, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU(),
                          nn.Linear(WIDTH, WIDTH))
            for _ in range(4)
        )  # fmt: skip
        self.end = nn.Linear(WIDTH, 64)

    def forward(self, x: Any, t: Any, label: Any) -> Any:
        h, known = self.start(x), self.time(t) + self.label(label)
        for block in self.blocks:
            h = h + block(h + known)
        return self.end(h)


weft.manual_seed(0)
x, y, *_ = digits()
net = Denoiser()
steps = EPOCHS * -(-len(x) // 150)
opt = optim.AdamW(net.parameters(), lr=optim.cosine(2e-3, steps, warmup=100))
average = optim.AveragedModel(net, avg_fn=optim.get_ema_avg_fn(0.995))


def loss(x: Any, label: Any, t: Any, noise: Any) -> Any:
    a = share[t][:, None]
    return ((net(x * a.sqrt() + noise * (1.0 - a).sqrt(), t, label) - noise) ** 2).mean()


step = training(loss, opt)
update = weft.compile(lambda: average.update_parameters(net))
rows = data.TensorDataset(x.reshape(-1, 64) * 2 - 1, y)
losses = []
for _ in range(EPOCHS):
    for images, labels in data.DataLoader(rows, 150, shuffle=True):
        t, noise = weft.randint(0, STEPS, len(images)), weft.randn(len(images), 64)
        losses.append(step(images, labels, t, noise).item())
        update()
print(f"squared error of the noise: {np.mean(losses[-100:]):.3f} (1 for a guess of nothing)")

see = weft.compile(lambda x, t, label: average(x, t.expand(x.shape[0]), label))
label = weft.tensor(np.repeat(np.arange(10), 12).astype(np.int32))
now = weft.randn(120, 64)
films = []
for i in reversed(range(STEPS)):
    a, before = float(share[i].item()), float(share[i - 1].item()) if i else 1.0
    noise = see(now, weft.tensor([i]), label)
    clean = ((now - noise * math.sqrt(1 - a)) / math.sqrt(a)).clip(-1.0, 1.0)
    spread = math.sqrt((1 - before) / (1 - a) * (1 - a / before))
    rest = math.sqrt(max(1 - before - spread**2, 0.0))
    found = (now - clean * math.sqrt(a)) / math.sqrt(1 - a)
    now = clean * math.sqrt(before) + found * rest + weft.randn(120, 64) * spread
    if i % 20 == 0:
        films.append(now.numpy().reshape(10, 12, 8, 8)[:, 0].clip(-1, 1))

made = figure(8, 5)
left, last = made.subplots(1, 2, width_ratios=(1, 2.2))
tiles(left, np.stack(films, 1).reshape(-1, 8, 8), len(films))
left.set_title("from noise to a digit", fontsize=9)
tiles(last, now.numpy().reshape(-1, 8, 8).clip(-1, 1), 12)
last.set_title("new digits, a row for each class", fontsize=9)
finish(made)
