"""Reads the config of `weft train`: TOML to checked dataclasses."""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from weft.core.errors import FileFormatError, UsageError
from weft.importers.hf_config import MAX_CONFIG, read_bounded
from weft.training.contradictions import contradictions

MAX_STEPS = 1 << 30


def _of(
    default: Any, doc: str, lo: float | None = None, hi: float | None = None, **more: Any
) -> Any:
    """Declares a setting: its default (MISSING: required), one line about it, its range. `below`:
    the upper end is excluded. `blank`: an empty string is allowed."""
    facts = {"doc": doc, "lo": lo, "hi": hi, **more}
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata=facts)
    return field(default=default, metadata=facts)


@dataclass(frozen=True)
class ModelSettings:
    """[model]: a folder to start from, or the sizes of a new one."""

    base: str = _of(
        "", "fine-tune this folder, or ORG/NAME; sizes come from it", key="from", blank=True
    )
    family: str = _of("llama", "architecture of a new model", choices=("llama", "gpt2"))
    hidden: int = _of(192, "width", 2, 1 << 14)
    layers: int = _of(5, "number of layers", 1, 256)
    heads: int = _of(6, "attention heads", 1, 256)
    kv_heads: int = _of(0, "key/value heads (0: as many as heads)", 0, 256)
    ffn: int = _of(0, "width of the MLP (0: 8/3 of hidden, for gpt2 4x)", 0, 1 << 16)
    tied: bool = _of(True, "the embedding is the output layer too")
    dropout: float = _of(0.0, "share of activations dropped while training", 0.0, 0.9)


@dataclass(frozen=True)
class LoraSettings:
    """[lora]: train low-rank adapters and leave the model as it is."""

    rank: int = _of(0, "rank of the adapters (0: train the whole model)", 0, 1024)
    alpha: float = _of(16.0, "adapters are scaled by alpha / rank", 1e-6, 1e6)
    targets: tuple[str, ...] = _of((), "layers with an adapter, as PEFT names them (q_proj, ...)")
    dropout: float = _of(0.0, "dropout of the adapters' inputs", 0.0, 0.9)


@dataclass(frozen=True)
class DataSettings:
    """[data]: text or conversations. Relative paths start from the folder that weft is run in."""

    paths: tuple[str, ...] = _of((), 'files, folders, patterns, or "stdlib" (Python\'s own source)')
    conversations: tuple[str, ...] = _of((), "JSON lines with messages, instead of paths")
    template: str = _of("", "chat template (a Jinja file), instead of the model's", blank=True)
    pack: bool = _of(False, "rows hold several conversations (false: one each, padded)")
    held_out: tuple[str, ...] = _of((), "files to evaluate on, instead of a share")
    suffixes: tuple[str, ...] = _of((".txt", ".md", ".py"), "files of folders that count")
    exclude: tuple[str, ...] = _of((), "patterns of paths within a folder to leave out")
    holdout: float = _of(0.05, "share of the text kept for evaluation", 0.0, 0.5)


@dataclass(frozen=True)
class TokenizerSettings:
    """[tokenizer]: of a new model."""

    vocab: int = _of(2048, "tokens of the byte-level BPE to train", 257, 1 << 20)
    special: tuple[str, ...] = _of((), "marks of a chat template, a token each")
    base: str = _of("", "use the tokenizer of this folder, or ORG/NAME", key="from", blank=True)


@dataclass(frozen=True)
class TrainSettings:
    """[train]: the loop."""

    steps: int = _of(1000, "optimiser steps", 1, MAX_STEPS)
    epochs: float = _of(0.0, "times through the data, instead of steps (0: steps)", 0.0, 1e6)
    patience: int = _of(
        0, "evaluations without a lower held-out loss that end the run (0: none)", 0, 1 << 30
    )
    batch: int = _of(8, "sequences per step and accumulation", 1, 1 << 16)
    accumulate: int = _of(1, "gradients of this many batches are added up per step", 1, 1 << 10)
    context: int = _of(256, "tokens per sequence", 2, 1 << 20)
    precision: str = _of(
        "float32", "what matrices are multiplied in; master weights stay float32",
        choices=("float32", "bfloat16", "float16"),
    )  # fmt: skip
    checkpointing: bool = _of(False, "compute activations again backward, to save memory")
    seed: int = _of(0, "of weights, batches and dropout", 0, (1 << 63) - 1)
    device: str = _of("auto", "cpu, vulkan, ...; auto: the fastest")


