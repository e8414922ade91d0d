"""Loads a Hugging Face folder or a GGUF file as a Model on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.core.dtypes import int8
from weft.core.errors import LimitError, ModelError, UsageError
from weft.core.hints import command
from weft.core.text import listed, shown
from weft.host.progress import progress
from weft.hub.names import name_of
from weft.importers.hf_config import Fields, has_weights, read_config
from weft.models.arch.config import DecoderConfig, TokenizerContent
from weft.models.arch.conformer_config import CTC, TRANSDUCERS
from weft.models.arch.encoder_config import EncoderConfig, VectorConfig
from weft.models.arch.encoders import ENCODERS
from weft.models.arch.families import DECODERS, read_stream
from weft.models.arch.inputs import NO_ADAPTERS, Stacked, kept_window, with_tables
from weft.models.arch.latent_weights import absorbed, with_joined
from weft.models.arch.model_fields import writes_text
from weft.models.arch.pooling import Pooling
from weft.models.arch.seq2seq_families import SEQ2SEQ, writes_from_input
from weft.models.arch.shares import own_columns
from weft.models.arch.stages import roles_of
from weft.models.arch.weights import Weight, Weights
from weft.models.run.adapter_slots import AdapterSlots
from weft.models.run.base import Model
from weft.models.run.embedder import Encoder
from weft.models.run.encoder_runner import body_of
from weft.models.run.judge_folder import file_judge, judges, load_judge
from weft.models.run.model import Decoder
from weft.models.run.own_adapter import with_own
from weft.models.run.placed import Placed
from weft.models.run.sentence_folder import makes_vectors, read_pooling
from weft.models.run.sight import file_eyes, with_eyes
from weft.models.run.traced_eyes import traced_sight
from weft.models.text.maker import tokenizer_maker
from weft.models.weights.encoder_names import encoder_layout
from weft.models.weights.names import OUTPUTS
from weft.models.weights.placement import DEFAULT, Placement, check_encoder
from weft.models.weights.reading import folder_source, read_weights, says_packed, stream_weights
from weft.models.weights.source import Source
from weft.models.weights.weight_dtypes import (
    check_dtypes,
    main_dtype,
    ready,
    wanted,
    wanted_cache,
)

if TYPE_CHECKING:
    from weft.models.weights.adapters import Adapter
    from weft.program.device import Device

DEFAULT_CONTEXT = 4096
PICTURES = ("clip", "siglip", "dinov2", "dinov3_vit")  # types that give vectors of pictures


def load_uncompiled(path: Path, place: Placement) -> Model:
    """Loads the model in a Hugging Face folder or a GGUF file; see weft.load. With `place.part`,
    loads one machine's part of it."""
    wanted_cache(place.cache)
    if place.part is not None and place.quant is not None:
        folders = command("quantize", path, "-o", "OUT", "--scheme", place.quant)
        raise UsageError(f"quant is for one machine; a folder for several: {folders}")
    if place.quant is not None and (path.is_file() or place.dtype is not None):
        what = f"{path.name} is a file" if path.is_file() else "a dtype is given too"
        raise UsageError(f"quant={place.quant!r} is for folders of floats, without dtype; {what}")
    if path.is_file():
        return _gguf(path, place)
    adapter = _adapter(path)
    if adapter is not None:
        if place.part is not None:
            merged = command("merge", adapter[0], path, "-o", "MERGED")
            raise UsageError(
                f"{path}: adapters do not work on several machines; merge the adapter first: "
                f"{merged}"
            )
        path = adapter[0]
    raw = read_config(path)
    kind = _kind(raw)
    with progress(f"loading {name_of(path)}"):
        device = place.opened()
        if kind in PICTURES:
            check_encoder(f"{raw.where}: {kind} gives vectors of pictures", place)
            from weft.models.run.picture_encoder import load_picture_encoder

            return load_picture_encoder(path, raw, kind, device, place)
        if judges(raw):
            check_encoder(f"{raw.where}: this {kind} judges texts", place)
            return load_judge(path, raw, kind, device, place)
        if writes_from_input(raw):
            from weft.models.run.seq2seq_loader import load_seq2seq

            check_encoder(f"{raw.where}: {kind} has an encoder", place)
            return load_seq2seq(path, raw, device, place)
        if kind in (*CTC, *TRANSDUCERS):
            from weft.models.run.parakeet import load_parakeet

            check_encoder(f"{raw.where}: {kind} writes what it hears", place)
            return load_parakeet(path, raw, device, place)
        if _vectors(raw, kind):
            check_encoder(f"{raw.where}: {kind} is an encoder", place)
            return _encoder(path, raw, ENCODERS[kind](raw), device, place)
        if _embeds(path, raw, kind):
            check_encoder(f"{raw.where}: this {kind} gives vectors", place)
            return _embedder(path, raw, kind, device, place)
        seen = traced_sight(path, raw, device) if kind not in DECODERS else None
        source, eyes = seen or with_eyes(path, raw, _source(path, raw, kind, place), device, place)
        made = _decoder(source, device, with_own(path, place), adapter and adapter[1])
        made.make_eyes = eyes if place.part is None else None
        return made


