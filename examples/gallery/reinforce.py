"""A policy learns to balance a pole on a cart (Barto, Sutton and Anderson 1983), by policy
gradients with a learnt baseline and PPO's clipped steps (Schulman et al., arXiv:1707.06347)."""

from __future__ import annotations

from typing import Any

import numpy as np
from kit import figure, finish, training

import weft
from weft import functional as F, nn, optim

CARTS, LONGEST, ROUNDS = 64, 200, 40
weft.manual_seed(0)
rng = np.random.default_rng(0)


def moved(s: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The carts [N, 4] (place, speed, angle, turn) a fiftieth of a second later."""
    place, speed, angle, turn = s.T
    push = (np.where(right, 10.0, -10.0) + 0.05 * turn**2 * np.sin(angle)) / 1.1
    spin = (9.8 * np.sin(angle) - np.cos(angle) * push) / (
        0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
    )
    rush = push - 0.05 * spin * np.cos(angle) / 1.1
    return np.stack([place + 0.02 * speed, speed + 0.02 * rush, angle + 0.02 * turn,
                     turn + 0.02 * spin], 1).astype(np.float32)  # fmt: skip


policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
chances = weft.compile(lambda s: policy(s)[:, :2].softmax(-1))
value = weft.compile(lambda s: policy(s)[:, 2])


def loss(s: Any, action: Any, before: Any, gain: Any, target: Any, weight: Any) -> Any:
    out = policy(s)
    log = out[:, :2].log_softmax(-1)
    chosen = log.gather(1, action[:, None])[:, 0]
    ratio = (chosen - before).exp()
    surely = weft.minimum(ratio * gain, ratio.clip(0.8, 1.2) * gain)
    choice = -(log * log.exp()).sum(-1)
    each = -surely - 0.01 * choice + 0.5 * F.smooth_l1_loss(out[:, 2], target, reduction="none")
    return (each * weight).sum() / weight.sum()


step = training(loss, optim.Adam(policy.parameters(), lr=3e-3))


def play() -> tuple[list[np.ndarray], np.ndarray]:
    """One game of all carts: states, choices, their log chances, alive."""
    s = rng.uniform(-0.05, 0.05, (CARTS, 4)).astype(np.float32)
    alive, kept = np.ones(CARTS, bool), []
    for _ in range(LONGEST):
        p = chances(s).numpy()
        action = (rng.random(CARTS) < p[:, 1]).astype(np.int32)
        kept.append((s, action, np.log(p[np.arange(CARTS), action]), alive.astype(np.float32)))
        s = moved(s, action == 1)
        alive = alive & (np.abs(s[:, 0]) < 2.4) & (np.abs(s[:, 2]) < 0.2095)
        s = np.where(alive[:, None], s, 0.0).astype(np.float32)
    parts = [np.stack(part) for part in zip(*kept)]
    return parts, parts[3].sum(0)


lengths = []
for _ in range(ROUNDS):
    (states, actions, logs, alive), length = play()
    lengths.append(length)
    returns, total = np.zeros((LONGEST, CARTS), np.float32), np.zeros(CARTS, np.float32)
    for t in reversed(range(LONGEST)):
        total = alive[t] + 0.98 * total * (alive[t + 1] if t + 1 < LONGEST else 0.0)
        returns[t] = total
    goal = returns.reshape(-1) / 50
    rows = [states.reshape(-1, 4), actions.reshape(-1), logs.reshape(-1), None, goal,
            alive.reshape(-1)]  # fmt: skip
    gain = rows[4] - value(rows[0]).numpy()
    used = rows[5] > 0
    rows[3] = ((gain - gain[used].mean()) / (gain[used].std() + 1e-6)).astype(np.float32)
    for _ in range(4):
        for part in np.array_split(rng.permutation(LONGEST * CARTS), 4):
            step(*(r[part] for r in rows))
    if lengths[-1].mean() > 198:
        break
games, last_mean = len(lengths), lengths[-1].mean()
print(f"the pole stays up for {last_mean:.0f} of {LONGEST} steps after {games} games")

made = figure()
left, last = made.subplots(1, 2)
shown = np.array(lengths)
left.plot(shown.mean(1), label="mean of 64 carts")
left.fill_between(range(len(shown)), *np.quantile(shown, (0.1, 0.9), 1), alpha=0.2, label="80%")
left.set(xlabel="game", ylabel="steps until the pole falls", ylim=(0, 205))
left.legend(frameon=False)
angle, turn = np.meshgrid(np.linspace(-0.2, 0.2, 60), np.linspace(-2, 2, 60))
grid = np.stack([0 * angle, 0 * angle, angle, turn], -1).reshape(-1, 4).astype(np.float32)
picture = last.pcolormesh(angle, turn, chances(grid).numpy()[:, 1].reshape(60, 60), cmap="coolwarm")
made.colorbar(picture, ax=last, label="chance of a push to the right")
last.set(xlabel="angle (rad)", ylabel="turn (rad/s)", title="the policy, cart at rest")
finish(made)
