"""Makes the result of `weft quantize` from its finished pieces: a folder or a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.packed import Packed
from weft.core.places import move, remove, remove_empty
from weft.host.files import write_json
from weft.importers.gguf_write import write_gguf
from weft.importers.safetensors import INDEX, SafetensorsFile
from weft.models.arch.config import DecoderConfig
from weft.models.weights.terms import copy_terms, gguf_terms, read_terms
from weft.models.weights.writing import copy_tokenizer, said_of_head
from weft.quantize import compressed
from weft.quantize.gguf import metadata, tensors
from weft.quantize.pieces import Pieces
from weft.quantize.resume import STATE
from weft.quantize.source import check_target


def finish_folder(
    pieces: Pieces, config: DecoderConfig, raw: dict[str, Any], source: Path, out: Path
) -> int:
    """Turns the folder of pieces into the result; returns the bytes of its weights."""
    folder = pieces.left.folder
    where: dict[str, str] = {}
    size = 0
    for piece in range(len(pieces)):
        file = SafetensorsFile(pieces.file(piece))
        where |= dict.fromkeys(file, pieces.name(piece))
        size += sum(t.stop - t.start for t in file.tensors.values())
    write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": where})
    linear = {name: r for r in pieces.weights if pieces.is_linear(r) for name in pieces.linears(r)}
    forms = {name: f[0] for name, r in linear.items() if (f := pieces.form(r)) is not None}
    tied = [] if "head" in pieces.weights else ["lm_head"]  # readers count a tied head as a layer
    plain = [name for name in linear if name not in forms] + tied
    quantized = compressed.quantization_config(forms, plain)
    write_json(
        folder / "config.json", {**said_of_head(raw, config), "quantization_config": quantized}
    )
    copy_tokenizer(source, folder)
    copy_terms(source, folder)
    check_target(out)
    move(folder, out, out.parent)
    remove(out / STATE, out.parent)
    return size


def finish_gguf(
    pieces: Pieces, config: DecoderConfig, tokenizer: Mapping[str, Any], source: Path, out: Path
) -> int:
    """Joins the pieces into a GGUF file and removes them; returns the bytes of its weights."""
    folder = pieces.left.folder
    weights: dict[str, np.ndarray | Packed] = {}
    for piece, roles in enumerate(pieces.roles):
        weights |= pieces.read(piece, roles)
    made = tensors(config, weights)
    whole = folder / "model.gguf"
    said, terms = metadata(config, source.resolve().name), gguf_terms(read_terms(source))
    write_gguf(whole, {**said, **terms, **tokenizer}, made)
    check_target(out)
    move(whole, out, out.parent)
    for name in (*map(pieces.name, range(len(pieces))), STATE):
        remove(folder / name, out.parent)
    with suppress(OSError):  # another process has put something else there
        remove_empty(folder, out.parent)
    return sum(t.nbytes for t in made.values())
