"""A decoder traced from another library's code, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from weft.core.records import dataclass

if TYPE_CHECKING:
    from weft.importers.torch_export.graph import CallNode
    from weft.models.arch.config import WeightSpec


@dataclass(frozen=True)
class AttentionCall:
    """One call of attention: heads of queries and of keys, widths of keys and of values, the factor
    on q . k, the window (0: none) and the soft cap (0: none)."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0

    @property
    def width(self) -> int:
        """The width that the cache keeps: keys or values are padded to the wider."""
        return max(self.key_dim, self.value_dim)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TracedBody:
    """The steps of a traced decoder. `inputs` are the values of ids and positions (ids alone if it
    reads `whole` texts), and `result` is the logits. `tensors` gives the role of each weight,
    `constants` the content of other values. `attends` lists the calls of attention in order,
    `weights` by role the weights, with their names in the other library's model. `mark` identifies
    the graph in keys of kept Programs."""

    inputs: tuple[str, ...]
    calls: Sequence[CallNode]
    result: str
    tensors: Mapping[str, str]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    attends: Sequence[AttentionCall] = ()
    weights: Mapping[str, WeightSpec] = field(default_factory=dict)
    mark: str = ""
    whole: bool = False  # it keeps nothing of earlier tokens: each step reads the text again

    def __repr__(self) -> str:
        return f"TracedBody({self.mark})"
