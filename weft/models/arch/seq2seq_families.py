"""Families with an encoder and a decoder: turns the config.json of each into a Seq2SeqConfig."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch.encoder_config import EncoderConfig
from weft.models.arch.encoder_fields import ENCODER_FIELDS
from weft.models.arch.encoders import ENCODERS, MAX_TOKENS, t5
from weft.models.arch.family_fields import Table
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_VOCAB,
    activation,
    refuse,
)
from weft.models.arch.family_ropes import single_rope
from weft.models.arch.model_fields import seen
from weft.models.arch.seq2seq_config import MAX_SECONDS, RATE, Seq2SeqConfig, sampled_lengths

MAX_CONTEXT = 512  # positions of a decoder whose config.json names no limit

_BOTH: Table = {
    **dict.fromkeys((
        "vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
        "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim",
    )),
    "activation_function": "gelu", "scale_embedding": False, "is_encoder_decoder": True,
    "eos_token_id": None, "pad_token_id": None, "decoder_start_token_id": None,
    "tie_word_embeddings": True, "is_decoder": False,
}  # fmt: skip
_BART: Table = {
    **_BOTH, "max_position_embeddings": 1024, "normalize_before": False,
    "add_final_layer_norm": False, "static_position_embeddings": False,
    "share_encoder_decoder_embeddings": True, "normalize_embedding": None,
    "decoder_vocab_size": None,
}  # fmt: skip
_T5: Table = {
    **ENCODER_FIELDS["t5"], "num_decoder_layers": None, "tie_word_embeddings": True,
    "scale_decoder_outputs": None, "decoder_start_token_id": None, "eos_token_id": None,
    "is_encoder_decoder": True,
}  # fmt: skip
SEQ2SEQ_FIELDS: Mapping[str, Table] = {
    "whisper": {
        **_BOTH, "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448,
    },
    "moonshine": {
        **dict.fromkeys((
            "vocab_size", "hidden_size", "intermediate_size", "encoder_num_hidden_layers",
            "decoder_num_hidden_layers", "encoder_num_attention_heads",
            "decoder_num_attention_heads", "encoder_num_key_value_heads",
            "decoder_num_key_value_heads", "pad_token_id", "rope_scaling", "rope_theta",
        )),
        "encoder_hidden_act": "gelu", "decoder_hidden_act": "silu", "is_encoder_decoder": True,
        "max_position_embeddings": 512, "attention_bias": False, "partial_rotary_factor": 0.9,
        "rope_parameters": None, "tie_word_embeddings": True, "decoder_start_token_id": 1,
        "eos_token_id": 2,
    },
    "bart": _BART,
    "marian": {**_BART, "static_position_embeddings": True},
    "t5": _T5,
    "mt5": {**_T5, "tie_word_embeddings": False},
}  # fmt: skip
_WRITES = r"(?:ForConditionalGeneration|LMHeadModel|MTModel)$"


def writes_from_input(raw: Fields) -> bool:
    """Returns True if a config.json is of a model that writes what it makes of an input."""
    kind, names = raw.text("model_type", ""), raw.texts("architectures", 64)
    if kind not in SEQ2SEQ_FIELDS or any(name.endswith("ForCausalLM") for name in names):
        return False
    return kind not in ENCODERS or any(re.search(_WRITES, name) for name in names)


def read_seq2seq(raw: Fields) -> Seq2SeqConfig:
    """Returns the config of a model with an encoder and a decoder. Raises ModelError."""
    kind = raw.text("model_type")
    names = raw.texts("architectures", 64)
    if names and not any(re.search(_WRITES, name) for name in names):
        raise ModelError(
            f"{raw.where}: {names[0][:80]} is not a model that writes; weft runs a {kind} as "
            "ForConditionalGeneration"
        )
    return _READERS[kind](seen(raw, kind, SEQ2SEQ_FIELDS[kind]))


def _whisper(c: Fields) -> Seq2SeqConfig:
    refuse(c, "scale_embedding", False, "scaled embeddings")
    made = _bart_like(c, "whisper", c.integer("max_source_positions", 1, 1 << 16))
    encoder = replace(
        made.encoder, pre_norms=True, embed_norm=False, biases=("q", "v", "o", "up", "down")
    )
    return replace(
        made, encoder=encoder, mels=c.integer("num_mel_bins", 1, 1024), pre_norms=True,
        max_positions=c.integer("max_target_positions", 1, 1 << 16),
    )  # fmt: skip


def _moonshine(c: Fields) -> Seq2SeqConfig:
    hidden = c.integer("hidden_size", 1, MAX_HIDDEN)
    heads = c.integer("decoder_num_attention_heads", 1, MAX_HEADS)
    for name in ("encoder_num_attention_heads", "encoder_num_key_value_heads",
                 "decoder_num_key_value_heads"):  # fmt: skip
        refuse(c, name, heads, "sides, or keys and queries, with different numbers of heads")
    refuse(c, "tie_word_embeddings", True, "an output matrix of its own")
    if hidden % heads:
        raise ModelError(f"{c.where}: hidden_size {hidden} is not a multiple of {heads} heads")
    rope = single_rope(c, hidden // heads, partial=True)
    encoder = EncoderConfig(
        family="moonshine",
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=hidden,
        layers=c.integer("encoder_num_hidden_layers", 1, MAX_LAYERS),
        heads=heads,
        ffn=c.integer("intermediate_size", 1, MAX_FFN),
        max_positions=sampled_lengths(MAX_SECONDS * RATE)[-1],
        learned=False,
        token_types=0,
        embed_norm=False,
        norm_bias=False,
        norm_eps=1e-5,
        pre_norms=True,
        act=activation(c, "encoder_hidden_act", "gelu"),
        biases=("up", "down", *(["qkv"] if c.flag("attention_bias") else [])),
        ropes=(rope,),
        rope_pairs=True,
    )
    return Seq2SeqConfig(
        family="moonshine",
        encoder=encoder,
        vocab=encoder.vocab,
        hidden=hidden,
        layers=c.integer("decoder_num_hidden_layers", 1, MAX_LAYERS),
        heads=heads,
        ffn=encoder.ffn,
        head_size=hidden // heads,
        max_positions=c.integer("max_position_embeddings", 2, 1 << 16),
        samples=True,
        learned=False,
        act=activation(c, "decoder_hidden_act", "silu"),
        gated=True,
        joined=True,
        rope=rope,
        **_ids(c, encoder.vocab),
    )


def _bart(c: Fields) -> Seq2SeqConfig:
    _refuse_older(c)
    refuse(c, "static_position_embeddings", False, "positions by sines")
    refuse(c, "normalize_embedding", True, "embeddings without a norm")
    made = _bart_like(c, "bart", c.integer("max_position_embeddings", 1, MAX_TOKENS))
    encoder = replace(made.encoder, embed_norm=True, position_offset=2)
    return replace(made, encoder=encoder, embed_norm=True, position_offset=2, logit_bias=True)


def _marian(c: Fields) -> Seq2SeqConfig:
    _refuse_older(c)
    refuse(c, "static_position_embeddings", True, "learned positions")
    refuse(c, "normalize_embedding", False, "a norm of embeddings")
    refuse(c, "share_encoder_decoder_embeddings", True, "a vocabulary for each side")
    refuse(c, "decoder_vocab_size", c.data.get("vocab_size"), "a vocabulary for each side")
    made = _bart_like(c, "marian", c.integer("max_position_embeddings", 1, MAX_TOKENS))
    encoder = replace(made.encoder, embed_norm=False, learned=False)
    return replace(made, encoder=encoder, learned=False, sinusoids=True, logit_bias=True)


def _refuse_older(c: Fields) -> None:
    refuse(c, "normalize_before", False, "norms before the parts of a layer")
    refuse(c, "add_final_layer_norm", False, "a last norm")


def _bart_like(c: Fields, family: str, source: int) -> Seq2SeqConfig:
    """Reads the sizes of BART and what shares its fields."""
    refuse(c, "tie_word_embeddings", True, "an output matrix of its own")
    hidden = c.integer("d_model", 1, MAX_HIDDEN)
    heads = c.integer("decoder_attention_heads", 1, MAX_HEADS)
    for each in (heads, c.integer("encoder_attention_heads", 1, MAX_HEADS)):
        if hidden % each:
            raise ModelError(f"{c.where}: d_model {hidden} is not a multiple of {each} heads")
    act = activation(c, "activation_function", "gelu")
    encoder = EncoderConfig(
        family=family,
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=hidden,
        layers=c.integer("encoder_layers", 1, MAX_LAYERS),
        heads=c.integer("encoder_attention_heads", 1, MAX_HEADS),
        ffn=c.integer("encoder_ffn_dim", 1, MAX_FFN),
        max_positions=source,
        token_types=0,
        norm_eps=1e-5,
        act=act,
    )
    return Seq2SeqConfig(
        family=family,
        encoder=encoder,
        vocab=encoder.vocab,
        hidden=hidden,
        layers=c.integer("decoder_layers", 1, MAX_LAYERS),
        heads=heads,
        ffn=c.integer("decoder_ffn_dim", 1, MAX_FFN),
        head_size=hidden // heads,
        max_positions=source,
        embed_scale=hidden**0.5 if c.flag("scale_embedding") else 1.0,
        pre_norms=False,
        act=act,
        **_ids(c, encoder.vocab),
    )


def _t5(c: Fields) -> Seq2SeqConfig:
    encoder = t5(c)
    tied = c.flag("tie_word_embeddings")
    scaled = c.data.get("scale_decoder_outputs")
    scaled = tied if scaled is None else scaled
    ids = _ids(c, encoder.vocab)
    return Seq2SeqConfig(
        family="t5",
        encoder=replace(encoder, max_positions=max(MAX_CONTEXT, encoder.max_positions)),
        vocab=encoder.vocab,
        hidden=encoder.hidden,
        layers=c.integer("num_decoder_layers", 1, MAX_LAYERS, encoder.layers),
        heads=encoder.heads,
        ffn=encoder.ffn,
        head_size=encoder.head_dim,
        max_positions=MAX_CONTEXT,
        learned=False,
        act=encoder.act,
        gated=encoder.gated,
        relative=encoder.relative,
        logit_scale=encoder.hidden**-0.5 if scaled else 1.0,
        tied=tied,
        **{**ids, "end_ids": ids["end_ids"] or (1,)},
    )


def _ids(c: Fields, vocab: int) -> dict[str, Any]:
    """Returns the special ids; a decoder begins with the padding's where none is named."""
    pad = c.integer("pad_token_id", 0, vocab - 1, 0)
    ends = c.data.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    found = tuple(c.over({"eos_token_id": e}).integer("eos_token_id", 0, vocab - 1)
                  for e in ends if e is not None)  # fmt: skip
    start = c.integer("decoder_start_token_id", 0, vocab - 1, pad)
    return {"start_id": start, "end_ids": found, "pad_id": pad}


_READERS: dict[str, Callable[[Fields], Seq2SeqConfig]] = {
    "whisper": _whisper, "moonshine": _moonshine, "bart": _bart, "marian": _marian,
    "t5": _t5, "mt5": _t5,
}  # fmt: skip
SEQ2SEQ = tuple(_READERS)
