"""Rejects impossible settings before any text is read: devices, folders, sizes, names of layers."""

from __future__ import annotations

import math
from pathlib import Path

from weft.backends import drivers, registry
from weft.core.errors import LimitError, ModelError, UsageError
from weft.importers.hf_config import Fields, read_config
from weft.importers.safetensors import open_checkpoint
from weft.models.arch.config import DecoderConfig
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights import adapters
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.reading import is_packed
from weft.training.contradictions import changed
from weft.training.model import base_source, check_context, config_of
from weft.training.prepare import new_config
from weft.training.settings import TrainingSettings
from weft.training.templates import template_of
from weft.training.tokens import LEAST_VOCAB

_GIB = 1 << 30


def check_settings(settings: TrainingSettings) -> None:
    """Raises UsageError, DeviceError, ModelError, FileFormatError or LimitError for settings that
    cannot work, as far as the settings alone show it. Opens a device only if it is named."""
    registry.check(settings.train.device)
    for section, path in (("model", settings.model.base), ("tokenizer", settings.tokenizer.base)):
        if path and not Path(path).is_dir():
            raise UsageError(f"[{section}] from = {path!r} is not a folder; give a model's folder")
    source = settings.model.base or settings.tokenizer.base
    if source and not (Path(source) / "tokenizer.json").exists():
        if settings.model.base:
            read_config(Path(source))  # reports a model's real location, if it is elsewhere
        raise ModelError(f"{source} lacks tokenizer.json, which training on text needs")
    if settings.data.conversations:
        template_of(settings)
    config = _base_config(settings) if settings.model.base else _new_config(settings)
    check_context(config, settings.train.context)
    _check_memory(config, settings)


def unused(settings: TrainingSettings) -> str | None:
    """Returns a line about settings without effect, because the base model determines them; or
    None."""
    if not settings.model.base:
        return None
    sizes = [f"[model] {key}" for key in changed(settings.model) if key not in ("from", "dropout")]
    sizes += [f"[tokenizer] {key}" for key in changed(settings.tokenizer)]
    if not sizes:
        return None
    return f"{', '.join(sizes)}: not used; {settings.model.base} says what the model is"


def _base_config(settings: TrainingSettings) -> DecoderConfig:
    """Returns the config of the base model, after checking that its folder has the files a run
    reads."""
    base = Path(settings.model.base)
    raw = read_config(base)
    config, _ = base_source(raw, base)
    if config.traced is not None and not settings.lora.rank:
        raise UsageError(
            f"{base}: {config.family} is traced from transformers, and weft trains only adapters "
            "for such models; add [lora]"
        )
    if is_packed(base, raw) and not settings.lora.rank:
        raise UsageError(
            f"{base} holds packed weights, which cannot be trained; add [lora] to train adapters "
            f"for them, or set [model] from to the unquantised model"
        )
    Tokenizer(base, config.vocab)
    if settings.lora.rank:
        adapters.target_roles(config, settings.lora.targets)
    return config


def _new_config(settings: TrainingSettings) -> DecoderConfig:
    """Returns the config of a new model with the smallest vocabulary that its tokenizer may
    have."""
    vocab = LEAST_VOCAB
    if settings.tokenizer.base:
        vocab = Tokenizer(Path(settings.tokenizer.base), 1 << 30).size
    raw = new_config(settings.model, vocab, settings.train.context, None)
    return config_of(Fields(raw, "[model]"))


def _check_memory(config: DecoderConfig, settings: TrainingSettings) -> None:
    """Raises LimitError for weights, or tokens per step, that the host's memory could never
    hold."""
    most, t = drivers.host_memory(), settings.train
    if not most:
        return
    count = sum(math.prod(s.shape) for s in decoder_layout(config).weights.values())
    base = Path(settings.model.base)
    packed = bool(settings.model.base) and is_packed(base, read_config(base))
    # float32 twice: as drawn or read, and as trained
    wanted = open_checkpoint(base).nbytes if packed else 8 * count
    if wanted > most:
        raise LimitError(
            f"the model has {count:,} parameters, which take more than {wanted // _GIB:,} GiB; "
            f"the machine has {most // _GIB:,}: lower [model] hidden, layers or ffn"
        )
    wide = 4 * t.batch * t.context * max(config.hidden, config.vocab)
    if wide > most:
        raise LimitError(
            f"[train] batch {t.batch} x context {t.context} takes more than {wide // _GIB:,} GiB; "
            f"the machine has {most // _GIB:,}: lower them, or use [train] accumulate"
        )
