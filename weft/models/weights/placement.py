"""The options of `weft.load` in one value: where a model goes, and in which numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.dtypes import DType, int8
from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.models.arch.config import DecoderConfig

if TYPE_CHECKING:
    from weft.program.device import Device

Wanted = str | DType | None
ORACLE = "oracle"  # the name of NumPy, used instead of a device


@dataclass(frozen=True)
class Placement:
    """The device, the dtypes and the size of the cache of a model; see `weft.load`. `part`
    returns the config of one machine's part; `adapters` are folders by name. `advised`: the
    author's settings for generating are used. `adapter_slots` more adapters, of ranks up to
    `adapter_rank`, can be put in later."""

    device: str | Device | None = "auto"
    fallback: str | None = None
    dtype: Wanted = None
    act_dtype: Wanted = None
    quant: str | None = None
    cache: Wanted = None
    context: int | None = None
    max_batch: int = 1
    part: Callable[[DecoderConfig], DecoderConfig] | None = None
    adapters: Mapping[str, Path] = field(default_factory=dict)
    advised: bool = True
    adapter_slots: int = 0
    adapter_rank: int = 0

    def opened(self) -> Device | None:
        """Returns the device; None for the oracle."""
        if self.device == ORACLE:
            return None
        from weft.backends import registry

        return registry.get(self.device, self.fallback)


DEFAULT = Placement()


def check_encoder(what: str, place: Placement) -> None:
    """Raises UsageError for options that an encoder does not take."""
    if place.part is not None:
        raise UsageError(f"{what}: it runs on one machine")
    if place.cache is not None:
        raise UsageError(f"{what}, which does not use a KV cache")
    if place.act_dtype in (int8, int8.name):
        raise UsageError(f"{what}, whose inputs are not quantised: act_dtype float32 or bfloat16")
    if place.adapters or place.adapter_slots:
        raise UsageError(f"{what}, which takes no adapters")
