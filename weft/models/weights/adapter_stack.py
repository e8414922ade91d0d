"""Stacks adapters, so that each row of a step chooses one by number.

A stack may have free slots, which adapters are put into later. It then has room for every layer, up
to a rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.core.arrays import all_finite
from weft.core.errors import LimitError, ModelError
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import Stacked
from weft.models.arch.weights import Weight
from weft.models.weights.adapter_merge import row_factors
from weft.models.weights.adapters import TABLES, Adapter, modules, sizes

_RANKS = 16  # ranks in a stack are rounded up to a multiple, for whole vectors
_ALONE = "load the adapter's folder as a model of its own"
FREE = ""  # the name of a slot without an adapter


def stacked(
    config: DecoderConfig, adapters: Mapping[str, Adapter], weights: Mapping[str, Weight],
    slots: int = 0, rank: int = 0,
) -> Stacked:  # fmt: skip
    """Stacks E adapters, of which `slots` are free, for ranks up to `rank`. For each adapted layer
    (with free slots: for each layer) it returns "<role>.loras_a" [E * r, in] and "<role>.loras_b"
    [E * out, r], float32; loras_b includes the scale. Zeros, which change no sum, fill up smaller
    ranks and missing layers. "<role>.loras_m" [E, out] has factors of the model's own result, if an
    adapter has DoRA there or a slot is free. "<role>.loras_c" [E, out] is added, if an adapter has
    biases there or a slot is free. Raises ModelError for an adapter that overflows float32 or
    changes anything else."""
    roles = {role for one in adapters.values() for role in (*one.roles, *one.biases)}
    if slots:
        roles |= set(modules(config))
    filled = [slot(config, name, one, weights) for name, one in adapters.items()]
    arrays: dict[str, np.ndarray] = {}
    for role in sorted(roles):
        found = [one.get(f"{role}.loras_a") for one in filled]
        most = max([rank, *(len(a) for a in found if a is not None)])
        arrays |= _layer(config, role, filled, len(filled) + slots, most, slots > 0)
    return Stacked((*adapters, *(FREE,) * slots), arrays)


def _layer(
    config: DecoderConfig, role: str, filled: list[dict[str, np.ndarray]], count: int, rank: int,
    spare: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Returns the arrays of a layer for `count` adapters, the first of which are `filled`."""
    inputs, outputs = sizes(config, role)
    rank = -(-rank // _RANKS) * _RANKS
    made = {
        f"{role}.loras_a": np.zeros((count * rank, inputs), np.float32),
        f"{role}.loras_b": np.zeros((count * outputs, rank), np.float32),
    }
    factors, biases = f"{role}.loras_m", f"{role}.loras_c"
    if spare or any(factors in one for one in filled):
        made[factors] = np.ones((count, outputs), np.float32)
    if spare or any(biases in one for one in filled):
        made[biases] = np.zeros((count, outputs), np.float32)
    for n, one in enumerate(filled):
        fill(made, n, count, {name: one.get(name) for name in made})
    return made


def fill(
    stack: Mapping[str, np.ndarray], n: int, count: int, given: Mapping[str, np.ndarray | None]
) -> None:
    """Writes the arrays of one adapter (`slot`; None: it leaves the layer alone) into number n of a
    stack of `count`."""
    for name, value in given.items():
        whole = stack[name]
        part = whole.reshape(count, -1, whole.shape[-1])[n]
        part[...] = float(name.endswith(".loras_m"))
        if value is None:
            continue
        value = value.reshape(-1, value.shape[-1])
        part[: value.shape[0], : value.shape[1]] = value


def check_room(
    name: str, stack: Mapping[str, np.ndarray], count: int, given: Mapping[str, np.ndarray]
) -> None:
    """Raises LimitError for an adapter whose rank is above the stack's."""
    for key, value in given.items():
        if key.endswith(".loras_a") and len(value) > len(stack[key]) // count:
            raise LimitError(
                f"adapter {name}: rank {len(value)} in {key.removesuffix('.loras_a')}; there is "
                f"room for {len(stack[key]) // count}"
            )


def slot(
    config: DecoderConfig, name: str, adapter: Adapter, weights: Mapping[str, Weight]
) -> dict[str, np.ndarray]:
    """Returns the arrays of one adapter: "<role>.loras_a" [r, in], "<role>.loras_b" [out, r] with
    the scale, "<role>.loras_m" and "<role>.loras_c" [1, out] where it has them. Raises ModelError
    for an adapter that rows cannot choose."""
    _check_rows(name, adapter)
    made: dict[str, np.ndarray] = {}
    for role in adapter.roles:
        b = adapter.weights[f"{role}.lora_b"]
        own, factor = weights.get(f"{role}.b"), None
        if role in adapter.magnitudes:
            factor = row_factors(config, adapter, role, weights[f"{role}.w"].value())
        new = {**adapter.shared, **adapter.own}.get(f"{role}.b")
        added = adapter.biases.get(role)
        with np.errstate(over="ignore"):
            b = b * np.float32(adapter.scale)
            if factor is not None:
                b = b * factor[:, None]
                made[f"{role}.loras_m"] = factor[None]
            if own is not None and (factor is not None or new is not None):
                before = np.asarray(own.value(), np.float32)
                kept = before if factor is None else factor * before
                change = (before if new is None else new) - kept
                added = change if added is None else added + change
        made[f"{role}.loras_a"], made[f"{role}.loras_b"] = adapter.weights[f"{role}.lora_a"], b
        if added is not None:
            made[f"{role}.loras_c"] = np.asarray(added, np.float32)[None]
        if not all(all_finite(v) for k, v in made.items() if k.startswith(f"{role}.")):
            raise ModelError(f"adapter {name}: {role} overflows by lora_alpha")
    return made


def _check_rows(name: str, adapter: Adapter) -> None:
    """Raises ModelError for an adapter that rows cannot choose."""
    biases = {f"{role}.b" for role in adapter.roles}
    whole = [key for key in (*adapter.own, *adapter.shared, *adapter.rows) if key not in biases]
    tables = [role for role in adapter.roles if role in TABLES]
    for keys, what in (
        (tables, "adapts the embedding or the output layer"),
        (adapter.experts, "adapts experts"),
        (whole, "replaces weights of the model"),
    ):
        if keys:
            raise ModelError(
                f"adapter {name}: it {what} ({', '.join([*keys][:4])}), which requests cannot "
                f"choose one by one; {_ALONE}"
            )
