"""A physics-informed net: a function of place and time that satisfies Burgers' equation

    u_t + u u_x = (0.05 / pi) u_xx,   u(x, 0) = -sin(pi x),   u(-1, t) = u(1, t) = 0

without any data (Raissi et al., arXiv:1711.10561). Derivatives come from weft.func, steps from
Adam and then L-BFGS; finite differences check the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from kit import figure, finish, training

import weft
from weft import func, nn, optim

THICK = 0.05 / np.pi
weft.manual_seed(0)
rng = np.random.default_rng(0)
net = nn.Sequential(
    nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
    nn.Linear(32, 1),
)  # fmt: skip


def u(x: Any, t: Any) -> Any:
    """Of one point. The start and the walls are built in."""
    free = net(weft.stack([x, t]))[0]
    return -(x * np.pi).sin() * (1.0 - t) + t * (1.0 - x * x) * free


def residual(x: Any, t: Any) -> Any:
    value, (u_x, u_t) = func.value_and_grad(u, (0, 1))(x, t)
    u_xx = func.grad(func.grad(u))(x, t)
    return u_t + value * u_x - THICK * u_xx


rest = func.vmap(residual)
points = rng.uniform((-1, 0), (1, 1), (1500, 2)).astype(np.float32)
points[::3, 0] *= 0.15  # more of them where the front will be
x, t = weft.tensor(points[:, 0]), weft.tensor(points[:, 1])

losses = []
step = training(lambda x, t: (rest(x, t) ** 2).mean(), optim.Adam(net.parameters(), lr=3e-3))
for _ in range(600):
    losses.append(step(x, t).item())
newton = optim.LBFGS(net.parameters(), max_iter=400, line_search_fn="strong_wolfe")


def look() -> Any:
    newton.zero_grad()
    value = (rest(x, t) ** 2).mean()
    value.backward()
    return value


compiled = weft.compile(look)


def closure() -> Any:
    losses.append((value := compiled()).item())
    return value


newton.step(closure)

# The same by finite differences, on 801 places.
places = np.linspace(-1, 1, 801)
true, h, dt = -np.sin(np.pi * places), places[1] - places[0], 1e-4
frames = [true]
for i in range(10000):
    flux = 0.5 * true * true
    new = true.copy()
    speed = np.maximum(np.abs(true[1:]), np.abs(true[:-1]))
    across = 0.5 * (flux[1:] + flux[:-1]) - 0.5 * speed * (true[1:] - true[:-1])
    new[1:-1] += dt * (-(across[1:] - across[:-1]) / h
                       + THICK * (true[2:] - 2 * true[1:-1] + true[:-2]) / h**2)  # fmt: skip
    true = new
    if (i + 1) % 2500 == 0:
        frames.append(true)
run = weft.compile(func.vmap(u, (0, None)))
found = [run(weft.tensor(places.astype(np.float32)), weft.tensor(s)).numpy()
         for s in (0.0, 0.25, 0.5, 0.75, 1.0)]  # fmt: skip
error = np.linalg.norm(np.array(found) - frames) / np.linalg.norm(frames)
print(f"residual {losses[-1]:.1e}, {error:.1%} from finite differences")

made = figure(10, 4)
left, middle, last = made.subplots(1, 3)
left.plot(losses)
left.axvline(600, color="gray", lw=0.8)
left.set(xlabel="evaluation (Adam, then L-BFGS)", ylabel="squared residual", yscale="log")
times = np.linspace(0, 1, 60).astype(np.float32)
film = np.stack([run(weft.tensor(places.astype(np.float32)), weft.tensor(s)).numpy()
                 for s in times], 1)  # fmt: skip
picture = middle.pcolormesh(times, places, film, cmap="coolwarm")
made.colorbar(picture, ax=middle)
middle.set(xlabel="t", ylabel="x", title="u(x, t)")
for s, mine, theirs in zip((0, 0.25, 0.5, 0.75, 1), found, frames):
    (line,) = last.plot(places, mine, label=f"t = {s}")
    last.plot(places[::20], theirs[::20], ".", color=line.get_color(), ms=3)
last.set(xlabel="x")
last.set_title("net (lines), differences (dots)", fontsize=9)
last.legend(frameon=False, fontsize=8)
finish(made)
