"""Prepares the inputs of a run: tokenizer, tokens and weights."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.core.notices import tell
from weft.core.places import check_inside, remove
from weft.host.files import digests, naming, verify, write_json, write_text
from weft.host.progress import progress
from weft.importers.hf_config import Fields, read_config, read_object
from weft.models.arch.config import DecoderConfig
from weft.models.run.sight import sighted
from weft.models.text.chat import TEMPLATE
from weft.models.text.token_ids import read_token_ids
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.writing import TOKENIZER_FILES, copy_tokenizer
from weft.training import checkpoints as ck
from weft.training.conversations import (
    SUFFIX,
    Conversation,
    Conversations,
    read_conversations,
    texts_of,
)
from weft.training.corpus import Corpus, read_corpus, skipped_line
from weft.training.model import config_of
from weft.training.packing import PackedRowsFile, write_rows
from weft.training.pictures import PLACES, VECTORS, PictureTable, writer
from weft.training.settings import ModelSettings, TrainingSettings
from weft.training.templates import template_of
from weft.training.tokens import end_token, open_tokens, train_tokenizer, write_tokens
from weft.training.turns import ConversationEncoder

DATA = "data"  # the folder of a run with its tokenizer and tokens
MARK = "train.json"  # file in DATA, written last: digests of the complete files
TRAIN, HELD_OUT = "train.npy", "eval.npy"
FILES = (TRAIN, HELD_OUT, VECTORS, PLACES, *TOKENIZER_FILES)
WRITTEN = {*FILES, MARK, "eval.json"}  # every file that DATA may hold, complete or not


@dataclass(frozen=True)
class Data:
    """Mapped tokens, from text or conversations, and their origin."""

    folder: Path  # the folder of the tokenizer's files
    train: np.ndarray | PackedRowsFile
    held_out: np.ndarray | PackedRowsFile
    digest: str  # digest of the text
    tokens: str  # digests of the token files
    facts: dict[str, Any]
    pictures: PictureTable | None = None  # their vectors, if conversations have some


def prepare_data(
    settings: TrainingSettings, run: Path
) -> tuple[Data, DecoderConfig, dict[str, Any]]:
    """Returns the run's data, and the model's config, also as config.json's fields.

    Existing data is made again if the text or the tokenizer differs or a file is damaged, unless a
    checkpoint was trained on it. Raises UsageError, FileFormatError, ModelError, StorageError.
    """
    folder = run / DATA
    corpus = _new_text(settings, run)
    if corpus is None:
        raw, config = _config(settings, folder)
        _check_prompt(settings, config, folder)
    else:
        check_inside(folder / MARK, run)
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name in (MARK, VECTORS, PLACES, *TOKENIZER_FILES):
                with suppress(FileNotFoundError):
                    remove(folder / name, run)
        with progress("preparing the tokenizer"):
            _tokenizer(settings, corpus, folder)
        raw, config = _config(settings, folder)
        _check_prompt(settings, config, folder)
        with progress("turning the text into tokens"):
            _tokens(corpus, folder, config, raw, settings)
    facts = _facts(folder)
    pictures = None
    if VECTORS in facts["sha256"]:
        wide = config.hidden * (1 + config.deep)
        more = bool(config.looks), bool(config.turns_by)
        pictures = PictureTable(folder, config.vocab, wide, *more)
    vocab = config.vocab + (0 if pictures is None else len(pictures))
    train, held = (_open(settings, folder / name, vocab) for name in (TRAIN, HELD_OUT))
    names = (TRAIN, HELD_OUT, VECTORS)
    tokens = " ".join(facts["sha256"][name] for name in names if name in facts["sha256"])
    return Data(folder, train, held, facts["digest"], tokens, facts, pictures), config, raw


def _open(settings: TrainingSettings, path: Path, vocab: int) -> np.ndarray | PackedRowsFile:
    """Opens the tokens of text or conversations; reports conversations that are too long."""
    if not settings.data.conversations:
        return open_tokens(path, vocab)
    room = settings.train.context + 1
    rows = PackedRowsFile(path, vocab, room)
    if rows.left_out:
        tell(
            f"{rows.left_out} of {rows.count + rows.left_out} conversations in {path} have more "
            f"than {room} tokens (the longest has {rows.longest}) and are left out; a larger "
            "[train] context takes them"
        )
    return rows


def _read(settings: TrainingSettings) -> Corpus | Conversations:
    d = settings.data
    if not d.conversations:
        return read_corpus(d.paths, d.suffixes, d.exclude, d.holdout, Path(), d.held_out)
    return read_conversations(d.conversations, d.held_out, d.exclude, d.holdout, Path())


def _say_unread(corpus: Corpus | Conversations) -> None:
    """Reports the parts of the data that are not trained on."""
    if isinstance(corpus, Corpus):
        if corpus.skipped:
            tell(skipped_line(corpus.skipped))
        talks = [
            n for n, text in corpus.train if n.endswith(SUFFIX) and '"messages"' in text[:4096]
        ]
        if talks:
            tell(f"{talks[0]} holds conversations; [data] conversations trains on them as such")
        return
    if corpus.unused:
        tell(f"keys of conversations that are not used: {', '.join(corpus.unused)[:200]}")
    trained = {one.digest() for one in corpus.train}
    if both := sum(one.digest() in trained for one in corpus.held_out):
        tell(f"{both} of {len(corpus.held_out)} held-out conversations are trained on, too")


def _new_text(settings: TrainingSettings, run: Path) -> Corpus | Conversations | None:
    """Returns the text to encode, or None if the existing tokens stay. Reports which, and why."""
    folder = run / DATA
    trained = bool(ck.found(run))  # a checkpoint depends on the existing tokens
    before: dict[str, Any] = {}
    try:
        before = _facts(folder) if (folder / MARK).exists() else {}
    except FileFormatError as error:
        if trained:
            raise
        tell(f"{error}; making it anew")
    kept = bool(before) and trained
    try:
        corpus = _read(settings)
    except (UsageError, FileFormatError):
        if not kept:
            raise
        tell(f"the text cannot be read any more; going on with the tokens in {folder}")
        return None
    same = before.get("digest") == corpus.digest
    if kept:
        if not same:
            tell(f"the text has changed since; going on with the tokens in {folder}")
        return None
    _say_unread(corpus)
    if same and before.get("tokenizer") == _tokenizer_key(settings):
        return None
    if before:
        tell(f"{folder} was made of other text or settings; making it anew")
    return corpus


def _facts(folder: Path) -> dict[str, Any]:
    """Returns the content of MARK, after checking it and every file it names. Raises
    FileFormatError."""
    path = folder / MARK
    remedy = f"without {folder}, the same text gives it again"
    facts = read_object(path)
    texts = all(isinstance(facts.get(name), str) for name in ("digest", "tokenizer", "python"))
    files = facts.get("sha256")
    if not texts or not isinstance(files, dict) or not {TRAIN, HELD_OUT} <= files.keys():
        raise FileFormatError(f"{path}: not what weft train writes; {remedy}")
    if not all(name in FILES and isinstance(was, str) for name, was in files.items()):
        raise FileFormatError(f"{path}: sha256 names what weft train does not write; {remedy}")
    verify(folder, files, remedy)
    return facts


def _check_prompt(settings: TrainingSettings, config: DecoderConfig, folder: Path) -> None:
    """Raises UsageError for a sample prompt that would end the run at the first sample."""
    if not settings.output.sample_every:
        return
    length = len(prompt_ids(settings, Tokenizer(folder, config.vocab)))
    if not 0 < length < config.max_positions:
        raise UsageError(
            f"[output] sample_prompt has {length} tokens; expected 1 to {config.max_positions - 1}"
        )


def prompt_ids(settings: TrainingSettings, tokenizer: Tokenizer) -> list[int]:
    """Returns the ids that samples continue; with conversations, the prompt for a first answer."""
    prompt = settings.output.sample_prompt
    if not settings.data.conversations:
        return tokenizer.encode(prompt)
    text = tokenizer.chat([{"role": "user", "content": prompt}])
    return tokenizer.encode(text, special=False)


def _tokenizer_key(settings: TrainingSettings) -> str:
    """Returns a key of everything that determines the tokenizer, besides the text. Raises
    ModelError."""
    source, t = settings.model.base or settings.tokenizer.base, settings.tokenizer
    if source:
        found = digests(Path(source), [n for n in TOKENIZER_FILES if n != TEMPLATE])
        if "tokenizer.json" not in found:
            raise ModelError(f"{source} lacks tokenizer.json, which training on text needs")
        key = " ".join(found.values())
    else:
        key = " ".join([f"trained, {t.vocab} tokens", *t.special])
    if not settings.data.conversations:
        return key
    return f"{key} {hashlib.sha256(template_of(settings).encode()).hexdigest()}"


def _tokenizer(settings: TrainingSettings, corpus: Corpus | Conversations, folder: Path) -> None:
    """Writes the tokenizer's files to `folder`: the base model's, another folder's, or a new one;
    with the chat template from the settings."""
    source, t = settings.model.base or settings.tokenizer.base, settings.tokenizer
    if source:
        copy_tokenizer(Path(source), folder)
    else:
        train_tokenizer(_texts(corpus), t.vocab, folder, t.special)
    if settings.data.template:
        write_text(folder / TEMPLATE, template_of(settings))


def _texts(corpus: Corpus | Conversations) -> list[str]:
    if isinstance(corpus, Conversations):
        return texts_of(corpus.train)
    return [text for _, text in corpus.train]


def _config(settings: TrainingSettings, folder: Path) -> tuple[dict[str, Any], DecoderConfig]:
    """Returns config.json's fields and the DecoderConfig: the base model's, or new ones."""
    if settings.model.base:
        base = Path(settings.model.base)
        fields = read_config(base)
        config = config_of(fields, base)
        found = sighted(fields, config) if settings.data.conversations else None
        return dict(fields.data), config if found is None else found[0]
    vocab = Tokenizer(folder, 1 << 30).size
    end = end_token(folder)
    ids = [] if end is None else Tokenizer(folder, vocab).encode(end, special=False)
    raw = new_config(settings.model, vocab, settings.train.context, ids[0] if ids else None)
    return raw, config_of(Fields(raw, "[model]"))


def new_config(m: ModelSettings, vocab: int, context: int, end: int | None) -> dict[str, Any]:
    """Returns config.json's fields for a new model."""
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


