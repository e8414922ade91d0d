"""Sizes of the mixers that `DecoderConfig` does not describe by itself."""

from __future__ import annotations

from typing import NamedTuple

from weft.core.records import dataclass


class Kept(NamedTuple):
    """What a layer keeps of a sequence besides keys and values: the last rows of this many
    channels, and the memory [H, K, V] of a recurrence."""

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
class Latent:
    """Sizes of layers with latent attention: the widths that queries (0: none) and that keys and
    values together are squeezed to; of a head, the elements of its queries and keys that do not
    turn with the position, those that do, and the elements of its values."""

    query_rank: int
    rank: int
    plain: int
    turned: int
    value: int

    @property
    def key(self) -> int:
        return self.plain + self.turned
