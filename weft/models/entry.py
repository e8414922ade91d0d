"""`weft.load`: what a path or a name stands for, on a device.

Nothing here is imported before it is needed, and nothing is compiled before it is used: the time
from a process's start to its first result is mostly what this file does not do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from weft.core.errors import FileFormatError, ModelError, OutOfMemoryError, UsageError
from weft.models.box import NAMES
from weft.program.bundle import is_bundle

if TYPE_CHECKING:
    from weft.core.dtypes import DType
    from weft.models.base import Model
    from weft.program.device import Device

MAX_NAME = 200  # characters of an adapter's name


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
) -> Model:
    """The model in a Hugging Face folder (config.json, safetensors, tokenizer.json) or a GGUF file,
    or one of a hub by its name (ORG/NAME, ORG/NAME@REVISION, ORG/NAME:FILE.gguf or :Q4_K_M), which
    is fetched into huggingface_hub's cache where that lacks it; or "box" or "box-chat", weft's own.

    device: see `weft.backends.registry.get`; "oracle" computes with NumPy. dtype: None keeps the
    checkpoint's (packed weights stay packed); "float32", "float16" or "bfloat16" converts the
    weights. context: positions of the KV cache per sequence (default: the model's, at most 4096).
    max_batch: sequences that generate at once. cache: what keys and values are kept in, "f32",
    "f16", "bf16" or "int8" (default: the weights' dtype; docs/evaluation.md says what each loses).
    act_dtype: what the inputs of linear layers are rounded to where they meet weights of that
    dtype; by default bfloat16 if the weights are bfloat16 (as the checkpoint's own framework
    computes, and twice as fast where the device multiplies such pairs), else float32: not rounded.
    "int8" quantises the inputs of packed weights in blocks of 32 (those of 8-bit weights and of the
    output layer to 15 bits), so that CPUs multiply integers.
    quant: a scheme ("int4", "int8", ...: docs/quantizing.md) that the linear layers of a folder are
    brought to on the way in, embeddings to int8; what comes of it is kept in weft's cache.
    adapters: LoRA adapters in PEFT's layout by the names that `generate(adapter=...)` has for them;
    each sequence takes one or none (docs/serving.md).
    Raises ModelError, FileFormatError, DeviceError, DTypeError, LimitError, UsageError; HubError
    and StorageError of fetching.
    """
    folder = located(path)
    check_batch(max_batch)
    settled: dict[str, Any] = {"dtype": dtype, "act_dtype": act_dtype, "quant": quant}
    settled |= {"context": context, "cache": cache, "adapters": adapters or None}
    with naming(folder):
        if is_bundle(folder):
            return cast("Model", _compiled(folder, device, fallback, settled))
        from weft.models.loader import Room, load_uncompiled
        from weft.models.weight_dtypes import Numbers

        where, numbers = Room(context, max_batch, cache), Numbers(dtype, act_dtype, quant)
        beside = {_adapter_name(name): located(at) for name, at in (adapters or {}).items()}
        return load_uncompiled(folder, device, fallback, numbers, where, adapters=beside)


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Has what the system says while a model is loaded come out as weft's errors."""
    try:
        yield
    except MemoryError as e:
        if isinstance(e, OutOfMemoryError):
            raise
        raise OutOfMemoryError(f"{folder}: loading needs more memory than is free: {e}") from None
    except OSError as e:  # from looking around in the folder: no permission, a name too long
        raise FileFormatError(f"{str(folder)[:200]}: cannot be read: {e.strerror or e}") from None


def located(path: str | os.PathLike[str]) -> Path:
    """The path if something is there, else the model of that name, fetched where it has to be;
    "box" and "box-chat" are names."""
    found = Path(path)
    if path in NAMES or not os.path.exists(found):
        from weft.models.hub.resolve import resolve

        found = resolve(path)
    if not os.path.exists(found):  # unlike pathlib's, False for what is too long for a name
        raise ModelError(
            f"{str(found)[:200]} does not exist; expected a Hugging Face folder, a GGUF file or "
            "ORG/NAME"
        )
    return found


def _adapter_name(name: object) -> str:
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable():
        return name
    raise UsageError(f"an adapter is called {name!r:.60}; expected 1 to {MAX_NAME} printable signs")


def check_batch(batch: object) -> None:
    """Raises UsageError for a `max_batch` that is none."""
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= 1024:
        raise UsageError(f"max_batch is {batch!r}; expected an integer from 1 to 1024")


def _compiled(
    path: Path, device: str | Device | None, fallback: str | None, asked: Mapping[str, Any]
) -> Any:
    """What is in a compiled model's or function's file; `asked` are those options of `load` that
    compiling has settled."""
    from weft.models.progress import progress
    from weft.tensor.stored import Stored, opened

    with progress(f"loading {path.name}"):
        read, target = opened(path, device, fallback, asked)
        if read.head["kind"] == "function":
            return Stored(path, read, target)
        from weft.models import saved

        return saved.load(path, read, target)
