"""Loads a Hugging Face folder or a GGUF file as a Model on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.core.dtypes import DType, int8
from weft.core.errors import (
    LimitError,
    ModelError,
    UsageError,
)
from weft.core.hints import command
from weft.core.text import shown
from weft.host.progress import progress
from weft.hub.names import name_of
from weft.importers.hf_config import Fields, has_weights, read_config
from weft.models.arch.config import DecoderConfig, EncoderConfig, Made, TokenIds
from weft.models.arch.encoders import ENCODERS
from weft.models.arch.families import DECODERS
from weft.models.arch.inputs import NO_ADAPTERS, Stacked, with_tables
from weft.models.arch.matrices import Chosen
from weft.models.arch.shares import own_columns
from weft.models.arch.stages import roles_of
from weft.models.run.base import Model
from weft.models.run.compiled_runner import CompiledRunner, weight_avals
from weft.models.run.embedder import Encoder
from weft.models.run.encoder_runner import compiled_encoder, eager_encoder
from weft.models.run.model import Decoder
from weft.models.run.runner import EagerRunner, MakeRunner, Runner
from weft.models.run.sentence_folder import read_pooling, say_vectors
from weft.models.text.token_ids import read_token_ids
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import encoder_layout
from weft.models.weights.reading import as_stored, read_weights, says_packed
from weft.models.weights.weight_dtypes import (
    Numbers,
    check_dtypes,
    main_dtype,
    ready,
    wanted,
    wanted_cache,
)

if TYPE_CHECKING:
    from weft.models.text.tokenizer import Tokenizer
    from weft.models.weights.adapters import Adapter
    from weft.program.device import Buffer, Device

DEFAULT_CONTEXT = 4096
Part = Callable[[DecoderConfig], DecoderConfig]  # sets `run` in a config
ORACLE = "oracle"  # the name of NumPy, used instead of a device


@dataclass(frozen=True)
class Room:
    """The size of a decoder's cache, as `load` takes it: positions per sequence (None: the model's,
    at most 4096), number of sequences, dtype (None: the weights')."""

    context: int | None = None
    max_batch: int = 1
    cache: str | DType | None = None


def load_uncompiled(
    folder: Path,
    device: str | Device | None,
    fallback: str | None,
    numbers: Numbers,
    room: Room,
    part: Part | None = None,
    adapters: Mapping[str, Path] = {},
) -> Model:
    """Loads the model in a Hugging Face folder or a GGUF file; see weft.load. With `part`, loads
    one machine's part of it."""
    wanted_cache(room.cache)
    if part is not None and numbers.quant is not None:
        folders = command("quantize", folder, "-o", "OUT", "--scheme", numbers.quant)
        raise UsageError(f"quant is for one machine; a folder for several: {folders}")
    if numbers.quant is not None and (folder.is_file() or numbers.dtype is not None):
        what = f"{folder.name} is a file" if folder.is_file() else "a dtype is given too"
        raise UsageError(f"quant={numbers.quant!r} is for folders of floats, without dtype; {what}")
    if folder.is_file():
        return _gguf(folder, device, fallback, numbers, room, part, adapters)
    adapter = _adapter(folder)
    if adapter is not None:
        if part is not None:
            merged = command("merge", adapter[0], folder, "-o", "MERGED")
            raise UsageError(
                f"{folder}: adapters do not work on several machines; merge the "
                f"adapter first: {merged}"
            )
        folder = adapter[0]
    config = read_config(folder)
    kind = _kind(config)
    with progress(f"loading {name_of(folder)}"):
        target = None if device == ORACLE else _open_device(device, fallback)
        if kind in ENCODERS:
            if part is not None:
                raise UsageError(f"{config.where}: {kind} is an encoder: it runs on one machine")
            if room.cache is not None:
                raise UsageError(
                    f"{config.where}: {kind} is an encoder, which does not use a KV cache"
                )
            if numbers.act_dtype in (int8, int8.name):
                what = "is an encoder, whose inputs are not quantised"
                raise UsageError(f"{config.where}: {kind} {what}: act_dtype float32 or bfloat16")
            if adapters:
                raise UsageError(f"{config.where}: {kind} is an encoder, which takes no adapters")
            return _encoder(folder, config, ENCODERS[kind](config), target, numbers)
        made = as_stored(folder, config, DECODERS[kind](config))
        made = made if part is None else part(made)
        say_vectors(folder)
        change = None if adapter is None else adapter[1](made)
        return _decoder(folder, config, made, target, numbers, room, change, adapters)


def _adapter(folder: Path) -> tuple[Path, Callable[[DecoderConfig], Adapter]] | None:
    """Returns, for a folder with a LoRA adapter and no other weights, its model's folder and a
    reader of the adapter; else None."""
    if not (folder / "adapter_config.json").exists():
        return None
    if (folder / "config.json").exists() and has_weights(folder):
        return None  # read_config reports it
    from weft.models.weights import adapters
    from weft.models.weights.adapter_base import base_of

    return base_of(folder), lambda config: adapters.read(folder, config)


def check_supported(folder: Path) -> str:
    """Returns the architecture in a folder's config.json. Raises ModelError for an architecture or
    packed weights that weft cannot read."""
    config = read_config(folder)
    kind = _kind(config)
    if says_packed(config):
        from weft.importers.packed.checkpoint import method_of

        method_of(config, folder)
    return kind


def _kind(config: Fields) -> str:
    """Returns the model's architecture. Raises ModelError if weft does not know it."""
    kind: str = config.text("model_type", "")
    if kind not in DECODERS and kind not in ENCODERS:
        raise _unsupported(config, kind)
    return kind


def _unsupported(config: Fields, kind: str) -> ModelError:
    known = ", ".join([*DECODERS, *ENCODERS])
    names = config.data.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    said = " / ".join(shown(n) for n in (kind, name) if n) or "unnamed (no model_type)"
    return ModelError(f"{config.where}: architecture {said} is not supported; supported: {known}")


def _open_device(device: str | Device | None, fallback: str | None) -> Device:
    from weft.backends import registry

    return registry.get(device, fallback)


# -- decoders -------------------------------------------------------------------------------------


def _decoder(
    folder: Path,
    raw: Fields,
    config: DecoderConfig,
    device: Device | None,
    numbers: Numbers,
    room: Room,
    adapter: Adapter | None,
    adapters: Mapping[str, Path],
) -> Decoder:
    beside = _stacked(config, adapters)
    dtype = wanted(numbers.dtype)
    weights = read_weights(folder, raw, decoder_layout(config), dtype, roles_of(config))
    if numbers.quant is not None:
        from weft.quantize.kept import quantised

        config, weights = quantised(folder, config, weights, numbers.quant)
    config, weights = own_columns(config, weights)
    if adapter is not None:
        from weft.models.weights.adapters import added

        config, weights = added(config, weights, adapter)
    config, weights = ready(folder, config, weights, numbers, device)
    return decoder_from(folder, raw, config, weights, device, room, beside)


def _stacked(config: DecoderConfig, folders: Mapping[str, Path]) -> Stacked:
    """Returns the adapters in the given folders, by their names."""
    if not folders:
        return NO_ADAPTERS
    from weft.models.weights.adapters import read, stacked

    return stacked(config, {name: read(folder, config) for name, folder in folders.items()})


def _gguf(
    path: Path,
    device: str | Device | None,
    fallback: str | None,
    numbers: Numbers,
    room: Room,
    part: Part | None,
    adapters: Mapping[str, Path],
) -> Decoder:
    """Loads the model in a GGUF file."""
    from weft.models.weights.gguf import read

    with progress(f"loading {name_of(path)}"):
        found = read(path)
        target = None if device == ORACLE else _open_device(device, fallback)
        config = found.config if part is None else part(found.config)
        chosen = Chosen(found.weights(wanted(numbers.dtype)), roles_of(config))
        config, weights = ready(path, *own_columns(config, chosen), numbers, target)
        beside = _stacked(config, adapters)
    make = _tokenizer_maker(path, config.vocab, made=found.tokenizer)
    return _built(path, config, weights, target, make, found.tokens, room, beside)


def decoder_from(
    folder: Path,
    raw: Fields,
    config: DecoderConfig,
    weights: Mapping[str, np.ndarray],
    device: Device | None,
    room: Room = Room(),
    adapters: Stacked = NO_ADAPTERS,
) -> Decoder:
    """Returns a Decoder from weights by role; `folder` holds its tokenizer, `raw` is its
    config.json."""
    make_tokenizer = _tokenizer_maker(folder, config.vocab)
    tokens = read_token_ids(folder, raw)
    return _built(folder, config, weights, device, make_tokenizer, tokens, room, adapters)


def _built(
    path: Path,
    config: DecoderConfig,
    weights: Mapping[str, np.ndarray],
    device: Device | None,
    make_tokenizer: Callable[[], Tokenizer | None],
    tokens: TokenIds,
    room: Room,
    adapters: Stacked = NO_ADAPTERS,
) -> Decoder:
    kept = wanted_cache(room.cache) or main_dtype(weights)
    check_dtypes(device, {"the cache": kept})
    config = replace(config, kv_dtype=kept, adapters=len(adapters.names))
    length = _context(config, room.context)
    whole = with_tables(config, weights, length, adapters)
    make_runner = _runner_maker(config, whole, device, length, adapters.names)
    return Decoder(
        path, config, weights, device, make_tokenizer, make_runner, length, tokens,
        room.max_batch, adapters,
    )  # fmt: skip


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


def _runner_maker(
    config: DecoderConfig,
    weights: Mapping[str, np.ndarray],
    device: Device | None,
    context: int,
    adapters: Sequence[str],
) -> MakeRunner:
    """Returns a maker of runners that share the weights."""
    if device is None:
        return lambda slots, pages: EagerRunner(config, weights, context, slots, pages, adapters)
    from weft.program.arena import Arena

    avals, arena = weight_avals(weights), Arena(device)
    placed: dict[str, Buffer] = {}

    def make(
        slots: int, pages: int, of: DecoderConfig = config,
        kind: Callable[..., Runner] = CompiledRunner,
    ) -> Runner:  # fmt: skip
        wants = roles_of(of)
        read = {role: aval for role, aval in avals.items() if wants(role)}
        return kind(of, weights, read, context, slots, pages, device, arena, placed, adapters)

    return make


def _tokenizer_maker(
    folder: Path,
    vocab: int,
    limit: int | None = None,
    lower: bool = False,
    made: Callable[[], Made | None] = lambda: None,
) -> Callable[[], Tokenizer | None]:
    """Returns a maker of the tokenizer of a folder, or of the one inside a file."""

    def make() -> Tokenizer | None:
        found = made()
        if found is None and not (folder / "tokenizer.json").exists():
            return None
        from weft.models.text.tokenizer import Tokenizer

        return Tokenizer(folder, vocab, limit, lower, found)

    return make


# -- encoders -------------------------------------------------------------------------------------


def _encoder(
    folder: Path,
    raw: Fields,
    config: EncoderConfig,
    device: Device | None,
    numbers: Numbers,
) -> Encoder:
    pooling = read_pooling(folder)
    weights = read_weights(folder, raw, encoder_layout(config), wanted(numbers.dtype))
    if numbers.quant is not None:
        from weft.quantize.kept import quantised

        config, weights = quantised(folder, config, weights, numbers.quant)
    config, weights = ready(folder, config, weights, numbers, device)
    longest = min(pooling.max_length or config.max_positions, config.max_positions)
    tokenizer = _tokenizer_maker(folder, config.vocab, longest, pooling.lower_case)
    if device is None:
        hidden = eager_encoder(config, weights)
    else:
        hidden = compiled_encoder(config, weights, device)
    return Encoder(folder, config, weights, device, tokenizer, hidden, pooling, longest)