def _source(folder: Path, raw: Fields, kind: str, place: Placement) -> Source:
    """Returns the decoder in a folder: of a family here, or traced from transformers' code."""
    if kind in DECODERS:
        return folder_source(folder, raw, DECODERS[kind](raw), wanted(place.dtype))
    from weft.models.zoo.source import zoo_source

    return zoo_source(folder, raw, place.cache, wanted(place.dtype))


def _adapter(folder: Path) -> tuple[Path, Callable[[DecoderConfig], Adapter]] | None:
    """Returns, for a folder with a LoRA adapter and no other weights, its model's folder and a
    reader of the adapter; else None."""
    if not (folder / "adapter_config.json").exists():
        return None
    if (folder / "config.json").exists() and has_weights(folder):
        return None  # read_config reports it
    from weft.models.weights import adapter_files
    from weft.models.weights.adapter_base import base_of

    return base_of(folder), lambda config: adapter_files.read(folder, config)


def check_supported(folder: Path) -> str:
    """Returns the architecture in a folder's config.json. Raises ModelError for an architecture or
    packed weights that weft cannot read."""
    config = read_config(folder)
    kind = _kind(config)
    known = kind in (*DECODERS, *PICTURES, *CTC) or writes_from_input(config)
    if not known and not _vectors(config, kind) and not judges(config):
        from weft.models.zoo.ask import check_type

        check_type(config.where, kind)
    if says_packed(config):
        from weft.importers.packed.checkpoint import method_of

        method_of(config, folder)
    return kind


def _kind(config: Fields) -> str:
    """Returns the model's architecture. Raises ModelError if config.json does not say it."""
    kind: str = config.text("model_type", "")
    if not kind:
        raise _unsupported(config)
    return kind


def _unsupported(config: Fields) -> ModelError:
    known = listed([*DECODERS, *ENCODERS, *SEQ2SEQ, *CTC])
    names = config.data.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    said = f"{shown(name)}, unnamed (no model_type)," if name else "unnamed (no model_type)"
    return ModelError(f"{config.where}: architecture {said} is not supported; supported: {known}")


def _vectors(raw: Fields, kind: str) -> bool:
    """Returns True for an encoder; some types have models that write text as well."""
    return kind in ENCODERS and not writes_text(raw)


def _embeds(folder: Path, raw: Fields, kind: str) -> bool:
    """Returns True for a decoder that gives vectors: by modules.json, or because its tokens see
    later ones."""
    made = makes_vectors(folder)
    if kind not in DECODERS:
        if made:
            raise ModelError(
                f"{folder / 'modules.json'} makes vectors of a {shown(kind, 40)}; weft embeds with "
                f"{listed([*ENCODERS, *DECODERS])}"
            )
        return False
    return made or bool(raw.data.get("use_bidirectional_attention") is True)


# -- decoders -------------------------------------------------------------------------------------


def _gguf(path: Path, place: Placement) -> Model:
    """Loads the model in a GGUF file."""
    from weft.importers.gguf import open_gguf
    from weft.models.weights import gguf_encoder as files
    from weft.models.weights.gguf import read
    from weft.models.weights.gguf_adapters import is_gguf_adapter

    gguf = open_gguf(path)
    arch = files.arch_of(gguf)
    if arch in files.ENCODERS:
        with progress(f"loading {name_of(path)}"):
            file = files.read_encoder_file(path, wanted(place.dtype), gguf)
            check_encoder(f"{path}: {arch} is an encoder", place)
            if file.head is not None:
                return file_judge(file, place.opened(), place)
            return _vectors_of(
                path, file.config, file.weights, place.opened(), place, file.pooling, {}, file.made
            )
    if is_gguf_adapter(gguf):
        beside = command("run", "MODEL", "PROMPT", "--adapter", path)
        raise UsageError(f"{path} holds a LoRA adapter; give it with its model: {beside}")
    with progress(f"loading {name_of(path)}"):
        source = read(path, wanted(place.dtype), gguf)
        if not files.pools(gguf):
            return _seeing(path, source, place)
        check_encoder(f"{path}: this {arch} gives vectors", place)
        weights = {r: w for r, w in source.weights.items() if r not in OUTPUTS}
        config, how = replace(source.config, tied=True), files.pooling_of(gguf)
        return _vectors_of(path, config, weights, place.opened(), place, how, {}, source.made)


