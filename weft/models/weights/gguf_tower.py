"""Vision towers in llama.cpp's mmproj files, in the folder of the text model: their metadata as
fields of config.json and preprocessor_config.json, their tensors by Hugging Face's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.core.errors import ModelError
from weft.core.notices import say
from weft.core.records import dataclass
from weft.importers.gguf import Gguf, GgufTensor, open_gguf
from weft.importers.gguf_blocks import dequantize
from weft.importers.hf_config import Fields
from weft.importers.safetensors import Checkpoint, TensorInfo
from weft.models.weights.gguf_families import sections_of
from weft.models.weights.gguf_metadata import Metadata
from weft.models.weights.gguf_projectors import KINDS, Names

ARCH = "clip"
_FLOATS = {"F16": np.dtype(np.float16), "BF16": bfloat16.numpy}


@dataclass(frozen=True)
class Mmproj:
    """A file: `raw` and `steps` are what config.json and preprocessor_config.json would say, `ids`
    names the fields of `raw` with the ids of tokens by their texts."""

    raw: Mapping[str, Any]
    steps: Mapping[str, Any]
    ids: Mapping[str, str]
    checkpoint: TowerTensors


class TowerTensors(Checkpoint):
    """The tensors of a file, by Hugging Face's names. Those of other names keep their own."""

    def __init__(self, gguf: Gguf, names: Names, turned: int = 0) -> None:
        super().__init__({}, str(gguf.path))
        self._tensors = {_named(name, names): tensor for name, tensor in gguf.tensors.items()}
        self._turned = turned
        # later frames of a patch (Qwen-VL) are tensors of their own
        self._frames = {k.removesuffix(".1"): k for k in self._tensors if k.endswith(".weight.1")}
        self._later = {at: self._tensors.pop(name) for at, name in self._frames.items()}
        self._later = {_named(at, names): tensor for at, tensor in self._later.items()}
        self._swap(gguf)

    def _swap(self, gguf: Gguf) -> None:
        """Puts right the names of the feed-forward's matrices, which old files give each other."""
        up = gguf.tensors.get("v.blk.0.ffn_up.weight")
        wide = gguf.metadata.get("clip.vision.embedding_length")
        if up is None or up.shape[0] != wide or up.shape[1] == wide:
            return
        other = {"1": "2", "2": "1"}
        self._tensors = {
            re.sub(r"(?<=\.mlp\.fc)[12](?=\.)", lambda found: other[found[0]], name): tensor
            for name, tensor in self._tensors.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        value = _floats(self._tensors[name], name)
        if name in self._later:
            return np.stack([value, _floats(self._later[name], name)], 2)
        if self._turned and re.search(r"\.[qk]_proj\.", name):
            parts = value.reshape(self._turned, -1, 2, *value.shape[1:])
            return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(value.shape)
        return value

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of a tensor."""
        tensor: GgufTensor = self._tensors[name]
        dtype, shape = _FLOATS.get(tensor.kind.name, np.dtype(np.float32)), tensor.shape
        shape = (*shape[:2], 2, *shape[2:]) if name in self._later else shape
        return TensorInfo(name, dtype, shape, 0, tensor.nbytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _floats(tensor: GgufTensor, name: str) -> np.ndarray:
    dtype = _FLOATS.get(tensor.kind.name)
    if dtype is not None:
        return tensor.data.reshape(-1).view(dtype).reshape(tensor.shape)
    value = dequantize(tensor.kind, tensor.data, tensor.shape)
    # llama.cpp's converter adds 1 to the norms of Gemma
    return value - np.float32(1) if name == "mm_soft_emb_norm.weight" else value


def _named(name: str, names: Names) -> str:
    for pattern, to in names:
        if found := re.fullmatch(pattern, name):
            return found.expand(to)
    return name


def mmproj_beside(path: Path, width: int) -> Path | None:
    """Returns the mmproj file in the folder of a GGUF file, for a text model `width` wide; None
    without one. If several fit, weft takes the first by name and says so."""
    found = [
        file
        for file in sorted(path.parent.glob("*.gguf"))
        if "mmproj" in file.name.lower() and file != path
    ]
    fit = [file for file in found if open_gguf(file).metadata.get(_WIDTH) == width]
    if len(fit) > 1:
        say(f"{path.name}: {', '.join(f.name for f in fit)} fit beside it; taken: {fit[0].name}")
    return fit[0] if fit else None


def file_sections(path: Path) -> Fields:
    """Returns the sections of a text model's rope, as the config of a Hugging Face folder has
    them."""
    gguf = open_gguf(path)
    meta = Metadata(gguf, str(gguf.metadata.get("general.architecture")))
    return Fields({"rope_parameters": {"mrope_section": sections_of(meta)}}, str(path))


_WIDTH = "clip.vision.projection_dim"


def read_mmproj(path: Path) -> Mmproj:
    """Reads a file. Raises FileFormatError; ModelError for a projector that weft does not know."""
    gguf = open_gguf(path)
    meta = Metadata(gguf, ARCH)
    kind = meta.value("projector_type") or meta.value("vision.projector_type")
    if kind not in KINDS:
        raise ModelError(
            f"{path}: projector {str(kind)[:40]!r} is not supported; weft reads {', '.join(KINDS)}"
        )
    image, patch = (meta.integer(f"vision.{k}", 1, 1 << 14) for k in ("image_size", "patch_size"))
    usual = {
        "model_type": "siglip_vision_model", "image_size": image, "patch_size": patch,
        "hidden_size": meta.integer("vision.embedding_length", 1, 1 << 16),
        "intermediate_size": meta.integer("vision.feed_forward_length", 1, 1 << 16),
        "num_hidden_layers": meta.integer("vision.block_count", 1, 1024),
        "num_attention_heads": meta.integer("vision.attention.head_count", 1, 1024),
        "layer_norm_eps": meta.number("vision.attention.layer_norm_epsilon", 0.0, 1.0, 1e-6),
    }  # fmt: skip
    said = KINDS[kind](meta, usual)
    steps = said.steps | {"image_mean": meta.value("vision.image_mean"),
                          "image_std": meta.value("vision.image_std")}  # fmt: skip
    tensors = TowerTensors(gguf, said.names, said.turned)
    return Mmproj({**said.raw, "vision_config": said.vision}, steps, said.ids, tensors)