def _tokens(
    corpus: Corpus | Conversations, folder: Path, config: DecoderConfig, raw: dict[str, Any],
    settings: TrainingSettings,
) -> None:  # fmt: skip
    """Writes TRAIN and HELD_OUT, each with its .json; MARK, that of TRAIN, comes last."""
    facts: dict[str, Any] = {
        "digest": corpus.digest, "tokenizer": _tokenizer_key(settings),
        "python": platform.python_version(),
    }  # fmt: skip
    more: dict[str, dict[str, Any]] = {}
    if isinstance(corpus, Corpus):
        facts["skipped"] = list(corpus.skipped)
        for name, texts in ((HELD_OUT, corpus.held_out), (TRAIN, corpus.train)):
            more[name] = _text_tokens(texts, folder, config.vocab, folder / name)
        more[TRAIN].pop("names")
    else:
        ends = read_token_ids(folder, Fields(raw, "config.json")).eos
        tokenizer = Tokenizer(folder, config.vocab)
        with writer(settings, corpus, tokenizer, config, folder) as seen:
            turns = ConversationEncoder(tokenizer, ends, seen)
            for name, talks in ((HELD_OUT, corpus.held_out), (TRAIN, corpus.train)):
                more[name] = _talk_tokens(talks, turns, folder / name)
    more[TRAIN]["sha256"] = digests(folder, FILES)
    for name in (HELD_OUT, TRAIN):
        write_json((folder / name).with_suffix(".json"), facts | more[name])


def _text_tokens(
    texts: Sequence[tuple[str, str]], folder: Path, vocab: int, path: Path
) -> dict[str, Any]:
    count = write_tokens((t for _, t in texts), folder, vocab, path)
    return {
        "files": len(texts), "tokens": count, "characters": sum(len(t) for _, t in texts),
        "names": [n for n, _ in texts],
    }  # fmt: skip


def _talk_tokens(
    talks: Sequence[Conversation], turns: ConversationEncoder, path: Path
) -> dict[str, Any]:
    rows = [row for one in talks for row in turns.encode(one)]
    said = sum(int((row >= 0).sum()) for row in rows)
    return {"conversations": len(talks), "tokens": write_rows(rows, path), "said": said}