@dataclass(frozen=True)
class OptimizerSettings:
    """[optimizer]: AdamW (Loshchilov & Hutter 2019)."""

    lr: float = _of(1e-3, "the highest learning rate", 0.0, 10.0)
    min_lr: float = _of(0.0, "what it ends at", 0.0, 10.0)
    warmup: int = _of(100, "steps in which it rises from 0", 0, 1 << 30)
    schedule: str = _of("cosine", "after the warm-up", choices=("cosine", "linear", "constant"))
    betas: tuple[float, ...] = _of(
        (0.9, 0.95), "decay of the moments", 0.0, 1.0, count=2, below=True
    )
    eps: float = _of(1e-8, "keeps the division finite", 1e-30, 1.0)
    weight_decay: float = _of(0.1, "of matrices; vectors are not decayed", 0.0, 10.0)
    clip: float = _of(1.0, "largest norm of the gradient (0: no limit)", 0.0, 1e9)


@dataclass(frozen=True)
class OutputSettings:
    """[output]: what is written, and when."""

    folder: str = _of("run", "where everything goes")
    dtype: str = _of(
        "float32", "of the final model's weights", choices=("float32", "float16", "bfloat16")
    )
    eval_every: int = _of(100, "steps between evaluations on held-out text (0: never)", 0, 1 << 30)
    eval_batches: int = _of(16, "batches per evaluation, at most", 1, 1 << 20)
    sample_every: int = _of(500, "steps between samples (0: never)", 0, 1 << 30)
    sample_prompt: str = _of("\n", "what samples continue, or answer", blank=True)
    sample_tokens: int = _of(64, "their length", 1, 1 << 16)
    checkpoint_every: int = _of(500, "steps between checkpoints (0: only at the end)", 0, 1 << 30)
    keep: int = _of(2, "checkpoints kept", 1, 1 << 20)
    best: bool = _of(False, "the finished model is that of the lowest held-out loss")


