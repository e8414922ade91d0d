"""A table: 30 measurements of cell nuclei (scikit-learn's breast cancer data), benign or malignant.
Five nets are trained at once by vmap, and their mean answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from kit import figure, finish
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve

import weft
from weft import func, functional as F, nn, optim

weft.manual_seed(0)
table = load_breast_cancer()
order = np.random.default_rng(0).permutation(len(table.target))
held, rest = order[:170], order[170:]
mean, spread = table.data[rest].mean(0), table.data[rest].std(0)
rows = ((table.data - mean) / spread).astype(np.float32)
labels = table.target.astype(np.float32)

nets = [
    nn.Sequential(nn.Linear(30, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    for _ in range(5)
]
params, _ = func.stack_module_state(nets)


def score(p: Any, x: Any) -> Any:
    return func.functional_call(nets[0], p, x).squeeze(-1)


scores = func.vmap(score, in_dims=(0, None))
opt = optim.AdamW(list(params.items()), lr=3e-3, weight_decay=0.3)


def loss(x: Any, y: Any) -> Any:
    found = scores(params, x)  # [5, rows]
    each = F.binary_cross_entropy_with_logits(found, y.expand(found.shape), reduction="none")
    return each.mean(-1).sum()


def step(x: Any, y: Any) -> Any:
    opt.zero_grad()
    value = loss(x, y)
    value.backward()
    opt.step()
    return value


run, losses = weft.compile(step), []
new = weft.compile(lambda: loss(weft.tensor(rows[held]), weft.tensor(labels[held])) / 5)
for _ in range(120):
    losses.append((run(rows[rest], labels[rest]).item() / 5, new().item()))
answers = scores(params, weft.tensor(rows[held])).detach().sigmoid().mean(0).numpy()
line = LogisticRegression(max_iter=1000).fit(rows[rest], labels[rest])
both = {"five nets": answers, "logistic regression": line.predict_proba(rows[held])[:, 1]}

made = figure()
left, last = made.subplots(1, 2)
left.plot(losses, label=["rows trained on", "new rows"])
left.set(xlabel="step", ylabel="loss", yscale="log")
left.legend(frameon=False)
for name, found in both.items():
    area = roc_auc_score(labels[held], found)
    print(f"{name}: {((found > 0.5) == labels[held]).mean():.1%} right, area {area:.4f}")
    last.plot(*roc_curve(labels[held], found)[:2], label=f"{name}: area {area:.3f}")
last.set(xlabel="false alarms", ylabel="found", title="170 new patients", xlim=(-0.01, 0.3))
last.legend(frameon=False)
finish(made)
