"""Typed access to a GGUF file's metadata, and to its tensors of divisors."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.importers.gguf import Gguf
from weft.importers.gguf_blocks import dequantize
from weft.importers.gguf_values import Texts
from weft.importers.hf_config import Fields
from weft.models.arch.family_parts import MAX_FFN

RANK = 4  # pooling_type of rerankers
ROPE_DIVISORS = "rope_freqs.weight"
ROPE_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")
_BY_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")


class Metadata:
    """Typed, bounded access to a file's metadata under its architecture's name."""

    def __init__(self, gguf: Gguf, arch: str) -> None:
        self.gguf, self.arch, self.where = gguf, arch, str(gguf.path)
        at = f"{arch}."
        found = {k.removeprefix(at): v for k, v in gguf.metadata.items() if k.startswith(at)}
        self.values = {k: plain(v) for k, v in found.items()}
        self._fields = Fields({at + k: v for k, v in self.values.items()}, self.where)

    def value(self, key: str) -> Any:
        return self.values.get(key)

    def integer(self, key: str, lo: int, hi: int, *default: Any) -> Any:
        name = f"{self.arch}.{key}"
        return Fields({name: self.uniform(key)}, self.where).integer(name, lo, hi, *default)

    def number(self, key: str, lo: float, hi: float, *default: Any) -> Any:
        return self._fields.number(f"{self.arch}.{key}", lo, hi, *default)

    def each(self, key: str, hi: int, layers: int) -> tuple[int, ...]:
        """Returns a positive integer for every layer, given once or per layer."""
        given = self._fields.integers(f"{self.arch}.{key}", 1, hi)
        if len(given) not in (1, layers):
            raise self.refuse(key, f"expected {layers} numbers, or one")
        return given * layers if len(given) == 1 else given

    def uniform(self, key: str, none: bool = False) -> Any:
        """Returns a value. A size given per layer must be the same for all layers, except layers
        with 0 if `none` is allowed; None if all are 0."""
        value = self.value(key)
        if not isinstance(value, list) or key not in _BY_LAYER:
            return value
        found = set(self._fields.integers(f"{self.arch}.{key}", int(not none), MAX_FFN))
        found -= {0}
        if len(found) > 1:
            raise ModelError(
                f"{self.where}: {self.arch}.{key} differs from layer to layer "
                f"({min(found)} to {max(found)}), which is not supported"
            )
        return found.pop() if found else None

    def has(self, tensor: str) -> bool:
        return tensor in self.gguf.tensors

    def rows(self, tensor: str) -> int | None:
        """Returns the length of a tensor's first axis; None without it."""
        found = self.gguf.tensors.get(tensor)
        return None if found is None else found.shape[0]

    def divisors(self, name: str, pairs: int) -> tuple[float, ...]:
        """Returns the divisor of each pair's frequency, () if the file has none: precomputed for
        Llama 3.1's long context, or LongRoPE's factors."""
        if not self.has(name):
            return ()
        tensor = self.gguf.tensors[name]
        if tensor.shape != (pairs,):
            raise ModelError(
                f"{self.where}: tensor {name!r} has shape {list(tensor.shape)}; expected {[pairs]}"
            )
        values = dequantize(tensor.kind, tensor.data, tensor.shape)
        if not (np.isfinite(values) & (values > 0)).all():
            raise ModelError(f"{self.where}: tensor {name!r} holds what is not above 0")
        return tuple(values.tolist())

    def refuse(self, key: str, said: str) -> ModelError:
        shown = f"{self.value(key)!r:.60}"
        return ModelError(f"{self.where}: {self.arch}.{key} is {shown}: {said}")


def repeated(gguf: Gguf) -> set[str]:
    """Returns the names of tensors that a file holds twice: in Qwen3's rerankers the rows of the
    output matrix for yes and no."""
    yes_or_no = gguf.metadata.get("qwen3.pooling_type") == RANK
    return {"cls.output.weight"} & set(gguf.tensors) if yes_or_no else set()


def plain(value: Any) -> Any:
    """Returns a value as JSON would hold it; a float32 is the shortest decimal that rounds to it:
    1e-05, not 9.9999997e-06."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Texts):
        return list(value)
    if isinstance(value, float) and abs(value) < 3e38:
        return float(str(np.float32(value)))
    return value
