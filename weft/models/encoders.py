"""Encoder families (BERT, RoBERTa, DistilBERT) and sentence-transformers folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields, parse_json, read_bounded, read_object
from weft.models.config import EncoderConfig, Pooling
from weft.models.family_fields import ENCODER_FIELDS
from weft.models.family_parts import (
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_VOCAB,
    activation,
    refuse,
)
from weft.models.model_fields import check_architecture, seen

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
    """BERT whose positions start at pad + 1 (transformers' create_position_ids_from_input_ids)."""
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


# -- sentence-transformers ------------------------------------------------------------------------

_OTHER_MODES = (
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)
_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
}  # concatenated in this order


def read_pooling(folder: Path) -> Pooling:
    """Pooling of a sentence-transformers folder; mean pooling where it has no modules.json.

    Raises ModelError for a module or pooling mode that weft does not compute.
    """
    path = folder / "modules.json"
    if not path.exists():
        return Pooling()
    modules = parse_json(read_bounded(path), str(path))
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise ModelError(f"{path}: expected a list of modules")
    modes: tuple = ("mean",)
    normalize = False
    limits: Fields | None = None
    for i, module in enumerate(modules):
        m = Fields(module, f"{path}: module {i}")
        kind = m.text("type").rpartition(".")[2]
        home = _inside(folder, m.text("path", ""), m.where)
        if kind == "Transformer":
            if home != folder:
                raise ModelError(f"{m.where}: a Transformer in a subfolder is not supported")
            found = home / "sentence_bert_config.json"
            limits = Fields(read_object(found), str(found)) if found.exists() else None
        elif kind == "Pooling":
            config = home / "config.json"
            modes = _modes(Fields(read_object(config), str(config)))
        elif kind == "Normalize":
            normalize = True
        else:
            raise ModelError(
                f"{m.where}: {kind[:60]!r} is not supported; "
                "supported: Transformer, Pooling, Normalize"
            )
    longest = limits.integer("max_seq_length", 1, MAX_TOKENS, None) if limits else None
    lower = limits.flag("do_lower_case", False) if limits else False
    return Pooling(modes, normalize, longest, lower)


def _inside(folder: Path, relative: str, where: str) -> Path:
    """`folder/relative`, refusing a path that leads out of the folder."""
    parts = Path(relative).parts
    odd = len(relative) > 200 or any(c in relative for c in "\\:\0")
    if odd or Path(relative).is_absolute() or ".." in parts:
        raise ModelError(f"{where}: path {relative[:80]!r} leads out of the model folder")
    return folder / relative


def _modes(c: Fields) -> tuple:
    value = c.data.get("pooling_mode")  # 5.x spelling: one name, or a list of them
    if value is not None:
        named = c.texts("pooling_mode") if isinstance(value, list) else (c.text("pooling_mode"),)
        wrong = [n for n in named if n not in _MODES]
        if wrong or not named:
            raise ModelError(
                f"{c.where}: pooling_mode {str(value)[:60]!r} is not supported; "
                f"supported: {', '.join(_MODES)}"
            )
        return named
    for name in _OTHER_MODES:
        refuse(c, name, False, "this pooling")
    modes = tuple(mode for mode, name in _MODES.items() if c.flag(name, False))
    if not modes:
        raise ModelError(f"{c.where}: no supported pooling mode is on: {', '.join(_MODES)}")
    return modes