def _seeing(path: Path, source: Source, place: Placement) -> Decoder:
    """Returns the text model in a GGUF file, with eyes if its folder has an mmproj file."""
    device = place.opened()
    found = file_eyes(path, source.config, device, place) if place.part is None else None
    if found is None:
        return _decoder(source, device, place)
    made = _decoder(replace(source, config=found[0]), device, place)
    made.make_eyes = found[1]
    return made


def _decoder(
    source: Source,
    device: Device | None,
    place: Placement,
    read_adapter: Callable[[DecoderConfig], Adapter] | None = None,
) -> Decoder:
    config = source.config if place.part is None else place.part(source.config)
    wants = roles_of(config)
    adapter = None if read_adapter is None else read_adapter(config)
    weights: Mapping[str, Weight] = {r: w for r, w in source.weights.items() if wants(r)}
    if place.quant is not None:
        from weft.quantize.kept import quantised

        config, weights = absorbed(config, weights)
        config, weights = quantised(source.path, config, weights, place.quant)
    own = config, with_joined(config, weights)
    beside = _stacked(*own, place)
    config, weights = own_columns(config, weights)
    if adapter is not None:
        from weft.models.weights.adapter_merge import added

        config, weights = added(config, with_joined(config, weights), adapter)
    config, weights = absorbed(config, weights)
    config, arrays = ready(source.path, config, weights, place, device)
    made = decoder_from(replace(source, config=config), arrays, device, place, beside)
    if place.adapter_slots:
        made.slots = AdapterSlots(*own, made.placed)
    return made


def _stacked(config: DecoderConfig, weights: Mapping[str, Weight], place: Placement) -> Stacked:
    """Returns the adapters in the given folders by their names, and free slots."""
    if not (place.adapters or place.adapter_slots):
        return NO_ADAPTERS
    from weft.models.weights.adapter_files import read
    from weft.models.weights.adapter_stack import stacked

    adapters = {name: read(at, config) for name, at in place.adapters.items()}
    return stacked(config, adapters, weights, place.adapter_slots, place.adapter_rank)


def decoder_from(
    source: Source,
    weights: Weights,
    device: Device | None,
    place: Placement = DEFAULT,
    adapters: Stacked = NO_ADAPTERS,
) -> Decoder:
    """Returns a Decoder of the given weights; of `source`, it reads the tokenizer alone. `place`
    says the context, the number of sequences and the dtype of the cache."""
    kept = wanted_cache(place.cache) or main_dtype(weights)
    check_dtypes(device, {"the cache": kept})
    if source.config.alibi and kept is int8:
        raise UsageError(
            f"{source.path}: an int8 cache would lose the positions that ALiBi puts into keys; "
            "use cache='bfloat16'"
        )
    config = replace(source.config, kv_dtype=kept, adapters=len(adapters.names))
    context = _context(config, place.context)
    # The oracle and models on several ranks have one table for all layers.
    if device is not None and config.run is None:
        config = replace(config, kv_window=kept_window(config, context))
    placed = Placed(with_tables(config, weights, context, adapters), device, adapters.names)
    tokenizer = tokenizer_maker(source.path, config.vocab, made=source.made)
    made = Decoder(
        source.path, config, weights, placed, tokenizer, source.tokens, context, place.max_batch
    )
    if place.advised:
        made.advice = source.advice
    return made


def _context(config: DecoderConfig, context: int | None) -> int:
    if context is None:
        return min(config.max_positions, DEFAULT_CONTEXT)
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise UsageError(f"context is {context!r}; expected a positive integer")
    if context > config.max_positions:
        raise LimitError(
            f"context={context} is more than the model's {config.max_positions} positions"
        )
    return context


# -- encoders -------------------------------------------------------------------------------------


def _encoder(
    folder: Path, raw: Fields, config: EncoderConfig, device: Device | None, place: Placement
) -> Encoder:
    weights: Mapping[str, Weight]
    weights = read_weights(folder, raw, encoder_layout(config), wanted(place.dtype))
    return _vectors_of(folder, config, weights, device, place, *read_pooling(folder, config.hidden))


def _embedder(
    folder: Path, raw: Fields, kind: str, device: Device | None, place: Placement
) -> Encoder:
    """Returns a decoder that gives vectors."""
    config, weights = stream_weights(folder, raw, read_stream(kind, raw), wanted(place.dtype))
    return _vectors_of(folder, config, weights, device, place, *read_pooling(folder, config.hidden))


def _vectors_of(
    folder: Path, config: VectorConfig, weights: Mapping[str, Weight], device: Device | None,
    place: Placement, pooling: Pooling, steps: Mapping[str, np.ndarray],
    made: Callable[[], TokenizerContent | None] = lambda: None,
) -> Encoder:  # fmt: skip
    longest, lower = pooling.max_length or config.max_positions, pooling.lower_case
    body = body_of(folder, config, weights, device, place, longest, lower=lower, made=made)
    return Encoder(body, pooling, steps)
