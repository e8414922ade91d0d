"""Reads the author's advice on sampling in a GGUF file: llama.cpp's keys general.sampling.*."""

from __future__ import annotations

from collections.abc import Mapping

from weft.core.notices import say_unknown
from weft.engine.defaults import NO_DEFAULTS, GenerationDefaults
from weft.importers.gguf import Gguf
from weft.importers.hf_config import Fields
from weft.models.text.generation_config import sampling_of, say_unfollowed
from weft.models.weights.gguf_metadata import plain

_AT = "general.sampling."
_READ = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}  # fmt: skip
# Samplers that weft lacks, and the values that turn them off.
_UNFOLLOWED: Mapping[str, tuple[object, ...]] = {
    "xtc_probability": (0,), "mirostat": (0,), "sequence": ("",),
}  # fmt: skip
# weft counts repetitions in the whole text; the others tune samplers that it lacks.
_INERT = ("penalty_last_n", "xtc_threshold", "mirostat_tau", "mirostat_eta")


def gguf_defaults(gguf: Gguf, vocab: int) -> GenerationDefaults:
    """Returns the settings in a file's metadata, and names those that weft does not follow. Raises
    ModelError, which names the file and the key."""
    metadata, where = gguf.metadata.items(), str(gguf.path)
    found = {k.removeprefix(_AT): plain(v) for k, v in metadata if k.startswith(_AT)}
    if not found:
        return NO_DEFAULTS
    others = {k: v for k, v in found.items() if k not in _READ}
    asked = {_AT + k: v for k, v in others.items() if v not in _UNFOLLOWED.get(k, (v,))}
    say_unfollowed(where, asked)
    say_unknown(where, others, _UNFOLLOWED, _INERT)
    named = {name: found.get(key) for key, name in _READ.items()}
    called = {name: _AT + key for key, name in _READ.items()}
    return GenerationDefaults(_AT + "*", **sampling_of(Fields(named, where, called), vocab))
