"""Sizes of the mixers that `DecoderConfig` does not describe by itself."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from weft.core.records import dataclass


class Kept(NamedTuple):
    """The state of a layer for a sequence in addition to keys and values: the last rows of the
    given channels, and the memory [H, K, V] of a recurrence."""

    channels: int = 0
    memory: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Delta:
    """Sizes of layers with the gated delta rule: heads of queries and keys, of values, and their
    widths. `tiled`: value head h has key head h % key_heads, not h // (values per key).
    `fused_qkvz`, `fused_ba`: one weight holds these parts, key head by key head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tiled: bool = False
    fused_qkvz: bool = False
    fused_ba: bool = False

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """The number of channels of queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def kept(self) -> Kept:
        return Kept(self.channels, (self.value_heads, self.key_dim, self.value_dim))


@dataclass(frozen=True)
class AltUp:
    """Sizes of alternating updates: residual streams side by side, the one that layers compute, and
    the rank of the layers' learned residual (LAuReL)."""

    streams: int
    active: int
    rank: int


@dataclass(frozen=True)
class Latent:
    """Sizes of layers with latent attention: the widths to which queries (0: none), and keys and
    values together, are squeezed. For each head: the elements of queries and keys without rotary
    positions, those with, and the elements of values. `absorbed`: the cache holds latents, and the
    matrix of keys and values is in two (`latent_weights`)."""

    query_rank: int
    rank: int
    plain: int
    turned: int
    value: int
    absorbed: bool = False

    @property
    def key(self) -> int:
        return self.plain + self.turned


@dataclass(frozen=True)
class StateSpace:
    """Sizes of layers with a state space. Mamba 2 has heads of `width` channels; the heads of a
    group share keys and queries of `state` elements. Mamba has one head of all channels, whose
    steps of time come from a projection to `rank` elements.

    `norm` is that of Mamba 2's result: after its gate, "first" before it, or none. `norms` says
    that Mamba's steps, keys and queries are divided by their norms, with `norms_eps`; weights are
    "weighted". The rest is Falcon-H1's: factors on the input, on its projections (gate, values,
    keys, queries, steps), on the result, and on the input and result of its attention."""

    heads: int
    width: int
    state: int
    groups: int = 1
    rank: int = 0
    bias: bool = False
    norm: Literal["", "gated", "first"] = ""
    norms: Literal["", "plain", "weighted"] = ""
    norms_eps: float = 1e-6
    step_limits: tuple[float, float] = (0.0, math.inf)
    scale_in: float = 1.0
    scales: tuple[float, ...] = (1.0,) * 5
    scale_out: float = 1.0
    beside_in: float = 1.0
    beside_out: float = 1.0

    @property
    def inner(self) -> int:
        """The number of channels."""
        return self.heads * self.width

    @property
    def projected(self) -> tuple[int, ...]:
        """The widths of Mamba 2's gate, values, keys, queries and steps."""
        shared = self.groups * self.state
        return self.inner, self.inner, shared, shared, self.heads

    @property
    def kept(self) -> Kept:
        channels = self.inner if self.rank else sum(self.projected[1:4])
        return Kept(channels, (self.heads, self.state, self.width))
