"""What a run starts from: its tokenizer, tokens and weights."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.importers.hf_config import Fields, read_config, read_object
from weft.models.config import DecoderConfig
from weft.models.progress import progress
from weft.models.tokenizer import Tokenizer
from weft.models.training import checkpoints as ck
from weft.models.training.corpus import Corpus, read_corpus, skipped_line
from weft.models.training.model import config_of
from weft.models.training.settings import ModelSettings, Settings
from weft.models.training.tokens import end_token, open_tokens, train_tokenizer, write_tokens

DATA = "data"  # the folder of a run that holds tokenizer and tokens
MARK = "train.json"  # in it, written last: marks them whole


@dataclass(frozen=True)
class Data:
    """Tokens (mapped) and how they came about."""

    folder: Path  # holds the tokenizer's files
    train: np.ndarray
    held_out: np.ndarray
    digest: str
    facts: dict[str, Any]


def prepare_data(settings: Settings, run: Path) -> tuple[Data, DecoderConfig, dict[str, Any]]:
    """The run's data, and the model's config, also as config.json's fields. Data that is there is
    made anew when the text or the tokenizer is another, unless a checkpoint was trained on it.
    Raises UsageError, FileFormatError, ModelError."""
    folder = run / DATA
    for section, path in (("model", settings.model.base), ("tokenizer", settings.tokenizer.base)):
        if path and not Path(path).is_dir():
            raise UsageError(f"[{section}] from = {path!r} is not a folder; give a model's folder")
    if settings.model.base:
        read_config(Path(settings.model.base))  # says where the model is, if not here
    corpus = _new_text(settings, run)
    if corpus is None:
        raw, config = _config(settings, folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).unlink(missing_ok=True)
        with progress("preparing the tokenizer"):
            _tokenizer(settings, corpus, folder)
        raw, config = _config(settings, folder)
        with progress("turning the text into tokens"):
            _tokens(corpus, folder, config.vocab, _tokenizer_key(settings))
    facts = read_object(folder / MARK)
    train = open_tokens(folder / "train.npy", config.vocab)
    held = open_tokens(folder / "eval.npy", config.vocab)
    return Data(folder, train, held, facts["digest"], facts), config, raw


def _new_text(settings: Settings, run: Path) -> Corpus | None:
    """The text to make tokens of; None where those that are there stay. Says which, and why."""
    folder, d = run / DATA, settings.data
    before: dict[str, Any] = {}
    if (folder / MARK).exists():
        before = read_object(folder / MARK)
    kept = bool(before) and bool(ck.found(run))  # a checkpoint was trained on them
    try:
        corpus = read_corpus(d.paths, d.suffixes, d.exclude, d.holdout, Path())
    except (UsageError, FileFormatError):
        if not kept:
            raise
        _say(f"the text cannot be read any more; going on with the tokens in {folder}")
        return None
    same = before.get("digest") == corpus.digest
    if kept:
        if not same:
            _say(f"the text has changed since; going on with the tokens in {folder}")
        return None
    if corpus.skipped:
        _say(skipped_line(corpus.skipped))
    if same and before.get("tokenizer") == _tokenizer_key(settings):
        return None
    if before:
        _say(f"{folder} was made of other text or settings; making it anew")
    return corpus


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tokenizer_key(settings: Settings) -> str:
    """What the tokenizer follows from, besides the text. Raises ModelError."""
    source = settings.model.base or settings.tokenizer.base
    if not source:
        return f"trained, {settings.tokenizer.vocab} tokens"
    path = Path(source) / "tokenizer.json"
    if not path.exists():
        raise ModelError(f"{source} has no tokenizer.json; training on text needs one")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tokenizer(settings: Settings, corpus: Corpus, folder: Path) -> None:
    """The tokenizer's files in `folder`: the base model's, another folder's, or a new one."""
    source = settings.model.base or settings.tokenizer.base
    if source:
        ck.copy_tokenizer(Path(source), folder)
    else:
        train_tokenizer((text for _, text in corpus.train), settings.tokenizer.vocab, folder)


def _config(settings: Settings, folder: Path) -> tuple[dict[str, Any], DecoderConfig]:
    """config.json's fields and the DecoderConfig: the base model's, or new ones."""
    if settings.model.base:
        fields = read_config(Path(settings.model.base))
        return dict(fields.data), config_of(fields)
    vocab = Tokenizer(folder, 1 << 30).size
    end = end_token(folder)
    ids = [] if end is None else Tokenizer(folder, vocab).encode(end, special=False)
    raw = new_config(settings.model, vocab, settings.train.context, ids[0] if ids else None)
    return raw, config_of(Fields(raw, "[model]"))


def new_config(m: ModelSettings, vocab: int, context: int, end: int | None) -> dict[str, Any]:
    """config.json's fields of a new model."""
    common = {"vocab_size": vocab, "bos_token_id": end, "eos_token_id": end}
    if m.family == "gpt2":
        return {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **common,
            "n_embd": m.hidden, "n_layer": m.layers, "n_head": m.heads,
            "n_inner": m.ffn or 4 * m.hidden, "n_positions": context,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": m.tied,
        }  # fmt: skip
    third = -(-8 * m.hidden // 3)
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], **common,
        "hidden_size": m.hidden, "num_hidden_layers": m.layers,
        "num_attention_heads": m.heads, "num_key_value_heads": m.kv_heads or m.heads,
        "intermediate_size": m.ffn or -(-third // 32) * 32, "hidden_act": "silu",
        "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": m.tied,
    }  # fmt: skip


def _tokens(corpus: Corpus, folder: Path, vocab: int, tokenizer: str) -> None:
    """train.npy and eval.npy with their .json; MARK comes last."""
    facts: dict[str, Any] = {
        "digest": corpus.digest, "tokenizer": tokenizer, "python": corpus.python,
        "skipped": list(corpus.skipped),
    }  # fmt: skip
    parts: Mapping[str, Any] = {"eval": corpus.held_out, "train": corpus.train}
    for name, texts in parts.items():
        more: dict[str, Any] = {"files": len(texts), "characters": sum(len(t) for _, t in texts)}
        if name == "eval":
            more["names"] = [n for n, _ in texts]
        write_tokens((t for _, t in texts), folder, vocab, folder / f"{name}.npy", facts | more)
