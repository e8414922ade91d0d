"""Models as plain data. `families` fills these in; `decoder` and `encoder` read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, NamedTuple

from weft.core.dtypes import DType, float32, int8
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.models.arch.mixer_sizes import AltUp, Delta, Kept, Latent, StateSpace
from weft.models.arch.traced_body import TracedBody

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu"]


@dataclass(frozen=True)
class Rope:
    """Rotary positions. `theta` is the base wavelength. `scaling` is None, or the method for
    contexts longer than the pre-training's `original` positions.

    Pairs that turn fewer than `low_factor` times in `original` positions slow down by `factor`;
    pairs that turn more than `high_factor` times keep their speed. Pairs between are blended: by
    wavelength in "llama3" (Llama 3.1), by index in "yarn" (by integers with `truncate`). "linear"
    slows all pairs.

    `divisors`, if given, also slow each pair by its own factor; "longrope" uses `long_divisors` for
    a context beyond `original`. cos and sin are multiplied by `magnitude`. `rotary` is the number
    of a head's elements that turn, from the first on; 0: all.
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
    """The sizes of one layer. `projects` lists the projections of its attention: "qkv"; "qk", where
    the values are the keys before their norm; or "q", where it attends to the keys and values of
    the earlier layer `kv_of`."""

    head_dim: int
    kv_heads: int
    ffn: int
    projects: Literal["qkv", "qk", "q"] = "qkv"
    kv_of: int | None = None


