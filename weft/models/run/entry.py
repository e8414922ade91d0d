"""`weft.load`: loads a model from a path or a name, onto a device.

Modules are imported only when needed, and Programs compiled only when used. That determines the
time from a process's start to its first result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from weft.core.errors import (
    ModelError,
    OutOfMemoryError,
    UsageError,
    unreadable,
)
from weft.hub.box import NAMES
from weft.program.bundle import is_bundle

if TYPE_CHECKING:
    from weft.core.dtypes import DType
    from weft.models.run.base import Model
    from weft.program.device import Device

MAX_NAME = 200  # characters of an adapter's name
AUTO = "auto"
ADVICE = (AUTO, "off")  # values of generation_config


def load(
    path: str | os.PathLike[str],
    device: str | Device | None = "auto",
    dtype: str | DType | None = None,
    context: int | None = None,
    max_batch: int = 8,
    fallback: str | None = None,
    act_dtype: str | DType | None = None,
    cache: str | DType | None = None,
    quant: str | None = None,
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    generation_config: str = AUTO,
    adapter_slots: int = 0,
    adapter_rank: int = 64,
) -> Model:
    """Loads a model onto a device.

    `path`: a Hugging Face folder (config.json, safetensors, tokenizer.json), a GGUF file, weft's
    own "box" or "box-chat", or a name on a hub. Names are ORG/NAME, ORG/NAME@REVISION,
    ORG/NAME:FILE.gguf or :Q4_K_M. Models on a hub are fetched into huggingface_hub's cache if they
    are missing there.

    `device`: see `weft.backends.registry.get`; "oracle" computes with NumPy. `dtype`: None keeps
    the checkpoint's (packed weights stay packed); "float32", "float16" or "bfloat16" converts the
    weights. `context`: positions of the KV cache per sequence (default: the model's, at most 4096).
    `max_batch`: sequences that generate at once. `cache`: the dtype of keys and values,
    "float32", "float16", "bfloat16" or "int8" (default: the weights'; docs/evaluation.md has the
    losses). "none" keeps none: a model traced from transformers then computes the whole text again
    for each token (docs/families.md).

    `act_dtype`: the dtype that inputs of linear layers are rounded to where the weights have that
    dtype. The default is bfloat16 for bfloat16 weights (as the checkpoint's own framework computes;
    twice as fast if the device multiplies such pairs), else float32: not rounded. Inputs of packed
    weights are quantised in blocks of 32, so that CPUs multiply integers. Weights of up to 5 bits
    get inputs of 8 bits, others and a packed output layer 15. "int8" gives weights of 6 bits inputs
    of 8 bits. "float32" quantises none.

    `quant`: a scheme ("int4", "int8", ...: docs/quantizing.md) for the linear layers of a folder;
    while loading, they are quantised to it, and embeddings to int8. The result is stored in weft's
    cache. `adapters`: LoRA adapters in PEFT's layout, by the names for `generate(adapter=...)`;
    each sequence uses one or none (docs/serving.md).

    `generation_config`: "auto" samples as the model's author advises (generation_config.json, a
    GGUF file's general.sampling keys) where a call does not say otherwise; "off" never does.

    `adapter_slots`: room for this many more adapters of ranks up to `adapter_rank`, which a server
    puts in and takes out while it runs.

    Raises ModelError, FileFormatError, DeviceError, DTypeError, LimitError, UsageError; fetching
    raises HubError and StorageError.

    >>> model = weft.load("box", device="cpu")
    >>> len(model.generate("def add(a, b):", max_new_tokens=4).ids)
    4
    """
    folder = located(path)
    check_batch(max_batch)
    advised = is_advised(generation_config)
    settled: dict[str, Any] = {"dtype": dtype, "act_dtype": act_dtype, "quant": quant}
    settled |= {"context": context, "cache": cache, "adapters": adapters or None}
    settled |= {"adapter_slots": checked_slots(adapter_slots, adapter_rank) or None}
    with naming(folder):
        if is_bundle(folder):
            return cast("Model", _compiled(folder, device, fallback, settled, advised))
        from weft.models.run.loader import load_uncompiled
        from weft.models.weights.placement import Placement

        beside = {_adapter_name(name): located(at) for name, at in (adapters or {}).items()}
        place = Placement(
            device, fallback, dtype, act_dtype, quant, cache, context, max_batch,
            adapters=beside, advised=advised, adapter_slots=adapter_slots,
            adapter_rank=adapter_rank,
        )  # fmt: skip
        return load_uncompiled(folder, place)


def is_advised(generation_config: object) -> bool:
    """Returns True if the author's settings for generating are used. Raises UsageError for another
    value than those of ADVICE."""
    if generation_config not in ADVICE:
        raise UsageError(f"generation_config is {generation_config!r:.60}; expected auto or off")
    return generation_config == AUTO


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Converts system errors during loading into weft's errors."""
    try:
        yield
    except MemoryError as e:
        if isinstance(e, OutOfMemoryError):
            raise
        raise OutOfMemoryError(f"{folder}: loading needs more memory than is free: {e}") from None
    except OSError as e:  # from reading the folder: no permission, a name too long
        raise unreadable(str(folder)[:200], e) from None


def runnable(folder: Path) -> str:
    """Returns the architecture in a folder's config.json, for the hub's check before it fetches
    weights. Raises ModelError if weft cannot run it."""
    from weft.models.run.loader import check_supported

    return check_supported(folder)


def located(path: str | os.PathLike[str]) -> Path:
    """Returns the path if it exists, else that of the model with this name, fetched if necessary;
    "box" and "box-chat" are names."""
    found = Path(path)
    if path in NAMES or not os.path.exists(found):
        from weft.hub.resolve import resolve

        found = resolve(path, check=runnable)
    if not os.path.exists(found):  # unlike pathlib's, False for a name that is too long
        raise ModelError(
            f"{str(found)[:200]} does not exist; expected a Hugging Face folder, a GGUF file or "
            "ORG/NAME"
        )
    return found


def _adapter_name(name: object) -> str:
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable():
        return name
    raise UsageError(f"an adapter is called {name!r:.60}; expected 1 to {MAX_NAME} printable signs")


def checked_slots(slots: object, rank: object) -> int:
    """Returns the number of slots for adapters. Raises UsageError for an invalid number or rank."""
    for what, value, least, most in (
        ("adapter_slots", slots, 0, 64), ("adapter_rank", rank, 1, 1 << 12),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{what} is {value!r}; expected an integer from {least} to {most}")
    assert isinstance(slots, int)
    return slots


def check_batch(batch: object) -> None:
    """Raises UsageError for an invalid `max_batch`."""
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= 1024:
        raise UsageError(f"max_batch is {batch!r}; expected an integer from 1 to 1024")


def _compiled(
    path: Path, device: str | Device | None, fallback: str | None, asked: Mapping[str, Any],
    advised: bool,
) -> Any:  # fmt: skip
    """Loads the file of a compiled model or function; `asked` are the options of `load` that were
    fixed at compile time."""
    from weft.host.progress import progress
    from weft.tensor.stored import StoredFunction, opened

    with progress(f"loading {path.name}"):
        read, target = opened(path, device, fallback, asked)
        if read.head["kind"] == "function":
            return StoredFunction(path, read, target)
        from weft.models.run import saved

        return saved.load(path, read, target, advised)
