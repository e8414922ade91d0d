"""The names of an encoder's weights in a Hugging Face checkpoint, and their required shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from weft.core.records import dataclass
from weft.models.arch.config import Layout
from weft.models.arch.encoder_config import EncoderConfig
from weft.models.weights.layout_builder import LayoutBuilder
from weft.models.weights.tensor_names import INERT, INERT_OF


class _Shape(NamedTuple):
    rows: str
    columns: str


_SHAPES = {
    **dict.fromkeys("qkv", _Shape("heads", "hidden")),
    "qkv": _Shape("qkv", "hidden"),
    "o": _Shape("hidden", "heads"),
    "gate": _Shape("ffn", "hidden"),
    "up": _Shape("ffn", "hidden"),
    "down": _Shape("hidden", "ffn"),
    "pos_q": _Shape("heads", "hidden"),
    "pos_k": _Shape("heads", "hidden"),
}


@dataclass(frozen=True)
class _Names:
    """A family's names of its weights. `layer` is what the names of a layer's parts begin with;
    `outer` has those outside the layers."""

    outer: Mapping[str, str]
    layer: str
    inner: Mapping[str, str]
    prefixes: tuple[str, ...] = ("",)
    inert: Mapping[str, str] = field(default_factory=dict)


_BERT = {"embed": "embeddings.word_embeddings", "pos": "embeddings.position_embeddings",
         "type": "embeddings.token_type_embeddings", "norm": "embeddings.LayerNorm"}  # fmt: skip
_BERT_LAYER = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "o": "attention.output.dense", "attn_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "mlp_norm": "output.LayerNorm",
}  # fmt: skip
_NOMIC = {**_BERT, "norm": "emb_ln"}
_T5 = "layer.0.SelfAttention."
_BART = {"embed": "shared", "pos": "encoder.embed_positions",
         "norm": "encoder.layernorm_embedding"}  # fmt: skip
_BART_LAYER = {
    **{role: f"self_attn.{role}_proj" for role in "qkv"}, "o": "self_attn.out_proj",
    "attn_norm": "self_attn_layer_norm", "up": "fc1", "down": "fc2", "mlp_norm": "final_layer_norm",
}  # fmt: skip
NAMES: Mapping[str, _Names] = {
    **dict.fromkeys(
        ("bert", "roberta"),
        _Names(_BERT, "encoder.layer.{}.", _BERT_LAYER, ("", "bert.", "roberta.")),
    ),
    "distilbert": _Names(
        _BERT,
        "transformer.layer.{}.",
        {
            "q": "attention.q_lin", "k": "attention.k_lin", "v": "attention.v_lin",
            "o": "attention.out_lin", "attn_norm": "sa_layer_norm", "up": "ffn.lin1",
            "down": "ffn.lin2", "mlp_norm": "output_layer_norm",
        },
        ("", "distilbert."),
    ),
    "electra": _Names(
        {**_BERT, "project": "embeddings_project"},
        "encoder.layer.{}.",
        _BERT_LAYER,
        ("", "electra."),
        {r"^(generator|discriminator)_\w+\.": "a head that judges single tokens"},
    ),
    "albert": _Names(
        {**_BERT, "project": "encoder.embedding_hidden_mapping_in"},
        "encoder.albert_layer_groups.{}.albert_layers.0.",
        {
            "q": "attention.query", "k": "attention.key", "v": "attention.value",
            "o": "attention.dense", "attn_norm": "attention.LayerNorm", "up": "ffn",
            "down": "ffn_output", "mlp_norm": "full_layer_layer_norm",
        },
        ("", "albert."),
        {
            r"(^|\.)pooler\.(weight|bias)$": "made of the first token alone, after the vectors",
            r"^(predictions|sop_classifier)\.": "a head that fills gaps, after the vectors",
        },
    ),
    "mpnet": _Names(
        {**_BERT, "bias": "encoder.relative_attention_bias"},
        "encoder.layer.{}.",
        {
            **_BERT_LAYER, "q": "attention.attn.q", "k": "attention.attn.k",
            "v": "attention.attn.v", "o": "attention.attn.o", "attn_norm": "attention.LayerNorm",
        },
        ("", "mpnet."),
    ),
    "modernbert": _Names(
        {"embed": "embeddings.tok_embeddings", "norm": "embeddings.norm", "last": "final_norm"},
        "layers.{}.",
        {
            "attn_norm": "attn_norm", "qkv": "attn.Wqkv", "o": "attn.Wo", "mlp_norm": "mlp_norm",
            "up": "mlp.Wi", "down": "mlp.Wo",
        },
        ("", "model."),
        {r"^(head|decoder)\.": "a head that fills gaps, after the vectors"},
    ),
    "nomic_bert": _Names(
        _NOMIC,
        "encoder.layers.{}.",
        {
            "qkv": "attn.Wqkv", "o": "attn.out_proj", "attn_norm": "norm1", "up": "mlp.fc11",
            "gate": "mlp.fc12", "down": "mlp.fc2", "mlp_norm": "norm2",
        },
        ("", "nomic_bert.", "bert."),
    ),
    "jina_embeddings_v3": _Names(
        _NOMIC,
        "encoder.layers.{}.",
        {
            "qkv": "mixer.Wqkv", "o": "mixer.out_proj", "attn_norm": "norm1", "up": "mlp.fc1",
            "down": "mlp.fc2", "mlp_norm": "norm2",
        },
        ("", "roberta."),
    ),
    "gte": _Names(
        _BERT,
        "encoder.layer.{}.",
        {
            "qkv": "attention.qkv_proj", "o": "attention.o_proj", "attn_norm": "attn_ln",
            "up": "mlp.up_gate_proj", "down": "mlp.down_proj", "mlp_norm": "mlp_ln",
        },
        ("", "new.", "gte."),
    ),
    "jina_v2": _Names(
        _BERT,
        "encoder.layer.{}.",
        {
            **_BERT_LAYER, "up": "mlp.gated_layers", "down": "mlp.wo", "mlp_norm": "mlp.layernorm",
            "gate": "mlp.gate",  # of old GGUF files
        },
        ("", "bert."),
    ),
    "deberta": _Names(
        {**_BERT, "distance": "encoder.rel_embeddings"},
        "encoder.layer.{}.",
        {
            **_BERT_LAYER, "qkv": "attention.self.in_proj", "pos_k": "attention.self.pos_proj",
            "pos_q": "attention.self.pos_q_proj", "q": "attention.self.q_bias",
            "v": "attention.self.v_bias",
        },
        ("", "deberta."),
        {
            r"^(lm_predictions|mask_predictions)\.": "a head that fills gaps, after the vectors",
        },
    ),
    "deberta-v2": _Names(
        {**_BERT, "distance": "encoder.rel_embeddings", "distance_norm": "encoder.LayerNorm"},
        "encoder.layer.{}.",
        {
            **_BERT_LAYER, "q": "attention.self.query_proj", "k": "attention.self.key_proj",
            "v": "attention.self.value_proj", "pos_q": "attention.self.pos_query_proj",
            "pos_k": "attention.self.pos_key_proj",
        },
        ("", "deberta."),
        {
            r"^(lm_predictions|mask_predictions)\.": "a head that fills gaps, after the vectors",
        },
    ),
    "t5": _Names(
        {
            "embed": "shared", "last": "encoder.final_layer_norm",
            "bias": f"encoder.block.0.{_T5}relative_attention_bias",
        },
        "encoder.block.{}.",
        {
            **{role: f"{_T5}{role}" for role in "qkvo"}, "attn_norm": "layer.0.layer_norm",
            "mlp_norm": "layer.1.layer_norm", "gate": "layer.1.DenseReluDense.wi_0",
            "up": "layer.1.DenseReluDense.wi_1", "down": "layer.1.DenseReluDense.wo",
            "bias": f"{_T5}relative_attention_bias",
        },
        inert={r"^encoder\.embed_tokens\.weight$": "the embedding again"},
    ),
    "moonshine": _Names(
        {"embed": "decoder.embed_tokens", "last": "encoder.layer_norm"},
        "encoder.layers.{}.",
        {
            **_BART_LAYER, "o": "self_attn.o_proj", "attn_norm": "input_layernorm",
            "up": "mlp.fc1", "down": "mlp.fc2", "mlp_norm": "post_attention_layernorm",
        },
    ),
    "whisper": _Names({**_BART, "last": "encoder.layer_norm"}, "encoder.layers.{}.", _BART_LAYER),
    **dict.fromkeys(("bart", "marian"), _Names(_BART, "encoder.layers.{}.", _BART_LAYER)),
}  # fmt: skip


def encoder_layout(c: EncoderConfig) -> Layout:
    """Returns names and shapes of an encoder's weights."""
    names, b = NAMES[c.family], LayoutBuilder()
    outer, width = names.outer, c.embed_size or c.hidden
    b.add("embed", "embed", f"{outer['embed']}.weight", c.vocab, width)
    if c.learned:
        rows = c.max_positions + c.position_offset
        b.add("table", "pos", f"{outer['pos']}.weight", rows, width)
    if c.token_types:
        b.add("table", "type", f"{outer['type']}.weight", c.token_types, width)
    biased = c.norm == "layer" and c.norm_bias
    if c.embed_norm:
        b.both("norm", "norm", outer["norm"], width, biased=biased)
    if c.embed_size:
        b.both("matrix", "project", outer["project"], c.hidden, width)
    if c.pre_norms:
        b.both("norm", "last", outer["last"], c.hidden, biased=biased)
    _distances(c, b, names)
    for i in range(c.groups or c.layers):
        _layer(c, b, names, i, biased)
    inert = INERT | INERT_OF["encoder"] | dict(names.inert)
    return Layout(b.weights, {}, names.prefixes, f"{outer['embed']}.weight", inert)