class LayerRange(NamedTuple):
    """The part of a model that one of several machines computes: layers `first` to `end` - 1, the
    embedding if `embeds`, the output layer if `ends`. If columns of matrices are divided, it has
    those of `rank` among `ranks`."""

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
    norm_weight: bool = True  # norms multiply by a weight
    norm_bias: bool = True  # layer norms add a bias
    # The mixer and the feed-forward both take a layer's input, with one norm or a norm each.
    parallel: Literal["", "one norm", "two norms"] = ""
    act: Activation = "silu"
    gated: bool = True  # down(act(gate x) * up x), else down(act(up x))
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    fused_qkv: bool = False  # one weight holds q, k, v side by side
    fused_by_head: bool = False  # there each head's q, k and v are adjacent
    fused_gate: bool = False  # one weight holds gate and up, side by side
    # One weight for gate and up of experts: alternating, or side by side.
    fused_experts: Literal["", "turns", "halves"] = ""
    transposed: bool = False  # weights are [K, N] (GPT-2's Conv1D) instead of [N, K]
    gate_limit: float = 0.0  # limit of a gate, and of its partner on both sides; 0: none
    gate_slope: float = 1.702  # slope of the sigmoid of a limited gate
    gate_scale: float = 1.0  # factor on the input of a dense gate's activation
    down_scale: float = 1.0  # factor on the result of a dense feed-forward
    output_gate: bool = False  # attention: each head's query comes with a gate for its result
    sinks: bool = False  # one extra score per head, without a value
    # A norm of queries and keys: per head, also with weights of each head, over all heads; or per
    # head without weights in layers with a rope.
    qk_norm: Literal["", "head", "heads", "whole", "turned"] = ""
    qk_norm_late: bool = False  # after the rope
    qkv_clip: float = 0.0  # limit of queries, keys and values on both sides; 0: none
    value_norm: bool = False  # each head's values are divided by their root mean square
    pre_norms: bool = True  # a norm before the mixer and before the feed-forward
    post_norms: bool = False  # a norm after each, before the residual add
    ropes: tuple[Rope, ...] = (Rope(),)  # () = learned positions
    layer_rope: tuple[int | None, ...] = ()  # index in `ropes` per layer; () = the first
    rope_pairs: bool = False  # a rope turns pairs of adjacent elements, not of two halves
    windows: tuple[int, ...] = ()  # sliding window per layer, 0 = full; () = all full
    chunked: bool = False  # a window is a chunk of the text: tokens see their own chunk alone
    causal: bool = True  # False: a token sees later ones too, so the model gives vectors alone
    scale: float = 1.0  # factor on q . k
    attn_softcap: float = 0.0
    logit_softcap: float = 0.0
    # b: queries at t are times 1 + b ln(1 + floor((t + ahead) / span)), in layers without a rope
    # alone if the growth is `still`. A span of 0 is the first rope's original context.
    query_growth: float = 0.0
    growth_span: int = 0
    growth_ahead: int = 0
    growth_still: bool = False
    embed_scale: float = 1.0
    embed_scale_rounded: bool = False  # rounded to the embedding's dtype, like the reference
    residual_scale: float = 1.0  # factor on what a layer's parts add
    logit_divisor: float = 1.0
    logit_scale: float = 1.0
    head_bias: bool = False
    tied: bool = True
    adapter_scale: float = 1.0  # factor on the low-rank adapter, if the weights hold one
    adapters: int = 0  # number of adapters; each row uses one or none (`adapter_stack.stacked`)
    act_dtype: DType = float32  # linear inputs are rounded to it where weights have it
    act_by_form: bool = False  # inputs of packed weights: `planes_of`
    kv_dtype: DType = float32
    # Caches of layers with a window keep what its last kv_window positions need; 0: all of it.
    kv_window: int = 0
    forms: tuple[tuple[str, Form], ...] = ()  # role -> form of packed weights

    mixers: tuple[str, ...] = ()  # per layer, a name in `mixers.MIXERS`; () = all attention
    feed_forwards: tuple[str, ...] = ()  # per layer, a name in `feed_forward`; () = all dense
    conv_taps: int = 0  # taps of short convolutions: the row itself and the preceding ones
    conv_bias: bool = False
    delta: Delta | None = None  # sizes of layers with the gated delta rule
    space: StateSpace | None = None  # sizes of layers with a state space
    latent: Latent | None = None  # sizes of layers with latent attention
    experts: int = 0  # experts per layer that has any
    experts_used: int = 0  # experts per token
    expert_ffn: int = 0
    expert_hidden: int = 0  # width of what experts take and give; 0: hidden
    # True if the weights of the chosen experts are normalised to sum to 1.
    expert_norm: bool = False
    expert_scale: float = 1.0  # factor on these weights
    weighs_input: bool = False  # they multiply what experts take, not what these give
    router: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False  # a number per expert that counts for the choice alone
    # Experts are chosen from the best groups, by the sum of a group's `group_best` best scores.
    expert_groups: int = 1
    groups_used: int = 1
    group_best: int = 2
    shared_ffn: int = 0  # width of the expert that all tokens use; 0: none
    shared_gate: bool = True  # its result is multiplied by a gate
    further_layers: int = 0  # layers of a checkpoint after these that guess further tokens
    by_layer: tuple[Layer, ...] = ()  # sizes per layer if layers differ; () = all as above
    layer_input: int = 0  # width of each layer's own token embedding
    layer_vocab: int = 0  # ids that have one; others take that of 0; 0: as many as `vocab`
    altup: AltUp | None = None  # several residual streams instead of one
    # Per layer, how many standard deviations above their mean a gate must be to count; None: any.
    cuts: tuple[float | None, ...] = ()
    layer_scale: bool = False  # each layer's result is multiplied by a number
    run: LayerRange | None = None  # the part computed here if other machines do the rest; None: all
    # What a traced decoder's convolutions and recurrences keep, each in the order of its steps.
    keeps: tuple[Kept, ...] = ()
    alibi: bool = False  # a traced decoder's keys hold their positions
    # Of each pair of the rope, the position that turns it: 0 in time, 1 in height, 2 in width.
    turns_by: tuple[int, ...] = ()
    # Tokens of a picture see each other: in all layers, or within windows in layers that have them.
    looks: Literal["", "all", "near"] = ""
    layer_pad: int = 0  # the id that stands for a picture's vectors in the inputs of layers
    deep: int = 0  # the first layers after which vectors of a picture are added
    traced: TracedBody | None = None  # the steps of a decoder that another library describes

    def planes_of(self, form: Form, role: str) -> int:
        """Returns the number of int8 planes for a packed weight's input; 0 leaves it in floats.

        One plane has 8 bits and two have 15. Where act_dtype int8 is asked for, a weight of 8 bits
        and the one that gives logits get two, the others one. By default an input may lose a
        twentieth of what the weight itself does: codes of 6 bits get two as well
        (docs/numerics.md)."""
        logits = role in ("head", "embed")
        if self.act_dtype is int8:
            return 2 if form.bits == 8 or logits else 1
        if not self.act_by_form:
            return 0
        return 2 if logits or form.bits >= 6 else 1

    def layer(self, i: int) -> Layer:
        return self.by_layer[i] if self.by_layer else Layer(self.head_dim, self.kv_heads, self.ffn)

    def kv_of(self, i: int) -> int:
        """Returns the layer whose keys and values layer i attends to."""
        other = self.layer(i).kv_of
        return i if other is None else other

    @property
    def stream(self) -> int:
        """The width of the residual stream."""
        return self.hidden * (1 if self.altup is None else self.altup.streams)

    @property
    def shares(self) -> bool:
        """True if layers attend to the keys and values of other layers."""
        return any(layer.kv_of is not None for layer in self.by_layer)

    @property
    def here(self) -> range:
        """The layers that are computed here."""
        return range(self.layers) if self.run is None else range(self.run.first, self.run.end)

    @property
    def caches(self) -> list[int]:
        """The layers here that keep keys and values."""
        own = (i for i in self.here if self.layer(i).kv_of is None)
        return [i for i in own if self.mixer(i).startswith(("attention", "latent"))]

    @property
    def keepers(self) -> range:
        """The numbers that `kept` takes."""
        return range(len(self.keeps)) if self.keeps else self.here

    def kept(self, layer: int) -> Kept:
        """Returns what a layer keeps of a sequence besides keys and values."""
        if self.keeps:
            return self.keeps[layer]
        mixer = self.mixer(layer)
        sizes = self.delta if mixer == "delta" else self.space if "mamba" in mixer else None
        if sizes is not None:
            return sizes.kept
        return Kept(self.hidden) if mixer == "conv" else Kept()

    @property
    def recurs(self) -> bool:
        """True if layers have the memory of a recurrence."""
        own = self.delta is not None or self.space is not None
        return own or any(kept.memory for kept in self.keeps)

    @property
    def underivable(self) -> str:
        """The part of the model that lacks a derivative, or ""."""
        specs = () if self.traced is None else self.traced.weights.values()
        if self.sinks or any(spec.kind == "sinks" for spec in specs):
            return "attention sinks"
        return "layers with a recurrence" if self.recurs else ""

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def rope(self, layer: int) -> int | None:
        """Returns the index in `ropes` for a layer; None without a rope."""
        if self.layer_rope:
            return self.layer_rope[layer]
        return 0 if self.ropes else None

    def mixer(self, layer: int) -> str:
        return self.mixers[layer] if self.mixers else "attention"

    def feed_forward(self, layer: int) -> str:
        return self.feed_forwards[layer] if self.feed_forwards else "dense"


