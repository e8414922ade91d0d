"""A vision transformer on the same digits: 16 patches of 2 by 2, with an average of its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from kit import digits, figure, finish, shifted, training

import weft
from weft import data, functional as F, nn, optim

WIDTH, PATCHES, EPOCHS = 64, 16, 60


class ViT(nn.Module):
    def __init__(self) -> None:
        self.embed = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.place = nn.Parameter(weft.randn(PATCHES, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Any) -> Any:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.layers(tokens).mean(1))


weft.manual_seed(0)
rng = np.random.default_rng(0)
x, y, test_x, test_y = digits()
net = ViT()
steps = EPOCHS * -(-len(x) // 100)
opt = optim.AdamW(net.parameters(), lr=optim.cosine(2e-3, steps, warmup=50), weight_decay=0.05)
average = optim.AveragedModel(net, avg_fn=optim.get_ema_avg_fn(0.99))
loader = data.DataLoader(data.TensorDataset(x, y), 100, shuffle=True, generator=0)
step = training(lambda x, y: F.cross_entropy(net(x), y, label_smoothing=0.05), opt)
update = weft.compile(lambda: average.update_parameters(net))
predict = {
    "the net": weft.compile(lambda x: net(x).argmax(-1)),
    "its average": weft.compile(lambda x: average(x).argmax(-1)),
}

right: dict[str, list[float]] = {name: [] for name in predict}
average.eval()
for _ in range(EPOCHS):
    net.train()
    for images, classes in loader:
        step(shifted(images.numpy(), rng), classes)
        update()
    net.eval()
    for name, run in predict.items():
        right[name].append(float((run(test_x).numpy() == test_y).mean()))
print(", ".join(f"{name}: {r[-1]:.1%} right" for name, r in right.items()))

made = figure()
left, last = made.subplots(1, 2, width_ratios=(1.6, 1))
for name, r in right.items():
    left.plot([100 * (1 - v) for v in r], label=name)
left.set(xlabel="epoch", ylabel="errors on new digits (%)", ylim=(0, 30))
left.legend(frameon=False)
place = net.place.detach().numpy()
unit = place / np.linalg.norm(place, axis=1, keepdims=True)
last.imshow(unit @ unit.T, cmap="coolwarm", vmin=-1, vmax=1)
last.set(title="likeness of the places learnt", xlabel="patch", ylabel="patch")
finish(made)