def _distances(c: EncoderConfig, b: LayoutBuilder, names: _Names) -> None:
    how, outer = c.relative, names.outer
    if how is None:
        return
    if how.form == "bias" and not how.each:
        b.add("table", "bias", f"{outer['bias']}.weight", how.buckets, c.heads)
    if how.form == "product":
        span = how.buckets or how.distance
        b.add("table", "distance", f"{outer['distance']}.weight", 2 * span, c.hidden)
        if how.normed:
            b.both("norm", "distance_norm", outer["distance_norm"], c.hidden)


def _layer(c: EncoderConfig, b: LayoutBuilder, names: _Names, i: int, biased: bool) -> None:
    at, how = names.layer.format(i), c.relative
    sizes = {"hidden": c.hidden, "ffn": c.ffn, "heads": c.heads * c.head_dim}
    sizes["qkv"] = 3 * sizes["heads"]
    roles = ["qkv"] if c.fused_qkv else ["q", "k", "v"]
    roles += ["o", *(["gate"] if c.gated and not c.fused_gate else []), "up", "down"]
    if how is not None and how.form == "product" and not how.shared:
        roles += [f"pos_{role}" for role, kind in (("k", "c2p"), ("q", "p2c")) if kind in how.kinds]
    for role in roles:
        shape = _SHAPES[role]
        n = sizes[shape.rows] * (2 if role == "up" and c.fused_gate else 1)
        group = {"o": "o", "down": "down", "up": "up", "gate": "up"}.get(role, "qkv")
        name = names.inner[role]
        if role == "up" and c.family == "t5" and not c.gated:
            name = name.removesuffix("_1")
        b.both("matrix", f"{i}.{role}", at + name, n, sizes[shape.columns],
               biased=group in c.biases or role in c.biases)  # fmt: skip
    for role in "qv" if c.by_head else "":
        b.add("bias", f"{i}.{role}.b", at + names.inner[role], sizes["heads"])
    for role in ("attn_norm", "mlp_norm"):
        if role == "mlp_norm" or i or c.first_norm:
            b.both("norm", f"{i}.{role}", at + names.inner[role], c.hidden, biased=biased)
    if how is not None and how.each:
        b.add("table", f"{i}.bias", f"{at}{names.inner['bias']}.weight", how.buckets, c.heads)
