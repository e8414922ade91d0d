"""Encoders as plain data. `encoders` fills this in; `encoder` reads it."""

from __future__ import annotations

from typing import Literal

from weft.core.dtypes import DType, float32
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.models.arch.config import Activation, DecoderConfig, Rope


@dataclass(frozen=True)
class Relative:
    """Scores by the distance of query and key. "bias": a bias per head from a table of `buckets`
    distances (T5, MPNet), with `each` a table for each layer. "alibi": a bias that falls with the
    distance (Jina v2). Or it is products with vectors of distances ("product": DeBERTa), of the
    `kinds` c2p and p2c. Beyond `distance` all are one."""

    form: Literal["bias", "alibi", "product"]
    buckets: int = 0
    distance: int = 0
    each: bool = False
    kinds: tuple[str, ...] = ()
    shared: bool = True  # distances are projected by the layers' own matrices
    normed: bool = False  # the vectors of distances go through a layer norm


@dataclass(frozen=True)
class EncoderConfig:
    """Every encoder family as one set of choices. Sizes are in elements."""

    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    max_positions: int  # longest input, in tokens
    position_offset: int = 0  # row of the position table that token 0 uses (RoBERTa: pad + 1)
    learned: bool = True  # a table of positions
    counted: bool = False  # there padding tokens anywhere are not counted (RoBERTa, MPNet)
    token_types: int = 2  # 0 = the family has none
    embed_size: int = 0  # width of embeddings that a matrix projects to `hidden`; 0: hidden
    embed_norm: bool = True
    norm: Literal["layer", "rms"] = "layer"
    norm_bias: bool = True
    norm_eps: float = 1e-12
    # A norm before each part of a layer, and a last one, instead of one after each residual add.
    pre_norms: bool = False
    first_norm: bool = True  # False: none before the first mixer
    act: Activation = "gelu"
    gated: bool = False  # down(act(gate x) * up x), else down(act(up x))
    fused_qkv: bool = False
    by_head: bool = False  # there each head's q, k and v are adjacent, and biases are apart
    fused_gate: Literal["", "gate first", "up first"] = ""
    biases: tuple[str, ...] = ("qkv", "o", "up", "down")  # with biases; "up" stands for gates too
    ropes: tuple[Rope, ...] = ()
    rope_pairs: bool = False  # a rope turns pairs of adjacent elements, not of two halves
    layer_rope: tuple[int, ...] = ()  # index in `ropes` per layer; () = the first
    windows: tuple[int, ...] = ()  # a token sees those nearer than this, 0 = all; () = all 0
    relative: Relative | None = None
    scaled: bool = True  # q . k is divided by the square root of the head's size
    head_size: int = 0  # 0: hidden / heads
    groups: int = 0  # layers share the weights of this many; 0: each has its own
    pad_id: int = 0
    act_dtype: DType = float32
    forms: tuple[tuple[str, Form], ...] = ()  # like a decoder's

    @property
    def head_dim(self) -> int:
        return self.head_size or self.hidden // self.heads

    def stored(self, layer: int) -> int:
        """Returns the number under which a layer's weights are kept."""
        return layer * self.groups // self.layers if self.groups else layer


VectorConfig = EncoderConfig | DecoderConfig  # of a model that gives vectors
