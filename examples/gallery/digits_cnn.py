"""A convolutional net that reads handwritten digits (scikit-learn's, 8 by 8)."""

from __future__ import annotations

from kit import digits, figure, finish, tiles, training

import weft
from weft import data, functional as F, nn, optim

weft.manual_seed(0)
x, y, test_x, test_y = digits()
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, 10),
)  # fmt: skip
opt = optim.AdamW(net.parameters(), lr=3e-3)
rates = optim.lr_scheduler.OneCycleLR(opt, 5e-3, 20 * 24)
step = training(lambda x, y: F.cross_entropy(net(x), y), opt)
predict = weft.compile(lambda x: net(x).argmax(-1))
loader = data.DataLoader(data.TensorDataset(x, y), 64, shuffle=True, generator=0)

losses, right = [], []
for _ in range(20):
    net.train()
    for batch in loader:
        losses.append(step(*batch).item())
        rates.step()
    net.eval()
    guess = predict(test_x).numpy()
    right.append((guess == test_y).mean())
print(f"right: {right[-1]:.1%} of {len(test_y)} digits that it never saw")

made = figure()
left, middle, last = made.subplots(1, 3, width_ratios=(2, 2, 1.4))
left.plot(losses, lw=0.8)
left.set(xlabel="step", ylabel="loss", yscale="log")
middle.plot([100 * (1 - r) for r in right], marker="o", ms=3)
middle.set(xlabel="epoch", ylabel="errors on new digits (%)", ylim=(0, 20))
wrong = test_x[guess != test_y][:, 0]
tiles(last, wrong if len(wrong) > 1 else test_x[:4, 0], 2)
last.set_title("what it gets wrong", fontsize=9)
finish(made)