@dataclass(frozen=True)
class TokenIds:
    """Ids that end or begin a text, from config.json and generation_config.json."""

    eos: tuple[int, ...] = ()
    bos: int | None = None
    pad: int | None = None


@dataclass(frozen=True)
class TokenizerContent:
    """A tokenizer without a folder: the content of tokenizer.json and tokenizer_config.json."""

    data: bytes
    config: dict[str, Any]


Kind = Literal[
    "matrix",  # a layer's matrix for a product
    "head",  # the output matrix
    "embed",  # token embeddings
    "table",  # embeddings of positions or token types
    "norm",
    "bias",
    "router",  # scores experts
    "experts",  # matrices of experts, stacked
    "conv",
    "gate",  # few rows, which control whole heads or experts: not worth fewer bits
    "decay",  # forgetting rate of each head of a delta rule
    "scale",  # multiplies the result of a layer or an expert
    "sinks",
    "adapter",  # low-rank, added to a matrix; in no layout
]


@dataclass(frozen=True)
class WeightSpec:
    """A weight that the model reads: its name in the checkpoint, its required shape and its kind. A
    name with {} means one tensor per index of the first axis. `usual` is another name, that most
    families have, if this one has its own. If `turned`, the checkpoint holds the last two axes
    swapped. `divides` are the lengths of the blocks of columns (queries, keys and values joined are
    three) that machines can divide among them; (): each has the whole."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    turned: bool = False
    divides: tuple[int, ...] = ()
    usual: str = ""


@dataclass(frozen=True)
class Layout:
    """Role ("embed", "0.q.w", ...) -> WeightSpec.

    `prefixes` are prefixes that checkpoints of the family may put before the names; the first under
    which `probe` exists is used for all. `spare` lists roles and names that a checkpoint may hold
    though nothing reads them. `inert` maps patterns of other such names to the reason. Without a
    `head`, `twin` is the name of a tensor that may hold the embedding again, or instead.
    """

    weights: dict[str, WeightSpec] = field(default_factory=dict)
    spare: dict[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ("",)
    probe: str = ""
    inert: Mapping[str, str] = field(default_factory=dict)
    twin: str = ""
