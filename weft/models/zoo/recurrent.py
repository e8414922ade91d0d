"""In the tracing process: replacements of transformers' short convolutions and recurrences. Every
model calls its own module's functions for them, under the same names. While a model is traced,
those of `NAMES` are ours, each an operator that the engine gives its meaning with a state by slot
(`models.arch.traced`). A name alone proves nothing: each function is called with small random
numbers first, and must give what ours does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad, silu, softplus
from transformers.activations import ACT2FN

from weft import ops
from weft.models.zoo.operators import HOST, Refused

CLOSE = 1e-4  # difference of results, of the largest


@torch.library.custom_op("weft::short_conv", mutates_args=())
def short_conv_op(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Each channel of x [B, T, C] over its last rows, times taps [C, K]."""
    count = taps.shape[1]
    rows = pad(x, (0, 0, count - 1, 0))
    return sum((rows[:, k : k + x.shape[1]] * taps[:, k] for k in range(count)), 0 * x)


@short_conv_op.register_fake
def _(x: Any, taps: Any) -> Any:
    return torch.empty_like(x)


@torch.library.custom_op("weft::recurrence", mutates_args=())
def recurrence_op(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor,
    rate: torch.Tensor | None, scale: float,
) -> torch.Tensor:  # fmt: skip
    """The engine's `recurrence` (weft.ops) from empty memories, [B, T, H, V]. Here q and k are [B,
    T, G, K], v [B, T, H, V], decay [B, T, H], [B, T, H, K] or [B, T, H, K, V], rate [B, T, H] or
    None."""
    given = [x.numpy() for x in (q, k, v, decay, rate) if x is not None]
    slot = np.array([-1, *[0] * (v.shape[1] - 1)], np.int32)
    memory = np.zeros((1, v.shape[2], q.shape[3], v.shape[3]), np.float32)
    made = [ops.call("recurrence", *one, slot, memory, tiled=False, scale=scale)[0]
            for one in zip(*given)]  # fmt: skip
    return torch.from_numpy(np.stack(made))


