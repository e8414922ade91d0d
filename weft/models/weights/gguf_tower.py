"""Vision towers in llama.cpp's mmproj files, in the folder of the text model: their metadata as
fields of config.json and preprocessor_config.json, their tensors by Hugging Face's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.core.errors import ModelError
from weft.core.notices import say
from weft.core.records import dataclass
from weft.importers.gguf import Gguf, GgufTensor, open_gguf
from weft.importers.gguf_blocks import dequantize
from weft.importers.safetensors import Checkpoint, TensorInfo
from weft.models.weights.gguf_metadata import Metadata

ARCH = "clip"
_NAMES: tuple[tuple[str, str], ...] = (
    (r"v\.patch_embd\.(weight|bias)", r"embeddings.patch_embedding.\1"),
    (r"v\.position_embd\.weight", "embeddings.position_embedding.weight"),
    (r"v\.post_ln\.(weight|bias)", r"post_layernorm.\1"),
    (r"v\.blk\.(\d+)\.attn_(q|k|v)\.(\w+)", r"encoder.layers.\1.self_attn.\2_proj.\3"),
    (r"v\.blk\.(\d+)\.attn_out\.(\w+)", r"encoder.layers.\1.self_attn.out_proj.\2"),
    (r"v\.blk\.(\d+)\.ln([12])\.(\w+)", r"encoder.layers.\1.layer_norm\2.\3"),
    (r"v\.blk\.(\d+)\.ffn_up\.(\w+)", r"encoder.layers.\1.mlp.fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(\w+)", r"encoder.layers.\1.mlp.fc2.\2"),
    (r"mm\.soft_emb_norm\.weight", "mm_soft_emb_norm.weight"),
    (r"mm\.input_projection\.weight", "mm_input_projection_weight"),
    (r"mm\.model\.fc\.weight", "modality_projection.proj.weight"),
)
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

    def __init__(self, gguf: Gguf) -> None:
        super().__init__({}, str(gguf.path))
        self._tensors = {_named(name): tensor for name, tensor in gguf.tensors.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        dtype = _FLOATS.get(tensor.kind.name)
        if dtype is not None:
            return tensor.data.reshape(-1).view(dtype).reshape(tensor.shape)
        value = dequantize(tensor.kind, tensor.data, tensor.shape)
        # llama.cpp's converter adds 1 to the norms of Gemma
        return value - np.float32(1) if name == "mm_soft_emb_norm.weight" else value

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of a tensor."""
        tensor: GgufTensor = self._tensors[name]
        dtype = _FLOATS.get(tensor.kind.name, np.dtype(np.float32))
        return TensorInfo(name, dtype, tensor.shape, 0, tensor.nbytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _named(name: str) -> str:
    for pattern, to in _NAMES:
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


_WIDTH = "clip.vision.projection_dim"


def read_mmproj(path: Path) -> Mmproj:
    """Reads a file. Raises FileFormatError; ModelError for a projector that weft does not know."""
    gguf = open_gguf(path)
    meta = Metadata(gguf, ARCH)
    kind = meta.value("projector_type") or meta.value("vision.projector_type")
    if kind not in _KINDS:
        raise ModelError(
            f"{path}: projector {str(kind)[:40]!r} is not supported; weft reads {', '.join(_KINDS)}"
        )
    image, patch = (meta.integer(f"vision.{k}", 1, 1 << 14) for k in ("image_size", "patch_size"))
    vision = {
        "model_type": "siglip_vision_model", "image_size": image, "patch_size": patch,
        "hidden_size": meta.integer("vision.embedding_length", 1, 1 << 16),
        "intermediate_size": meta.integer("vision.feed_forward_length", 1, 1 << 16),
        "num_hidden_layers": meta.integer("vision.block_count", 1, 1024),
        "num_attention_heads": meta.integer("vision.attention.head_count", 1, 1024),
        "layer_norm_eps": meta.number("vision.attention.layer_norm_epsilon", 0.0, 1.0, 1e-6),
    }  # fmt: skip
    raw, steps, ids = _KINDS[kind](meta, vision)
    steps |= {"image_mean": meta.value("vision.image_mean"),
              "image_std": meta.value("vision.image_std")}  # fmt: skip
    return Mmproj({**raw, "vision_config": vision}, steps, ids, TowerTensors(gguf))


Read = tuple[dict[str, Any], dict[str, Any], dict[str, str]]


def _gemma3(meta: Metadata, vision: Mapping[str, Any]) -> Read:
    scale = meta.integer("vision.projector.scale_factor", 1, 64, 4)
    across = vision["image_size"] // vision["patch_size"] // scale
    side = {"height": vision["image_size"], "width": vision["image_size"]}
    ids = {"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>",
           "eoi_token_index": "<end_of_image>"}  # fmt: skip
    raw = {"model_type": "gemma3", "mm_tokens_per_image": across * across}
    return raw, {"image_processor_type": "Gemma3ImageProcessor", "size": side}, ids


def _idefics3(meta: Metadata, vision: Mapping[str, Any]) -> Read:
    side = vision["image_size"]
    raw = {"model_type": "idefics3",
           "scale_factor": meta.integer("vision.projector.scale_factor", 1, 64, 2)}  # fmt: skip
    whole = meta.integer("vision.preproc_image_size", 1, 1 << 14, 4 * side)
    steps = {"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": whole},
             "max_image_size": {"longest_edge": side}}  # fmt: skip
    return raw, steps, {"image_token_id": "<image>"}


_KINDS: Mapping[str, Callable[[Metadata, Mapping[str, Any]], Read]] = {
    "gemma3": _gemma3, "idefics3": _idefics3,
}  # fmt: skip
