"""The dtypes of a model: of its weights, and of the inputs of linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import DType, as_dtype, bfloat16, float16, float32, int8
from weft.core.errors import DTypeError, ModelError, UsageError
from weft.core.packed import Packed, dequantized
from weft.host.mapped import pieces, release
from weft.host.pages import fresh
from weft.models.arch.config import DecoderConfig
from weft.models.arch.conformer_config import ConformerConfig
from weft.models.arch.encoder_config import VectorConfig
from weft.models.arch.seq2seq_config import Seq2SeqConfig
from weft.models.arch.weights import Value, Weight, Weights
from weft.models.weights.placement import Placement, Wanted

if TYPE_CHECKING:
    from weft.program.device import Device

Config = TypeVar("Config", bound=VectorConfig | Seq2SeqConfig | ConformerConfig)


def ready(
    where: Path,
    config: Config,
    weights: Mapping[str, Weight],
    place: Placement,
    device: Device | None,
) -> tuple[Config, Weights]:
    """Reads the weights, in the requested dtypes as `load` takes them, and returns config and
    weights after checking that the device supports them. Packed weights stay packed unless a dtype
    is requested: config.forms describes their parts. Raises UsageError, ModelError, DTypeError."""
    if isinstance(config, DecoderConfig):
        _check_cache(where, config, place.cache)
    made = Weights(cast_weights(where, weights, wanted(place.dtype)))
    check_dtypes(device, {f"weight {r!r}": as_dtype(w.dtype) for r, w in made.outlines.items()})
    fields: dict[str, Any] = {"act_dtype": _act_dtype(place.act_dtype, made), "forms": made.forms}
    if isinstance(config, DecoderConfig):
        fields["act_by_form"] = config.act_by_form or place.act_dtype is None
    return replace(config, **fields), made


def cast_weights(
    where: Path, weights: Mapping[str, Weight], target: DType | None
) -> Mapping[str, Weight]:
    """Returns weights in a dtype (None: their own)."""
    if target is None:
        return weights
    cast = partial(_cast, where, target)
    return {role: w.then(partial(cast, role)) for role, w in weights.items()}


def _cast(where: Path, target: DType, role: str, given: Value) -> Value:
    """Returns a weight in `target`."""
    from weft.tensor.casting import cast_array

    value = dequantized(*given) if isinstance(given, Packed) else given
    if value.dtype == target.numpy:
        return value
    value = np.ascontiguousarray(value)
    cast = fresh(value.shape, target.numpy)
    flat, out = value.reshape(-1), cast.reshape(-1)
    for part in pieces(flat.size, value.itemsize):
        out[part] = cast_array(flat[part], target)
        if target is float16 and not all_finite(out[part]) and all_finite(flat[part]):
            raise ModelError(f"{where}: weight {role!r} overflows float16; use bfloat16")
        release(flat[part])  # frees the file's pages: one copy of the model at a time
    return cast


def wanted(dtype: Wanted) -> DType | None:
    """Returns the requested dtype of weights, if any. Raises UsageError for others."""
    if dtype is None:
        return None
    try:
        target = as_dtype(dtype)
    except DTypeError:
        target = None
    if target not in (float32, float16, bfloat16):
        raise UsageError(f"dtype is {dtype!r}; expected float32, float16 or bfloat16")
    return target


CACHES = (float32, float16, bfloat16, int8)
NO_CACHE = "none"  # in place of a dtype: the whole text is computed again for each token


def wanted_cache(cache: Wanted) -> DType | None:
    """Returns the requested dtype of keys and values, if any. Raises UsageError for others."""
    if cache in (None, NO_CACHE):
        return None
    with suppress(DTypeError):
        if (found := as_dtype(cache)) in CACHES:
            return found
    known = ", ".join([*(d.name for d in CACHES), NO_CACHE])
    raise UsageError(f"cache is {cache!r}; expected one of {known}")


def _check_cache(where: Path, c: DecoderConfig, cache: Wanted) -> None:
    """Raises UsageError if a model with caches is asked to keep none."""
    if cache == NO_CACHE and (c.traced is None or not c.traced.whole):
        raise UsageError(
            f'{where}: cache="none" is for models traced from transformers; {c.family} has a cache'
        )


def _act_dtype(wanted: Wanted, weights: Weights) -> DType:
    """Returns the dtype for linear inputs: they are rounded to it where weights have it too (int8:
    where weights are packed). The default is bfloat16 for a bfloat16 model, as frameworks compute
    it, else float32: not rounded, except for packed weights (`DecoderConfig.planes_of`)."""
    if wanted is None:
        return bfloat16 if main_dtype(weights) is bfloat16 else float32
    if wanted in (int8, int8.name) and not weights.forms:
        raise UsageError("act_dtype is int8, for inputs of packed weights; this model has none")
    for known in (float32, bfloat16, int8):
        if wanted in (known, known.name):
            return known
    raise UsageError(f"act_dtype is {wanted!r}; expected float32, bfloat16 or int8")


def main_dtype(weights: Mapping[str, np.ndarray]) -> DType:
    """Returns the dtype of the embedding, as the model's, or of the last layer of a model without
    one; float16 if it is packed."""
    arrays = weights.outlines if isinstance(weights, Weights) else weights
    return next((as_dtype(arrays[r].dtype) for r in ("embed", "ctc.w") if r in arrays), float16)


def check_dtypes(device: Device | None, dtypes: Mapping[str, DType]) -> None:
    """Raises DTypeError, before any allocation, for a dtype that the device cannot store."""
    if device is None:
        return
    for what, dtype in dtypes.items():
        if not device.supports(dtype):
            raise DTypeError(
                f"{device.info.id} does not support {dtype.name} ({what}); "
                "load with dtype='float32'"
            )
