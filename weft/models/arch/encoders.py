"""Encoder families: BERT, RoBERTa, DistilBERT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch.config import EncoderConfig
from weft.models.arch.family_fields import ENCODER_FIELDS
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_VOCAB,
    activation,
    refuse,
)
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


def bert(c: Fields) -> EncoderConfig:
    refuse(c, "position_embedding_type", "absolute", "relative position embedding")
    refuse(c, "is_decoder", False, "a BERT decoder")
    made = EncoderConfig(
        family="bert",
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=c.integer("hidden_size", 1, MAX_HIDDEN),
        layers=c.integer("num_hidden_layers", 1, MAX_LAYERS),
        heads=c.integer("num_attention_heads", 1, MAX_HEADS),
        ffn=c.integer("intermediate_size", 1, MAX_FFN),
        max_positions=c.integer("max_position_embeddings", 1, MAX_TOKENS),
        token_types=c.integer("type_vocab_size", 1, 1024, 2),
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
    made = replace(made, family="roberta", pad_id=pad, position_offset=pad + 1, max_positions=room)
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


_READERS: dict[str, Callable[[Fields], EncoderConfig]] = {
    "bert": bert,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "camembert": roberta,
    "distilbert": distilbert,
}


def _read(kind: str, raw: Fields) -> EncoderConfig:
    check_architecture(raw, "vectors")
    return _READERS[kind](seen(raw, kind, ENCODER_FIELDS[kind]))


ENCODERS: dict[str, Callable[[Fields], EncoderConfig]] = {
    kind: partial(_read, kind) for kind in _READERS
}
