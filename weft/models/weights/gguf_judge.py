"""Reads the head of a reranker or a classifier in a GGUF file, which says that its pooling is by
rank: RoBERTa's, XLM-RoBERTa's, DistilBERT's, ModernBERT's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import float32
from weft.core.errors import ModelError
from weft.core.records import dataclass
from weft.importers.gguf import Gguf
from weft.models.arch.config import WeightSpec
from weft.models.arch.encoder_config import EncoderConfig
from weft.models.arch.pooling import Pooling, Step
from weft.models.weights.gguf import file_weight, told, usable
from weft.models.weights.gguf_metadata import Metadata

HEAD = tuple(f"cls.{part}{end}" for part in ("", "norm.", "output.") for end in ("weight", "bias"))
_LABELS = "classifier.output_labels"


@dataclass(frozen=True)
class FileHead:
    """The end of an encoder, after its token vectors: the steps, their arrays (as `pool` takes
    them), and the labels of the result."""

    pooling: Pooling
    arrays: Mapping[str, np.ndarray]
    labels: tuple[str, ...]


def read_head(c: Metadata, config: EncoderConfig) -> FileHead:
    """Returns the head in a file. Raises ModelError if it holds another form of one."""
    gguf, modern = c.gguf, config.family == "modernbert"
    if not c.has("cls.weight") or not c.has("cls.output.weight"):
        raise ModelError(
            f"{gguf.path}: a reranker whose head is not whole (cls.weight and cls.output.weight): "
            "llama.cpp's converter leaves BERT's pooler out; load the model's folder"
        )
    rows = told(gguf, "cls.output.weight").shape[0]
    labels = c.value(_LABELS) or [f"LABEL_{i}" for i in range(rows)]
    if not isinstance(labels, list) or len(labels) != rows:
        raise c.refuse(_LABELS, f"expected the names of {rows} labels")
    # DistilBERT alone has no types of tokens; llama.cpp's graph takes tanh for it too.
    act: Any = "gelu" if modern else "tanh" if config.token_types else "relu"
    steps = [(Step("dense", act), "cls")]
    if modern:
        steps.append((Step("norm", eps=config.norm_eps), "cls.norm"))
    steps.append((Step("dense", width=rows), "cls.output"))
    arrays: dict[str, np.ndarray] = {}
    for i, (step, name) in enumerate(steps):
        size = rows if name == "cls.output" else config.hidden
        shape = (size, config.hidden) if step.kind == "dense" else (size,)
        arrays[f"{i}.w"] = _array(gguf, f"{name}.weight", shape)
        if step.kind == "norm" or c.has(f"{name}.bias"):
            found = c.has(f"{name}.bias")
            bias = _array(gguf, f"{name}.bias", (size,)) if found else np.zeros(size, np.float32)
            arrays[f"{i}.b"] = bias
    pooling = Pooling(("mean" if modern else "cls",), tuple(step for step, _ in steps))
    return FileHead(pooling, arrays, tuple(map(str, labels)))


def _array(gguf: Gguf, name: str, shape: tuple[int, ...]) -> np.ndarray:
    tensor, spec = told(gguf, name), WeightSpec(name, shape, "matrix")
    usable(gguf, tensor, spec)
    value = file_weight(spec, tensor, float32, str(gguf.path)).value()
    assert isinstance(value, np.ndarray)
    return value.astype(np.float32)
