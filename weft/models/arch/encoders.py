"""Encoder families: turns the config.json of each into an EncoderConfig."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from weft.core.errors import ModelError
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.models.arch.config import Activation
from weft.models.arch.encoder_config import EncoderConfig, Relative
from weft.models.arch.encoder_fields import ENCODER_FIELDS, NOMIC
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    activation,
    refuse,
    windows_of,
)
from weft.models.arch.family_ropes import single_rope, two_ropes
from weft.models.arch.model_fields import check_architecture, seen

MAX_TOKENS = 1 << 17


def _checked(config: EncoderConfig, where: str) -> EncoderConfig:
    if config.hidden % config.heads:
        raise ModelError(
            f"{where}: hidden size {config.hidden} is not a multiple of {config.heads} heads"
        )
    if config.max_positions < 1:
        raise ModelError(f"{where}: max_position_embeddings leaves no room for a token")
    return config


def _layers(c: Fields) -> int:
    found: int = c.integer("num_hidden_layers", 1, MAX_LAYERS)
    return found


def bert_or_jina(c: Fields) -> EncoderConfig:
    """Reads BERT, or Jina v2, which has the same model_type: a BERT with ALiBi and gated
    feed-forwards."""
    if c.text("position_embedding_type", "absolute") != "alibi":
        refuse(c, "feed_forward_type", "original", "a gated feed-forward beside learned positions")
        return bert(c)
    acts: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
    kind = c.text("feed_forward_type", "original", choices=tuple(acts))
    made = bert(c.over({"position_embedding_type": "absolute"}))
    return replace(
        made, family="jina_v2", learned=False, act=acts[kind], gated=True, fused_gate="gate first",
        biases=("qkv", "o", "down"), relative=Relative("alibi"),
    )  # fmt: skip


def bert(c: Fields, types: int = 1) -> EncoderConfig:
    """Reads BERT, and what shares its fields; a family has at least `types` types of tokens."""
    refuse(c, "position_embedding_type", "absolute", "relative position embedding")
    refuse(c, "is_decoder", False, "a BERT decoder")
    made = EncoderConfig(
        family="bert",
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=c.integer("hidden_size", 1, MAX_HIDDEN),
        layers=_layers(c),
        heads=c.integer("num_attention_heads", 1, MAX_HEADS),
        ffn=c.integer("intermediate_size", 1, MAX_FFN),
        max_positions=c.integer("max_position_embeddings", 1, MAX_TOKENS),
        token_types=c.integer("type_vocab_size", types, 1024, 2),
        norm_eps=c.number("layer_norm_eps", 0.0, 1.0, 1e-12),
        act=activation(c, "hidden_act", "gelu"),
        pad_id=c.integer("pad_token_id", 0, MAX_VOCAB, 0),
    )
    return _checked(made, c.where)


def roberta(c: Fields) -> EncoderConfig:
    """Reads RoBERTa: BERT with positions that start at pad + 1 (transformers'
    create_position_ids_from_input_ids)."""
    made = bert(c)
    pad = c.integer("pad_token_id", 0, MAX_TOKENS, 1)
    room = made.max_positions - pad - 1
    made = replace(made, family="roberta", pad_id=pad, counted=True, position_offset=pad + 1,
                   max_positions=room)  # fmt: skip
    return _checked(made, c.where)


def distilbert(c: Fields) -> EncoderConfig:
    made = EncoderConfig(
        family="distilbert",
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=c.integer("dim", 1, MAX_HIDDEN),
        layers=c.integer("n_layers", 1, MAX_LAYERS),
        heads=c.integer("n_heads", 1, MAX_HEADS),
        ffn=c.integer("hidden_dim", 1, MAX_FFN),
        max_positions=c.integer("max_position_embeddings", 1, MAX_TOKENS),
        token_types=0,
        act=activation(c, "activation", "gelu"),
        pad_id=c.integer("pad_token_id", 0, MAX_VOCAB, 0),
    )
    return _checked(made, c.where)


def electra(c: Fields) -> EncoderConfig:
    made = replace(bert(c), family="electra")
    size = c.integer("embedding_size", 1, MAX_HIDDEN)
    return replace(made, embed_size=0 if size == made.hidden else size)


def albert(c: Fields) -> EncoderConfig:
    """Reads ALBERT: layers that share weights, narrow embeddings that a matrix widens."""
    refuse(c, "inner_group_num", 1, "a group of several layers")
    made = replace(bert(c), family="albert")
    groups = c.integer("num_hidden_groups", 1, made.layers)
    size = c.integer("embedding_size", 1, MAX_HIDDEN)
    return replace(made, embed_size=size, groups=groups)


def mpnet(c: Fields) -> EncoderConfig:
    """Reads MPNet: a RoBERTa whose layers share a bias by distance. Its code takes 1 for padding,
    whatever a file says."""
    made = roberta(c.over({"pad_token_id": 1, "type_vocab_size": 1}))
    buckets = c.integer("relative_attention_num_buckets", 4, 1 << 16)
    return replace(made, family="mpnet", token_types=0, relative=Relative("bias", buckets, 128))


def modernbert(c: Fields) -> EncoderConfig:
    """Reads ModernBERT: norms before, gated feed-forwards, two ropes, two layers of three that see
    their neighbours alone."""
    heads, layers = c.integer("num_attention_heads", 1, MAX_HEADS), _layers(c)
    every = c.integer("global_attn_every_n_layers", 1, MAX_LAYERS, 3)
    near = c.integer("local_attention", 1, MAX_POSITIONS) // 2 + 1
    windows = windows_of(c, layers, near, lambda i: i % every != 0)
    hidden = c.integer("hidden_size", 1, MAX_HIDDEN)
    full = c.number("global_rope_theta", 1.0, 1e12, 160000.0)
    near = c.number("local_rope_theta", 1.0, 1e12, 10000.0)
    ropes = two_ropes(c, windows, (full, near), (hidden // heads,) * 2)
    bias = [role for role in ("qkv", "o") if c.flag("attention_bias", False)]
    bias += [role for role in ("up", "down") if c.flag("mlp_bias", False)]
    made = EncoderConfig(
        family="modernbert",
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=hidden,
        layers=layers,
        heads=heads,
        ffn=c.integer("intermediate_size", 1, MAX_FFN),
        max_positions=c.integer("max_position_embeddings", 1, MAX_TOKENS),
        learned=False,
        token_types=0,
        norm_bias=c.flag("norm_bias", False),
        norm_eps=c.number("norm_eps", 0.0, 1.0, 1e-5),
        pre_norms=True,
        first_norm=False,
        act=activation(c, "hidden_activation", "gelu"),
        gated=True,
        fused_qkv=True,
        fused_gate="gate first",
        biases=tuple(bias),
        pad_id=c.integer("pad_token_id", 0, MAX_VOCAB, 0),
        **ropes,
    )
    return _checked(made, c.where)


def _turned(c: Fields, family: str, **choices: Any) -> EncoderConfig:
    """Reads a BERT with a rope instead of learned positions."""
    refuse(c, "position_embedding_type", "rope", "another position embedding")
    made = bert(c.over({"position_embedding_type": None}), types=0)
    refuse(c, "head_dim", made.head_dim, "another size of heads")
    rope = (single_rope(c, made.head_dim),)
    made = replace(made, family=family, learned=False, fused_qkv=True, ropes=rope, **choices)
    return replace(made, max_positions=c.integer("max_position_embeddings", 1, MAX_TOKENS))


def nomic_bert(c: Fields) -> EncoderConfig:
    """Reads Nomic's BERT, in transformers' own fields or in those of its first release."""
    for name, plain in NOMIC.items():
        refuse(c, name, plain, "another form of it")
    return _turned(c, "nomic_bert", gated=True, biases=())


def jina(c: Fields) -> EncoderConfig:
    return _turned(c, "jina_embeddings_v3")


def gte(c: Fields) -> EncoderConfig:
    gated = {"gated": True, "fused_gate": "up first", "biases": ("qkv", "o", "down")}
    return _turned(c, "gte", **gated)


def deberta(c: Fields) -> EncoderConfig:
    """Reads DeBERTa V2 and V3: scores of contents against distances."""
    refuse(c, "conv_kernel_size", 0, "a convolution beside the first layer")
    refuse(c, "attention_head_size", None, "another size of heads")
    buckets = max(c.integer("position_buckets", -1, MAX_TOKENS), 0)
    norm = c.text("norm_rel_ebd", "none", choices=("none", "layer_norm"))
    return _disentangled(
        c, "deberta-v2", buckets=buckets, shared=c.flag("share_att_key", False),
        normed=norm == "layer_norm",
    )  # fmt: skip


def deberta_v1(c: Fields) -> EncoderConfig:
    """Reads DeBERTa V1: matrices of its own for distances, queries, keys and values joined."""
    refuse(c, "talking_head", False, "heads that talk")
    made = _disentangled(c, "deberta", shared=False)
    return replace(made, fused_qkv=True, by_head=True, biases=("pos_q", "o", "up", "down"))


def _disentangled(c: Fields, family: str, **choices: Any) -> EncoderConfig:
    refuse(c, "relative_attention", True, "attention without distances")
    refuse(c, "embedding_size", c.data.get("hidden_size"), "another width of embeddings")
    longest = c.integer("max_position_embeddings", 1, MAX_TOKENS)
    kinds = c.data.get("pos_att_type")
    kinds = tuple(kinds.split("|")) if isinstance(kinds, str) else c.texts("pos_att_type", 4)
    if not kinds or not set(kinds) <= {"c2p", "p2c"}:
        raise ModelError(f"{c.where}: pos_att_type is {shown(kinds, 60)}; expected c2p and p2c")
    furthest = c.integer("max_relative_positions", -1, MAX_TOKENS)
    furthest = furthest if furthest > 0 else longest
    how = Relative("product", distance=furthest, kinds=kinds, **choices)
    learned = c.flag("position_biased_input", True)
    return replace(bert(c, types=0), family=family, learned=learned, relative=how)


def t5(c: Fields, each: bool = False) -> EncoderConfig:
    """Reads the encoder of a T5; in UMT5 `each` layer has a table of distances."""
    refuse(c, "is_decoder", False, "a T5 decoder")
    kind = c.text("feed_forward_proj", "relu")
    gated, act = kind.startswith("gated-"), kind.removeprefix("gated-")
    act = "gelu_new" if kind == "gated-gelu" else act
    act = activation(c.over({"act": act}), "act", "relu")
    buckets = c.integer("relative_attention_num_buckets", 4, 1 << 16)
    distance = c.integer("relative_attention_max_distance", buckets, 1 << 24)
    return EncoderConfig(
        family="t5",
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=c.integer("d_model", 1, MAX_HIDDEN),
        layers=c.integer("num_layers", 1, MAX_LAYERS),
        heads=c.integer("num_heads", 1, MAX_HEADS),
        ffn=c.integer("d_ff", 1, MAX_FFN),
        max_positions=c.integer("n_positions", 1, MAX_TOKENS, 512),
        learned=False,
        token_types=0,
        embed_norm=False,
        norm="rms",
        norm_eps=c.number("layer_norm_epsilon", 0.0, 1.0, 1e-6),
        pre_norms=True,
        act=act,
        gated=gated,
        biases=(),
        relative=Relative("bias", buckets, distance, each),
        scaled=False,
        head_size=c.integer("d_kv", 1, MAX_HEAD_DIM),
        pad_id=c.integer("pad_token_id", 0, MAX_VOCAB, 0),
    )


_READERS: dict[str, Callable[[Fields], EncoderConfig]] = {
    "bert": bert_or_jina,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "camembert": roberta,
    "distilbert": distilbert,
    "electra": electra,
    "albert": albert,
    "mpnet": mpnet,
    "modernbert": modernbert,
    "nomic_bert": nomic_bert,
    "jina_embeddings_v3": jina,
    "gte": gte,
    "deberta": deberta_v1,
    "deberta-v2": deberta,
    "t5": t5,
    "mt5": t5,
    "umt5": partial(t5, each=True),
}


def _read(kind: str, raw: Fields) -> EncoderConfig:
    check_architecture(raw, "vectors")
    return read_encoder(kind, raw)


def read_encoder(kind: str, raw: Fields) -> EncoderConfig:
    """Returns the config of an encoder, whatever is computed of its token vectors."""
    return _READERS[kind](seen(raw, kind, ENCODER_FIELDS[kind]))


ENCODERS: dict[str, Callable[[Fields], EncoderConfig]] = {
    kind: partial(_read, kind) for kind in _READERS
}