@dataclass(frozen=True)
class TrainingSettings:
    """A whole file. Relative paths in it start from the current folder."""

    model: ModelSettings = field(default_factory=ModelSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    output: OutputSettings = field(default_factory=OutputSettings)

    def as_dict(self) -> dict[str, Any]:
        """Returns the settings as JSON data (tuples become lists)."""
        out: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return out


# Settings that may change when a run is resumed: folder, length, output.
FREE = {
    "output.folder", "output.dtype", "output.eval_every", "output.sample_every",
    "output.sample_prompt", "output.sample_tokens", "output.checkpoint_every", "output.keep",
    "output.best", "train.device", "train.patience",
}  # fmt: skip


def read_settings(path: Path) -> TrainingSettings:
    """Reads the settings from a TOML file. Raises UsageError for a file that cannot be read or is
    not TOML, and for an unknown or impossible setting."""
    try:
        data = tomllib.loads(read_bounded(path, MAX_CONFIG).decode("utf-8"))
    except FileFormatError as error:
        raise UsageError(str(error)) from None
    except RecursionError:
        raise UsageError(f"{path}: not a config: nested too deeply") from None
    except ValueError as error:  # broken UTF-8 or TOML, numbers of thousands of digits
        raise UsageError(f"{path}: not TOML: {error!s:.200}") from None
    return settings_from(data, str(path))


def settings_from(data: dict[str, Any], where: str) -> TrainingSettings:
    """Returns the settings from plain data. Raises UsageError."""
    made: TrainingSettings = _section(TrainingSettings, data, where, "")
    for problem in contradictions(made):
        raise UsageError(f"{where}: {problem}")
    return made


def stored(data: Any, where: str) -> dict[str, Any]:
    """Returns the checked data of `TrainingSettings.as_dict`, with defaults for missing settings.
    Raises UsageError."""
    made: TrainingSettings = _section(TrainingSettings, data, where, "", stored=True)
    return made.as_dict()


def _section(cls: Any, data: Any, where: str, name: str, stored: bool = False) -> Any:
    if not isinstance(data, dict):
        raise UsageError(f"{where}: {name or 'it'} is {_shown(data)}; expected a table [{name}]")
    known = {f.name if stored else f.metadata.get("key", f.name): f for f in fields(cls)}
    hints = get_type_hints(cls)
    given = {}
    for key, value in data.items():
        f = known.get(key)
        if f is None:
            unknown = _place(name, f"{key:.60}")
            raise UsageError(f"{where}: unknown {unknown}; {_nearest(key, known)}")
        if is_dataclass(hints[f.name]):
            given[f.name] = _section(hints[f.name], value, where, key, stored)
        else:
            given[f.name] = _value(f, hints[f.name], value, f"{where}: {_place(name, key)}")
    return cls(**given)


def _place(section: str, key: str) -> str:
    return f"[{section}] {key}" if section else f"section [{key}]"


def _nearest(key: str, known: dict[str, Any]) -> str:
    close = difflib.get_close_matches(key, known, 1, 0.5)
    if close:
        return f"did you mean {close[0]}?"
    return "known: " + ", ".join(known)


def _value(f: Field[Any], kind: Any, value: Any, where: str) -> Any:
    """Returns `value` as the field's type, checked against its range."""
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        items = value if isinstance(value, list) else [value]
        if "count" in f.metadata and len(items) != f.metadata["count"]:
            raise UsageError(f"{where} is {_shown(value)}; expected {f.metadata['count']} values")
        return tuple(_value(f, inner, v, where) for v in items)
    if kind is float and type(value) is int and abs(value) < 1 << 64:
        value = float(value)
    if type(value) is not kind:
        raise UsageError(f"{where} is {_shown(value)}; expected {_WORDS[kind]}")
    choices = f.metadata.get("choices")
    if choices and value not in choices:
        raise UsageError(f"{where} is {_shown(value)}; expected one of {', '.join(choices)}")
    if kind is str:
        _check_text(f, value, where)
    elif kind is not bool:
        _check_range(f, value, where)
    return value


def _check_text(f: Field[Any], value: str, where: str) -> None:
    if "\0" in value:
        raise UsageError(f"{where} is {_shown(value)}; expected text without null characters")
    if not value.strip() and not f.metadata.get("blank"):
        raise UsageError(f"{where} is {_shown(value)}; expected a name")


def _check_range(f: Field[Any], value: float, where: str) -> None:
    lo, hi, below = f.metadata["lo"], f.metadata["hi"], f.metadata.get("below")
    if not lo <= value <= hi or (below and value == hi):  # rejects NaN too
        end = f"below {hi:g}" if below else f"{hi:g}"
        raise UsageError(f"{where} is {_shown(value)}; expected {lo:g} to {end}")
    if 0 < abs(value) < _TINY:
        raise UsageError(f"{where} is {_shown(value)}; in float32 that is 0: write 0, or more")


def _shown(value: object) -> str:
    """Returns the value's repr, shortened to fit in a line."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # deep, or an integer of thousands of digits
        text = f"{type(value).__name__} too large to show"
    return text if len(text) <= 80 else f"{text[:77]}..."


_TINY = float(np.finfo(np.float32).tiny)
_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns the changes that a resumed run must not make, as "section.key: old -> new"."""
    out = []
    for section in sorted({*old, *new}):
        a, b = old.get(section, {}), new.get(section, {})
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key) and f"{section}.{key}" not in FREE:
                out.append(f"[{section}] {key}: {a.get(key)!r} -> {b.get(key)!r}")
    return out


def example() -> str:
    """Returns a config file with every setting, its default and its meaning."""
    lines = ["# weft train: everything a config can say, with its default.", ""]
    for section in fields(TrainingSettings):
        cls = get_type_hints(TrainingSettings)[section.name]
        lines += [f"# {cls.__doc__}", f"[{section.name}]"]
        for f in fields(cls):
            default = getattr(cls(), f.name)
            shown = json.dumps(default)
            if section.name == "data" and f.name == "paths":
                shown = '["stdlib"]'
            more = f" ({', '.join(f.metadata['choices'])})" if "choices" in f.metadata else ""
            off = "# " if f.metadata.get("key") else ""
            entry = f"{off}{f.metadata.get('key', f.name)} = {shown}"
            lines.append(f"{entry:<36}# {f.metadata['doc']}{more}")
        lines.append("")
    return "\n".join(lines)
