"""Embeddings without labels: two pictures of one digit, moved and noisy, shall be close to each
other and far from all others (SimCLR: Chen et al., arXiv:2002.05709)."""

from __future__ import annotations

from typing import Any

import numpy as np
from kit import digits, figure, finish, shifted, training

import weft
from weft import data, functional as F, nn, optim

EPOCHS, WIDTH = 150, 32
weft.manual_seed(0)
rng = np.random.default_rng(0)
x, y, test_x, test_y = digits()
body = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),
    nn.Linear(1024, 64),
)  # fmt: skip
head = nn.Sequential(nn.ReLU(), nn.Linear(64, WIDTH))
net = nn.Sequential(body, head)


def moved(images: np.ndarray) -> np.ndarray:
    """Each image shifted by up to a pixel, brighter or darker, with noise."""
    out = shifted(images, rng) * rng.uniform(0.7, 1.3, (len(images), 1, 1, 1))
    return (out + rng.normal(0, 0.15, out.shape)).astype(np.float32)


def loss(one: Any, two: Any) -> Any:
    """How surely each picture finds its other half among all of the batch, in nats."""
    n = one.shape[0]
    z = F.normalize(net(weft.cat([one, two])), dim=-1)
    likeness = z @ z.T / 0.3 - weft.eye(2 * n) * 1e9  # not itself
    other = (weft.arange(2 * n, dtype=weft.int32) + n) % (2 * n)
    return F.cross_entropy(likeness, other)


opt = optim.AdamW(net.parameters(), lr=optim.cosine(3e-3, EPOCHS * 5, warmup=20))
step = training(loss, opt)
loader = data.DataLoader(data.TensorDataset(x), 300, shuffle=True, drop_last=True, generator=0)
losses = []
for _ in range(EPOCHS):
    for (images,) in loader:
        losses.append(step(moved(images.numpy()), moved(images.numpy())).item())
net.eval()
embed = weft.compile(lambda x: F.normalize(body(x), dim=-1))


def neighbours(known: np.ndarray, new: np.ndarray) -> float:
    """How often the most of the 5 nearest digits have the class of a new one."""
    near = np.argsort(-(new @ known.T), axis=1)[:, :5]
    votes = np.apply_along_axis(lambda r: np.bincount(r, minlength=10).argmax(), 1, y[near])
    return float((votes == test_y).mean())


few = slice(0, len(x))
points, new = embed(x[few]).numpy(), embed(test_x).numpy()
raw = [v.reshape(len(v), 64) / np.linalg.norm(v.reshape(len(v), 64), axis=1)[:, None]
       for v in (x, test_x)]  # fmt: skip
found = {"embeddings": neighbours(points, new), "pixels": neighbours(*raw)}
print(", ".join(f"5 neighbours by {k}: {v:.1%} right" for k, v in found.items()))

made = figure(10, 4)
left, middle, last = made.subplots(1, 3)
left.plot(losses, lw=0.8)
left.set(xlabel="step", ylabel="loss (nats)")
for axes, (name, known), data_ in ((middle, ("pixels", raw[0]), raw[1]),
                                   (last, ("embeddings", points), new)):  # fmt: skip
    middle_of = known.mean(0)
    axis = np.linalg.svd(known - middle_of, full_matrices=False)[2][:2]
    dots = axes.scatter(*((data_ - middle_of) @ axis.T).T, c=test_y, cmap="tab10", s=9)
    axes.set_title(f"new digits by {name}: {found[name]:.1%}", fontsize=9)
made.colorbar(dots, ax=last, label="class")
finish(made)