@recurrence_op.register_fake
def _(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    return torch.empty_like(v)


def _known(name: str, **given: Any) -> None:
    """Raises Refused for unsupported arguments that change results."""
    for key, value in given.items():
        if value is not None and value is not False:
            raise Refused(f"{name} takes {key}, which is not known here")


def convolved(
    hidden_states: Any, weight: Any, bias: Any = None, activation: str | None = None,
    seq_idx: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """transformers' causal_conv1d_fn: hidden states [B, C, T], weight [C, K] -> [B, C, T]."""
    _known("a short convolution", seq_idx=seq_idx)
    out = short_conv_op(hidden_states.transpose(1, 2), weight)
    if bias is not None:
        out = out + bias
    if activation is not None:
        out = ACT2FN[activation](out)
    return out.transpose(1, 2)


def delta_rule(
    query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None, **more: Any,
) -> tuple[Any, None]:  # fmt: skip
    """transformers' torch_chunk_gated_delta_rule: queries and keys [B, T, G, K], values [B, T, H,
    V], g (logarithm of the decay) and beta (rate) [B, T, H]. Kimi's g is [B, T, H, K]."""
    _known("a delta rule", state=initial_state, output=output_final_state, lengths=cu_seqlens)
    q, k, v, g, beta = (x.float() for x in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    out = recurrence_op(q, k, v, g.exp(), beta, query.shape[-1] ** -0.5)
    return out.to(query.dtype), None


def chunk_scan(
    hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, D: Any = None,
    dt_bias: Any = None, initial_states: Any = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False,
    z: Any = None, seq_idx: Any = None, cu_seqlens: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """transformers' mamba2_chunk_scan: hidden states [B, T, H, P], dt [B, T, H], A [H], B and C
    [B, T, G, N], D [H] -> [B, T, H, P]."""
    _known("a scan", state=initial_states, output=return_final_states, z=z, indices=seq_idx,
           lengths=cu_seqlens)  # fmt: skip
    step = _step(dt, dt_bias, dt_softplus).clamp(*dt_limit)
    x, keys, queries = (given.float() for given in (hidden_states, B, C))
    decay = (A.float() * step.float()).exp()
    out = recurrence_op(queries, keys, x * step.float().unsqueeze(-1), decay, None, 1.0)
    return out if D is None else out + x * D.unsqueeze(-1)


def selective_scan(
    hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None,
    delta_bias: Any = None, delta_softplus: bool = False, return_last_state: bool = False,
    **more: Any,
) -> Any:  # fmt: skip
    """transformers' mamba_selective_scan: hidden states and dt [B, I, T], A [I, N], B and C [B, N,
    T], D [I] -> [B, I, T]. It is one head, whose memory [N, I] fades element by element."""
    _known("a scan", output=return_last_state)
    x, queries, keys = (y.float().transpose(1, 2) for y in (hidden_states, C, B))
    step = _step(dt.transpose(1, 2), delta_bias, delta_softplus).float()
    decay = (A.float().T * step.unsqueeze(2)).exp()
    one = (y.unsqueeze(2) for y in (queries, keys, x * step, decay))
    out = recurrence_op(*one, None, 1.0).squeeze(2)
    out = (out if D is None else out + x * D).transpose(1, 2)
    return out if z is None else out * silu(z)


def wkv(
    time_decay: Any, time_first: Any, key: Any, value: Any, state: Any = None,
    return_state: bool = False,
) -> tuple[Any, None]:  # fmt: skip
    """transformers' rwkv_linear_attention: keys and values [B, T, C], time_decay and time_first [C]
    -> [B, T, C]. A mean of values weighted by exp(key), which fades, and of the row's own by
    exp(key + time_first) (Peng et al., arXiv:2305.13048). Sums are not kept relative to the largest
    key, so float32 holds keys below 80."""
    _known("a linear attention", state=state, output=return_state)
    keys, values = key.float(), value.float()
    weight, own = keys.exp(), (keys + time_first).exp()
    both = torch.stack((weight * values, weight), 2)  # two heads: sums of values, and of weights
    count = both.shape[-1]
    one = torch.ones_like(both[..., :1])
    fades = (-time_decay.float().exp()).exp() * torch.ones_like(both)
    taps = torch.ones_like(both[0, 0].reshape(-1))
    earlier = short_conv_op(both.flatten(2), torch.stack((taps, torch.zeros_like(taps)), 1))
    sums = recurrence_op(one, one, earlier.unflatten(2, (2, count)), fades.unsqueeze(3), None, 1.0)
    out = (sums[:, :, 0] + own * values) / (sums[:, :, 1] + own)
    return out.to(value.dtype), None


def _step(dt: Any, bias: Any, soft: bool) -> Any:
    step = dt if bias is None else dt + bias.to(dt.dtype)
    return softplus(step) if soft else step


def _random(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    random = np.random.default_rng(0)
    return [torch.from_numpy(random.standard_normal(s).astype(np.float32)) for s in shapes]


def _conv_trials() -> Iterator[dict[str, Any]]:
    x, w, b = _random((2, 6, 9), (6, 4), (6,))
    yield {"hidden_states": x, "weight": w}
    yield {"hidden_states": x, "weight": w, "bias": b, "activation": "silu"}


def _delta_trials(groups: int, by_element: bool) -> Iterator[dict[str, Any]]:
    q, k, v, g, beta = _random(
        (2, 70, groups, 8), (2, 70, groups, 8), (2, 70, 4, 6),
        (2, 70, 4, *[8] * by_element), (2, 70, 4),
    )  # fmt: skip
    yield {
        "query": q, "key": k, "value": v, "g": -g.abs() / 4, "beta": beta.sigmoid(),
        "initial_state": None, "output_final_state": False, "use_qk_l2norm_in_kernel": True,
    }  # fmt: skip


def _chunk_trials() -> Iterator[dict[str, Any]]:
    x, dt, a, keys, queries, d, bias = _random(
        (2, 11, 4, 6), (2, 11, 4), (4,), (2, 11, 2, 5), (2, 11, 2, 5), (4,), (4,)
    )
    given = {"dt": dt, "A": -a.abs(), "B": keys, "C": queries, "chunk_size": 4, "dt_softplus": True}
    yield given | {"hidden_states": x, "D": d, "dt_bias": bias, "dt_limit": (0.1, 1.5)}
    yield given | {"hidden_states": x}


def _selective_trials() -> Iterator[dict[str, Any]]:
    x, dt, a, keys, queries, d, z, bias = _random(
        (2, 6, 9), (2, 6, 9), (6, 5), (2, 5, 9), (2, 5, 9), (6,), (2, 6, 9), (6,)
    )
    given = {"dt": dt, "A": -a.abs(), "B": keys, "C": queries, "delta_softplus": True}
    yield given | {"hidden_states": x, "D": d, "z": z, "delta_bias": bias}
    yield given | {"hidden_states": x}


def _wkv_trials() -> Iterator[dict[str, Any]]:
    decay, first, key, value = _random((6,), (6,), (2, 9, 6), (2, 9, 6))
    yield {"time_decay": decay, "time_first": first, "key": key, "value": value}


class StandIn(NamedTuple):
    """A stand-in for a function, and arguments to try both with."""

    function: Callable[..., Any]
    trials: Callable[[], Iterator[dict[str, Any]]]


NAMES: dict[str, StandIn] = {
    "causal_conv1d_fn": StandIn(convolved, _conv_trials),
    "torch_chunk_gated_delta_rule": StandIn(delta_rule, lambda: _delta_trials(2, False)),
    "chunk_kimi_delta_attention": StandIn(delta_rule, lambda: _delta_trials(4, True)),
    "mamba2_chunk_scan": StandIn(chunk_scan, _chunk_trials),
    "mamba_selective_scan": StandIn(selective_scan, _selective_trials),
    "rwkv_linear_attention": StandIn(wkv, _wkv_trials),
}


@contextmanager
def replaced(model: Any) -> Iterator[None]:
    """Puts our functions in the places of transformers' in the modules of a model, meanwhile.
    Raises Refused for one that computes something else."""
    homes = {type(module).__module__: None for module in model.modules()}
    before = []
    try:
        for home in map(sys.modules.get, homes):
            for name, stand_in in NAMES.items():
                original = getattr(home, name, None)
                if original is not None:
                    _check(name, original, stand_in)
                    before.append((home, name, original))
                    setattr(home, name, stand_in.function)
        yield
    finally:
        for home, name, original in before:
            setattr(home, name, original)


def _check(name: str, original: Callable[..., Any], stand_in: StandIn) -> None:
    with torch.no_grad(), HOST:
        for given in stand_in.trials():
            wanted, got = (_first(f(**given)) for f in (original, stand_in.function))
            if wanted.shape != got.shape or (wanted - got).abs().max() > CLOSE * wanted.abs().max():
                raise Refused(f"its {name} computes something else than others of this name")


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result
