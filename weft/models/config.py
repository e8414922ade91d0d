"""What a model is, as plain data. `families` fills these in; `decoder` and `encoder` read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from weft.core.dtypes import DType, float32
from weft.core.packed import Form

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class Rope:
    """Rotary positions: `theta` is the base wavelength; `scaling` None or what a longer context
    than the pre-training's `original` positions asks for. Pairs that turn fewer than `low_factor`
    times in that many positions slow down by `factor`, those that turn more than `high_factor`
    times stay, those between are blended: by their wavelength in "llama3" (Llama 3.1), by their
    number in "yarn" (by whole numbers with `truncate`). "linear" slows all. `divisors`, where
    given, slow each pair by its own factor besides; "longrope" takes `long_divisors` for a context
    beyond `original`. cos and sin are multiplied by `magnitude`. `rotary` is how many of a head's
    elements turn, from the first on; 0: all.
    """

    theta: float = 10000.0
    scaling: Literal["linear", "llama3", "yarn", "longrope"] | None = None
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 4.0
    original: int = 8192
    magnitude: float = 1.0
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    truncate: bool = True
    rotary: int = 0


class Layer(NamedTuple):
    """The sizes of one layer. `projects` says which projections its attention has: "qkv"; "qk",
    where values are what keys are before their norm; or "q", where it attends to the keys and
    values of the earlier layer `kv_of`."""

    head_dim: int
    kv_heads: int
    ffn: int
    projects: Literal["qkv", "qk", "q"] = "qkv"
    kv_of: int | None = None


@dataclass(frozen=True)
class Delta:
    """Layers by the gated delta rule: heads of queries and keys, each for as many of values; what
    each holds. `tiled`: value head h has key head h % key_heads, not h // (values to a key).
    `fused_qkvz`, `fused_ba`: one weight holds both, key head by key head."""

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
        """Of queries, keys and values."""
        return 2 * self.keys + self.values


class Run(NamedTuple):
    """What one of several machines computes of a model: layers `first` to `end` - 1, and whether
    the embedding that comes before them and the output layer. Where the columns of matrices are
    divided, those of `rank` among `ranks`."""

    first: int
    end: int
    embeds: bool = False
    ends: bool = False
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class DecoderConfig:
    """Every decoder family as one set of choices. Sizes are in elements."""

    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    max_positions: int
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    norm_offset: float = 0.0  # y = x/rms * (offset + w)
    act: Activation = "silu"
    gated: bool = True  # down(act(gate x) * up x), else down(act(up x))
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    fused_qkv: bool = False  # one weight holds q, k, v side by side
    fused_gate: bool = False  # one weight holds gate and up, side by side
    fused_experts: Literal["", "turns", "halves"] = ""  # that of experts: in turn, or side by side
    transposed: bool = False  # weights are [K, N] (GPT-2's Conv1D) instead of [N, K]
    gate_limit: float = 0.0  # where a gate is cut off, and its partner on both sides; 0: nowhere
    gate_slope: float = 1.702  # of the sigmoid of a gate that is cut off
    output_gate: bool = False  # of attention: beside each head's query stands what gates its result
    sinks: bool = False  # one more score for each head, without a value
    qk_norm: Literal["", "head", "whole"] = ""  # a norm of queries and keys, per head or of all
    value_norm: bool = False  # each head's values are divided by their root mean square
    pre_norms: bool = True  # a norm before the mixer and before the feed-forward
    post_norms: bool = False  # a norm after each, before the residual add
    ropes: tuple[Rope, ...] = (Rope(),)  # () = learned positions
    layer_rope: tuple[int | None, ...] = ()  # which of `ropes` each layer uses; () = the first
    windows: tuple[int, ...] = ()  # sliding window per layer, 0 = full; () = all full
    scale: float = 1.0  # of q . k
    attn_softcap: float = 0.0
    logit_softcap: float = 0.0
    query_growth: float = 0.0  # b: queries at t are times 1 + b ln(1 + floor(t / rope's original))
    embed_scale: float = 1.0
    embed_scale_rounded: bool = False  # to the embedding's dtype, as the reference does
    residual_scale: float = 1.0  # of what a layer's parts add
    logit_divisor: float = 1.0
    tied: bool = True
    adapter_scale: float = 1.0  # of the low-rank adapter, where the weights hold one
    adapters: int = 0  # from which each row takes one or none (`adapters.stacked`)
    act_dtype: DType = float32  # linear inputs are rounded to it where weights have it
    kv_dtype: DType = float32
    forms: tuple[tuple[str, Form], ...] = ()  # role -> form of the weights that are packed

    mixers: tuple[str, ...] = ()  # of each layer, a name in `mixers.MIXERS`; () = all attention
    feed_forwards: tuple[str, ...] = ()  # likewise in `feed_forward`; () = all dense
    conv_taps: int = 0  # of the short convolutions: the row itself and those just before it
    conv_bias: bool = False
    delta: Delta | None = None  # of layers by the gated delta rule
    experts: int = 0  # of a layer, where it has any
    experts_used: int = 0  # for each token
    expert_ffn: int = 0
    expert_norm: bool = False  # whether the weights of those used are made to sum to 1
    shared_ffn: int = 0  # width of the expert that all tokens use, times a gate; 0: none
    by_layer: tuple[Layer, ...] = ()  # where layers are not alike; () = all of the sizes above
    layer_input: int = 0  # how much of an embedding of its own each layer takes of a token
    layer_scale: bool = False  # each layer's result is multiplied by a number
    run: Run | None = None  # what is computed here, where other machines do the rest; None: all

    def layer(self, i: int) -> Layer:
        return self.by_layer[i] if self.by_layer else Layer(self.head_dim, self.kv_heads, self.ffn)

    def kv_of(self, i: int) -> int:
        """The layer whose keys and values layer i attends to."""
        other = self.layer(i).kv_of
        return i if other is None else other

    @property
    def shares(self) -> bool:
        """Whether layers attend to the keys and values of others."""
        return any(layer.kv_of is not None for layer in self.by_layer)

    @property
    def here(self) -> range:
        """The layers that are computed here."""
        return range(self.layers) if self.run is None else range(self.run.first, self.run.end)

    @property
    def caches(self) -> list[int]:
        """The layers here that keep keys and values."""
        own = (i for i in self.here if self.layer(i).kv_of is None)
        return [i for i in own if self.mixer(i) == "attention"]

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def rope(self, layer: int) -> int | None:
        """Which of `ropes` the layer uses; None: none."""
        if self.layer_rope:
            return self.layer_rope[layer]
        return 0 if self.ropes else None

    def mixer(self, layer: int) -> str:
        return self.mixers[layer] if self.mixers else "attention"

    def feed_forward(self, layer: int) -> str:
        return self.feed_forwards[layer] if self.feed_forwards else "dense"


@dataclass(frozen=True)
class EncoderConfig:
    """A BERT-family encoder."""

    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    max_positions: int  # longest input, in tokens
    position_offset: int = 0  # row of the position table that token 0 uses (RoBERTa: pad + 1)
    token_types: int = 2  # 0 = the family has none
    norm_eps: float = 1e-12
    act: Activation = "gelu"
    pad_id: int = 0
    act_dtype: DType = float32
    forms: tuple[tuple[str, Form], ...] = ()  # as a decoder's

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


COMMON_PROMPTS = ("query", "document")  # which every model has; empty where its files say nothing


@dataclass(frozen=True)
class Pooling:
    """The steps from a text to a vector (sentence-transformers' modules): `prompts` by name stand
    before it, that called `default` where none is asked for; without `include_prompt` the prompt's
    tokens are not pooled. The first `dim` numbers are the vector; None: all."""

    modes: tuple[Literal["cls", "mean", "max"], ...] = ("mean",)  # several are concatenated
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompts: tuple[tuple[str, str], ...] = ()
    default: str | None = None
    include_prompt: bool = True
    dim: int | None = None


@dataclass(frozen=True)
class TokenIds:
    """Ids that end or begin a text, from config.json and generation_config.json."""

    eos: tuple[int, ...] = ()
    bos: int | None = None
    pad: int | None = None


@dataclass(frozen=True)
class Made:
    """A tokenizer that no folder holds: what would be tokenizer.json and tokenizer_config.json."""

    data: bytes
    config: dict[str, Any]


Kind = Literal[
    "matrix",  # of a layer, which multiplies by it
    "head",  # the output matrix
    "embed",  # the tokens'
    "table",  # of positions or token types
    "norm",
    "bias",
    "router",  # which scores experts
    "experts",  # their matrices, one behind the other
    "conv",
    "gate",  # few rows, which rule whole heads or experts: not worth fewer bits
    "decay",  # how fast each head of a delta rule forgets
    "scale",  # which multiplies what comes out of a layer or an expert
    "sinks",
    "adapter",  # a low-rank one beside a matrix: in no layout
]


@dataclass(frozen=True)
class WeightSpec:
    """A weight the model reads: its name in the checkpoint, the shape it must have and what it is.
    A name with {} stands for as many tensors as its first axis is long, one for each number from 0.
    Of one that is `turned` the checkpoint holds the last two axes the other way round."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    turned: bool = False


@dataclass(frozen=True)
class Layout:
    """Role ("embed", "0.q.w", ...) -> WeightSpec. `prefixes` are the prefixes a checkpoint of the
    family may put before the names; the first under which `probe` exists is used for all. `spare`
    are roles and names of what a checkpoint may hold though nothing reads it, `inert` are patterns
    of others, and why. Where there is no `head` of its own, `twin` is the name of one that may hold
    the embedding once more, or in its place."""

    weights: dict[str, WeightSpec] = field(default_factory=dict)
    spare: dict[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ("",)
    probe: str = ""
    inert: Mapping[str, str] = field(default_factory=dict)
    twin: str = ""
