"""The weights of latent attention: each layer's matrix that makes keys and values, joined as in
checkpoints, or in two as a model that serves has it (`latent`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from weft.core.packed import Packed, dequantized
from weft.models.arch.config import DecoderConfig, WeightSpec
from weft.models.arch.weights import Value, Weight


def absorbed(
    c: DecoderConfig, weights: Mapping[str, Weight]
) -> tuple[DecoderConfig, Mapping[str, Weight]]:
    """Returns config and weights of a model that serves: each layer's joined matrix of keys and
    values in two, with heads of keys turned. A packed one's keys become floats, because its scales
    are along the other axis. Others are unchanged."""
    d = c.latent
    if d is None:
        return c, weights
    if d.absorbed:
        return c, {role: w for role, w in weights.items() if not role.endswith(".kv_b.w")}
    found: dict[str, Weight] = {}
    for role, weight in weights.items():
        if not role.endswith(".kv_b.w"):
            found[role] = weight
            continue
        halves = {
            "k_b": (_keys, (c.heads * d.rank, d.plain)),
            "v_b": (_values, (c.heads * d.value, d.rank)),
        }
        for part, (take, shape) in halves.items():
            spec = WeightSpec(weight.spec.name, shape, "matrix")
            found[role.replace("kv_b", part)] = weight.then(partial(take, c))._replace(spec=spec)
    return in_latents(c), found


def with_joined(c: DecoderConfig, weights: Mapping[str, Weight]) -> Mapping[str, Weight]:
    """Returns the weights with the joined matrices, which adapters are for, in addition to their
    parts."""
    d = c.latent
    if d is None or not d.absorbed:
        return weights
    shape, found = (c.heads * (d.plain + d.value), d.rank), dict(weights)
    for role, keys in weights.items():
        if role.endswith(".k_b.w"):
            values = weights[role.replace("k_b", "v_b")]
            spec = WeightSpec(keys.spec.name, shape, "matrix")
            found[role.replace("k_b", "kv_b")] = Weight(spec, partial(_join, c, keys, values))
    return found


def _join(c: DecoderConfig, keys: Weight, values: Weight) -> Value:
    assert c.latent is not None
    k, v = (dequantized(*x) if isinstance(x, Packed) else x for x in (keys.value(), values.value()))
    k = k.reshape(c.heads, c.latent.rank, -1).swapaxes(1, 2)
    both = np.concatenate([k, v.reshape(c.heads, -1, c.latent.rank)], 1)
    return both.reshape(-1, c.latent.rank)


def in_latents(c: DecoderConfig) -> DecoderConfig:
    """Returns the config whose cache holds latents."""
    assert c.latent is not None
    size = c.latent.rank + c.latent.turned
    return replace(c, kv_heads=1, head_dim=size, latent=replace(c.latent, absorbed=True))


def joined(c: DecoderConfig) -> DecoderConfig:
    """Returns a config whose layout has one matrix of keys and values, as checkpoints do."""
    return c if c.latent is None else replace(c, latent=replace(c.latent, absorbed=False))


def _keys(c: DecoderConfig, value: Value) -> Value:
    """Returns each head's matrix of keys, from kv_b [H * (plain + value), rank] to
    [H * rank, plain]."""
    assert c.latent is not None
    wide = dequantized(*value) if isinstance(value, Packed) else value
    keys = wide.reshape(c.heads, -1, wide.shape[1])[:, : c.latent.plain]
    return np.ascontiguousarray(keys.swapaxes(1, 2)).reshape(-1, c.latent.plain)


def _values(c: DecoderConfig, value: Value) -> Value:
    """Returns each head's matrix of values, [H * value, rank]."""
    assert c.latent is not None
    first = c.latent.plain

    def rows(x: np.ndarray) -> np.ndarray:
        of_heads = x.reshape(c.heads, -1, *x.shape[1:])[:, first:]
        return np.ascontiguousarray(of_heads).reshape(-1, *x.shape[1:])

    if isinstance(value, Packed):
        return value._replace(parts={name: rows(x) for name, x in value.parts.items()})
    return rows(value)
