"""Attention for the contract suites: the tiers that compute it, its operands, and the truth."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dotkit as kit
import numpy as np
import pytest
import torch
from dotkit import f, source
from product_kit import device as named

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.graph.ir import Node
from weft.program.device import Device
from weft.templates.registry import COMPOSITES

BF16, F16, F32 = dt.bfloat16, dt.float16, dt.float32
PLAIN = {"scale": 0.25, "window": 0, "softcap": 0.0}


@dataclass(frozen=True)
class Tier:
    """A device (by its preset's name, "cpu" or "vulkan" for a real one) and the dtype that leads to
    the tier."""

    target: str
    dtype: DType = F32

    @property
    def device(self) -> Device:
        return named(self.target)


TIERS = {
    "one thread": Tier("cpu"),
    "one thread, bf16": Tier("cpu", BF16),
    "16 lanes": Tier("cpu-avx512"),
    "8 lanes": Tier("cpu-avx2"),
    "4 lanes": Tier("cpu-neon"),
    "matrix registers": Tier("cpu-amx", BF16),
    "threads alone": Tier("lavapipe"),
    "threads alone, real": Tier("vulkan"),
    "small groups": Tier("webgpu-small"),
    "groups": Tier("webgpu"),
    "large groups": Tier("cuda"),
    "units, wave 32": Tier("cuda", BF16),
    "units, wave 64": Tier("hip-wave64", BF16),
    "units, f16": Tier("hip-wave32", F16),
}
QUICK = {"one thread", "matrix registers", "threads alone, real", "groups", "units, wave 32"}


def each_tier(quick: set[str] = QUICK) -> pytest.MarkDecorator:
    """Every tier; all but some are for the long run of the tests."""
    marks = {name: [] if name in quick else [pytest.mark.slow] for name in TIERS}
    params = [pytest.param(tier, id=name, marks=marks[name]) for name, tier in TIERS.items()]
    return pytest.mark.parametrize("tier", params)


# -- the truth: PyTorch, in float64


def seen_keys(
    t: int, s: int, causal: bool, window: int, lengths: Sequence[int] | None
) -> torch.Tensor:
    """Which keys each query row sees, [batch or 1, 1, T, S]."""
    gap = torch.arange(t)[:, None] + s - t - torch.arange(s)[None]  # how far a key lies behind
    seen = (gap >= 0) if causal else torch.ones(t, s, dtype=torch.bool)
    seen = (seen & (gap.abs() < window) if window else seen)[None, None]
    if lengths is None:
        return seen
    return seen & (torch.arange(s) < torch.tensor(lengths)[:, None, None, None])


def attend(
    leaves: Sequence[torch.Tensor], seen: torch.Tensor, scale: float, softcap: float
) -> torch.Tensor:
    """Attention by the book of q[B,H,T,D] to k and v [B,G,S,D]; zeros for rows that see nothing."""
    q, *others = leaves
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in others)
    scores = q @ k.mT * scale
    scores = torch.tanh(scores / softcap) * softcap if softcap else scores
    return torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen @ v


def leaves_of(arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    return [torch.tensor(x.astype(np.float64), requires_grad=True) for x in arrays]


# -- whole sequences

ORDERS = {False: (0, 1, 2, 3), True: (0, 2, 1, 3), "turned": (0, 1, 3, 2)}  # of [B,H,T,D]


def place(packed: Any, name: str, shape: tuple[int, ...], dtype: DType) -> tuple[Node, Any]:
    """An operand [B,H,T,D] and the value in memory that it is, its axes in another order."""
    order = ORDERS[packed]
    x = source(name, tuple(shape[i] for i in order), dtype)
    return x, (f.transpose(x, order) if packed else x)


def whole(
    device: Device, b: int, h: int, g: int, t: int, s: int, d: int, dtype: DType = F32, *,
    causal: bool = True, window: int = 0, softcap: float = 0.0,
    lengths: Sequence[int] | None = None, packed: Any = False, config: Any = None,
) -> np.ndarray:  # fmt: skip
    """One `attention`, against the truth; `packed` keeps heads inside rows, [B, T, H, D]."""
    params = {"causal": causal, "scale": d**-0.5, "window": window, "softcap": softcap}
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, d))
    ins, nodes = zip(*(place(packed, n, x, dtype) for n, x in zip("qkv", shapes)))
    arrays = [kit.fill(x) for x in ins]
    n = [] if lengths is None else [source("lengths", (b,), dt.int32)]
    extra = [] if lengths is None else [np.asarray(lengths, np.int32)]
    out = f.call("attention", *nodes, *n, **params)
    if packed is True:
        out = f.reshape(f.transpose(out, (0, 2, 1, 3)), (b, t, h * d))
    (got,) = kit.play(device, "attention", [*ins, *n], [out], [*arrays, *extra], config=config)
    if packed is True:
        got = got.reshape(b, t, h, d).transpose(0, 2, 1, 3)
    seen = seen_keys(t, s, causal, window, lengths)
    plain = leaves_of([x.transpose(ORDERS[packed]) for x in arrays])
    kit.close(got, attend(plain, seen, d**-0.5, softcap).detach().numpy(), dtype, 4)
    return got


def gradients(
    device: Device, b: int, h: int, g: int, t: int, s: int, d: int, dtype: DType = F32, *,
    parts: bool, lengths: Sequence[int] | None = None, packed: Any = False, **params: Any,
) -> None:  # fmt: skip
    """`attention_grad`, or the parts of its body, against the truth."""
    params = {"causal": False, "window": 0, "softcap": 0.0, "scale": d**-0.5, **params}
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, d), (b, h, t, d))
    ins, nodes = zip(*(place(packed, n, x, dtype) for n, x in zip("qkvg", shapes)))
    arrays = [kit.fill(x) for x in ins]
    n = [] if lengths is None else [source("lengths", (b,), dt.int32)]
    extra = [] if lengths is None else [np.asarray(lengths, np.int32)]
    *leaves, slope = leaves_of([x.transpose(ORDERS[packed]) for x in arrays])
    seen = seen_keys(t, s, params["causal"], params["window"], lengths)
    out = attend(leaves, seen, params["scale"], params["softcap"])
    out.backward(slope.detach())

    def play(name: str, count: int, *rows: np.ndarray) -> list[np.ndarray]:
        sums = [source("row", r.shape) for r in rows]
        call = f.call(name, *nodes[:count], *sums, *n, **params)
        outputs = call if isinstance(call, tuple) else [call]
        values = [*arrays[:count], *rows, *extra]
        return kit.play(device, COMPOSITES[name], [*ins[:count], *sums, *n], outputs, values)

    if parts:
        (lse,) = play("attention_lse", 2)
        delta = (slope * out).sum(-1).detach().numpy().astype(np.float32)
        got = play("attention_dq", 4, lse, delta)
        got += [*play("attention_dkv", 4, lse, delta)[0]]
    else:
        got = [x.transpose(0, 2, 1, 3) for x in play("attention_grad", 4)]
    for one, leaf in zip(got, leaves):
        assert leaf.grad is not None
        kit.close(one, leaf.grad.numpy(), dtype, 64)


# -- caches


def cached(
    device: Device, slot: Sequence[int], pos: Sequence[int], h: int = 4, g: int = 2,
    length: int = 96, d: int = 32, *, slots: int = 3, dtype: DType = F32, window: int = 0,
    softcap: float = 0.0, flat: bool = False, wanted: int | None = None, one: bool = False,
) -> np.ndarray:  # fmt: skip
    """One `cached_attention`, against the truth; of `wanted` rows, if they are so many at run
    time: the others hold anything, and so do keys that no row sees. `one` plane may hold keys that
    are the values too."""
    n = len(slot)
    params = {"scale": d**-0.5, "window": window, "softcap": softcap}
    shapes = ((n, h, d), (slots, g, length, d), (slots, g, length, d))
    ins = [source(name, x, dtype) for name, x in zip(("q", "kc", "vc"), shapes)]
    ins += [source(name, (n,), dt.int32) for name in ("slot", "pos")]
    arrays = [kit.fill(x) for x in ins[:3]] + [np.asarray(x, np.int32) for x in (slot, pos)]
    count = n if wanted is None else wanted
    more: dict[str, Any] = {}
    if wanted is not None:
        arrays[2][:, :, max(pos[:count]) + 1 :] = np.nan
        arrays[4][count:] = 1 << 30
        more = {"rows": "n", "slots": {"n": 0}, "scalars": [count]}
    taken = [*ins[:2], ins[1], *ins[3:]] if one else ins
    out = f.call("cached_attention", *taken, **params)
    out = f.reshape(out, (n, h * d)) if flat else out
    if one:
        del ins[2]
        (got,) = kit.play(device, "cached_attention", ins, [out], arrays[:2] + arrays[3:], **more)
        arrays[2] = arrays[1]
    else:
        (got,) = kit.play(device, "cached_attention", ins, [out], arrays, **more)
    got = got.reshape(n, h, d)[:count]
    q, k, v = (np.nan_to_num(x.astype(np.float32)) for x in arrays[:3])
    gap = torch.tensor(pos[:count])[:, None] - torch.arange(length)
    seen = (gap >= 0) & (gap < window if window else True)
    at = np.asarray(slot[:count])
    truth = attend(
        leaves_of([q[:count, :, None], k[at], v[at]]), seen[:, None, None], d**-0.5, softcap
    )
    kit.close(got, truth.detach().numpy()[:, :, 0], dtype, 4)
    return got


# -- groups, for what is asked of kernels


@functools.cache
def operands(shape: tuple[int, ...], dtype: DType, names: str = "qkv") -> tuple[Node, ...]:
    return tuple(source(n, shape, dtype) for n in names)
