"""The steps from a decoded picture to the pixels that a vision tower reads, as data.

`preprocessor_config.json` says them; a class of transformers has values for what a file leaves
out. Arithmetic is that of transformers' processors over Pillow, to the last bit.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.core.records import dataclass

_CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
_HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
BILINEAR, BICUBIC, LANCZOS = 2, 3, 1  # numbers of Pillow's filters


@dataclass(frozen=True)
class Steps:
    """The steps of one model. `kind` says how sizes and tiles are chosen (`tiles.py`), `size` has
    its numbers; `crop` is the size of a cut from the centre, height first; None leaves a step out.
    `filter` is Pillow's number of a filter. A pixel becomes (value * scale - mean) / std."""

    kind: str
    size: Mapping[str, int]
    filter: int = BICUBIC
    crop: tuple[int, int] | None = None
    scale: float | None = 1 / 255
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    resizes: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)


# The values of transformers' classes: how tiles are chosen, then what a file may leave out.
_CROPPED: dict[str, Any] = {
    "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True, "filter": BICUBIC,
}  # fmt: skip
_SQUARE = {"size": {"height": 224, "width": 224}}
_QWEN = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, "patch_size": 14,
    "temporal_patch_size": 2, "merge_size": 2, "filter": BICUBIC, **_CLIP,
}  # fmt: skip
_FILM = {"min_frames": 4, "max_frames": 768, "cap_pixels_per_frame": None,
         "max_video_tokens": None, "do_sample_frames": None, "fps": None, "num_frames": None,
         "max_duration": None}  # fmt: skip
_IDEFICS: dict[str, Any] = {
    "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364},
    "do_image_splitting": True, "filter": LANCZOS, **_HALF,
}  # fmt: skip
_DETR: dict[str, Any] = {
    "size": {"shortest_edge": 800, "longest_edge": 1333}, "filter": BILINEAR, **_IMAGENET,
}  # fmt: skip
_GEMMA4 = {
    **_SQUARE, "patch_size": 16, "max_soft_tokens": 280, "pooling_kernel_size": 3,
    "do_normalize": False, "filter": BICUBIC, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0),
}  # fmt: skip
_OF_SOUND = (
    "audio_compression_rate", "audio_downsample_rate", "audio_feat_stride", "feature_size",
    "sampling_rate", "padding_value", "padding_side", "hop_length", "n_fft", "win_length",
    "preemphasis", "mel_filters", "return_attention_mask",
)  # fmt: skip
PROCESSORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "CLIPImageProcessor": ("plain", {**_CROPPED, **_CLIP}),
    "VideoLlavaImageProcessor": ("plain", {**_CROPPED, **_CLIP}),
    "LlavaImageProcessor": ("squared", {**_CROPPED, **_CLIP}),
    "SiglipImageProcessor": ("plain", {**_SQUARE, "filter": BICUBIC, **_HALF}),
    "BitImageProcessor": ("plain", {**_CROPPED, **_CLIP}),
    "ViTImageProcessor": ("plain", {**_SQUARE, "filter": BILINEAR, **_HALF}),
    "DINOv3ViTImageProcessor": ("plain", {**_SQUARE, "filter": BILINEAR, **_IMAGENET}),
    "DeiTImageProcessor": (
        "plain",
        {"size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224},
         "do_center_crop": True, "filter": BICUBIC, **_HALF},
    ),
    "ConvNextImageProcessor": (
        "margin", {"size": {"shortest_edge": 384}, "filter": BICUBIC, **_HALF},
    ),
    "SegformerImageProcessor": (
        "plain", {"size": {"height": 512, "width": 512}, "filter": BILINEAR, **_IMAGENET},
    ),
    "DPTImageProcessor": (
        "multiple", {"size": {"height": 384, "width": 384}, "filter": BICUBIC, **_HALF},
    ),
    "DetrImageProcessor": ("bounded", _DETR),
    "ConditionalDetrImageProcessor": ("bounded", _DETR),
    "DeformableDetrImageProcessor": ("bounded", _DETR),
    "YolosImageProcessor": ("bounded", {**_DETR, "mod_size": 16}),
    "RTDetrImageProcessor": (
        "bounded", {"size": {"height": 640, "width": 640}, "filter": BILINEAR, **_IMAGENET,
                    "do_normalize": False},
    ),
    "Gemma3ImageProcessor": ("crops", {**_SQUARE, "filter": BILINEAR, **_HALF}),
    "Gemma4ImageProcessor": ("budget", _GEMMA4),
    "Gemma4UnifiedImageProcessor": ("budget", _GEMMA4),
    "Idefics3ImageProcessor": ("tiles", _IDEFICS),
    "SmolVLMImageProcessor": ("tiles", _IDEFICS),
    "Qwen2VLImageProcessor": ("smart", _QWEN),
    "Qwen2VLVideoProcessor": ("film", {**_QWEN, **_FILM, "size": {
        "shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}}),
    "Qwen3VLVideoProcessor": ("volume", {**_QWEN, **_FILM, **_HALF, "patch_size": 16, "size": {
        "shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}}),
    "LlavaNextImageProcessor": (
        "grid",
        {**_CROPPED, **_CLIP, "image_grid_pinpoints": [
            [336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]},
    ),
    "LlavaOnevisionImageProcessor": (
        "anyres",
        {"size": {"height": 384, "width": 384}, "filter": BICUBIC, **_CLIP,
         "image_grid_pinpoints": [
             [384 * tall, 384 * wide] for tall in range(1, 7) for wide in range(1, 7)]},
    ),
    "PixtralImageProcessor": (
        "patches",
        {"size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16},
         "filter": BICUBIC, **_CLIP},
    ),
    "Phi4MultimodalImageProcessor": (
        "sheet",
        {"size": {"height": 448, "width": 448}, "patch_size": 14, "dynamic_hd": 36,
         "filter": BICUBIC, **_HALF, **dict.fromkeys(_OF_SOUND)},
    ),
    "GotOcr2ImageProcessor": (
        "mosaic",
        {"size": {"height": 384, "width": 384}, "crop_to_patches": False, "min_patches": 1,
         "max_patches": 12, "filter": BICUBIC, **_CLIP},
    ),
}  # fmt: skip
_FLAGS = ("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_convert_rgb", "do_pad")
_INERT = (
    "image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "data_format",
    "input_data_format", "device", "return_tensors", "default_to_square", "disable_grouping",
    "return_row_col_info", "image_seq_length", "image_seq_len", "num_additional_image_tokens",
    "_processor_class", "pad_size", "max_size", "do_reduce_labels", "format",
    "do_convert_annotations", "vision_aspect_ratio", "return_metadata",
    "video_sampling", "video_processor_type", "video_metadata", "aspect_ratio_setting",
)  # fmt: skip
_MORE = (
    "patch_size", "merge_size", "temporal_patch_size", "max_image_size", "do_image_splitting",
    "do_pan_and_scan", "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops",
    "pan_and_scan_min_ratio_to_activate", "image_grid_pinpoints", "min_pixels", "max_pixels",
    "crop_to_patches", "min_patches", "max_patches", "crop_pct", "keep_aspect_ratio",
    "ensure_multiple_of", "mod_size", "max_soft_tokens", "pooling_kernel_size",
    "dynamic_hd", "min_frames", "max_frames", "cap_pixels_per_frame", "max_video_tokens", "fps",
)  # fmt: skip


def steps_of(where: str, raw: Mapping[str, Any]) -> Steps:
    """Returns the steps that the content of a preprocessor_config.json says. Raises ModelError for
    a processor, a field or a value that weft does not know."""
    said = str(raw.get("image_processor_type") or raw.get("feature_extractor_type") or "")
    name = said.removesuffix("Fast").removesuffix("Pil")
    name = name.replace("FeatureExtractor", "ImageProcessor")
    if name not in PROCESSORS:
        known = ", ".join(PROCESSORS)
        raise ModelError(f"{where}: image processor {said[:60]!r} is not supported; known: {known}")
    kind, usual = PROCESSORS[name]
    known_fields = {*_FLAGS, *_INERT, *_MORE, *usual, "size", "crop_size", "resample",
                    "rescale_factor", "image_mean", "image_std"}  # fmt: skip
    for key in raw:
        if key not in known_fields:
            raise ModelError(f"{where}: field {str(key)[:60]!r} is unknown; it may change pictures")
    given = {**usual, **{k: v for k, v in raw.items() if v is not None}}
    if kind == "bounded" and isinstance(given["size"], int):  # as files before 2023 say it
        given["size"] = {"shortest_edge": given["size"],
                         "longest_edge": given.get("max_size", 1333)}  # fmt: skip
    flags = {k: bool(given.get(k, k not in ("do_center_crop", "do_pad"))) for k in _FLAGS}
    size = _size(where, "size", given["size"], square=kind not in ("plain", "squared"))
    crop = _size(where, "crop_size", given.get("crop_size")) if flags["do_center_crop"] else None
    if kind == "plain" and not {"shortest_edge", "height"} & set(size):
        raise ModelError(f"{where}: size {size} is not supported; expected shortest_edge or height")
    mean = _numbers(where, "image_mean", given.get("image_mean", usual["mean"]))
    std = _numbers(where, "image_std", given.get("image_std", usual["std"]))
    if kind == "budget":
        if flags["do_normalize"] and (mean, std) != ((0.0,) * 3, (1.0,) * 3):
            raise ModelError(
                f"{where}: image_mean {mean} and image_std {std} are not supported here"
            )
        if name == "Gemma4ImageProcessor":  # the tower itself takes 2 * (x - 0.5)
            flags["do_normalize"], mean, std = True, _HALF["mean"], _HALF["std"]
    if kind == "sheet" and given.get("resample", BICUBIC) != BICUBIC:
        raise ModelError(f"{where}: resample is {given['resample']!r:.40}; expected {BICUBIC}")
    more = {k: given[k] for k in _MORE if given.get(k) is not None}
    return Steps(
        kind, size, _filter(where, given.get("resample", usual["filter"])),
        None if crop is None else (crop["height"], crop["width"]),
        float(given.get("rescale_factor", 1 / 255)) if flags["do_rescale"] else None,
        mean if flags["do_normalize"] else None, std if flags["do_normalize"] else None,
        flags["do_resize"], more | {"do_pad": flags["do_pad"]},
    )  # fmt: skip


def _size(where: str, name: str, given: Any, square: bool = True) -> dict[str, int]:
    if isinstance(given, int) and not isinstance(given, bool):
        given = {"height": given, "width": given} if square or name == "crop_size" else {
            "shortest_edge": given}  # fmt: skip
    fits = isinstance(given, Mapping) and all(
        isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= 1 << 28
        for v in given.values()
        if v is not None
    )
    if not fits or not given:
        raise ModelError(f"{where}: {name} is {str(given)[:80]}; expected sizes in pixels")
    return {str(k): int(v) for k, v in given.items() if v is not None}


def _numbers(where: str, name: str, given: Any) -> tuple[float, ...]:
    values = [given] * 3 if isinstance(given, int | float) else given
    good = isinstance(values, Sequence) and len(values) == 3
    if not good or not all(isinstance(v, int | float) for v in values):
        raise ModelError(f"{where}: {name} is {str(given)[:80]}; expected three numbers")
    return tuple(float(v) for v in values)


def _filter(where: str, given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= 5:
        return given
    raise ModelError(f"{where}: resample is {str(given)[:40]}; expected one of Pillow's filters")


# -- the steps themselves --------------------------------------------------------------------------


def resized(image: np.ndarray, size: tuple[int, int], filter: int) -> np.ndarray:
    """Returns uint8 [H, W, 3] in another size, height first."""
    if image.shape[:2] == size:
        return image
    from weft.vision.decode import pillow

    images = pillow()
    made = images.fromarray(image).resize((size[1], size[0]), resample=filter)
    return np.asarray(made)


def cubic(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the four places among `size` behind each of `count`, and their weights (float32), in
    PyTorch's bicubic interpolation."""
    a = -0.75
    at = (np.arange(count, dtype=np.float64) + 0.5) * (size / count) - 0.5
    taps = np.floor(at).astype(np.int64)[:, None] + np.arange(-1, 3)
    x = np.abs(at[:, None] - taps)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    by = np.where(x <= 1, near, np.where(x < 2, far, 0.0)).astype(np.float32)
    return np.clip(taps, 0, size - 1), by


def thinned(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns float32 [C, H, W] in another size, by four pixels along each axis however many there
    are, as PyTorch interpolates without antialias."""
    for axis, count in enumerate(size, 1):
        places, by = cubic(count, pixels.shape[axis])
        shape = [count if k == axis else 1 for k in range(3)]
        parts = (np.take(pixels, places[:, k], axis) * by[:, k].reshape(shape) for k in range(4))
        pixels = functools.reduce(np.add, parts)
    return pixels


def centred(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns a cut of this size from the centre, with zeros around a picture that is smaller."""
    height, width, _ = image.shape
    out = np.zeros((*size, 3), image.dtype)
    sides = [_cut(have, want) for have, want in zip((height, width), size)]
    (to_y, from_y, rows), (to_x, from_x, columns) = sides
    out[to_y : to_y + rows, to_x : to_x + columns] = image[
        from_y : from_y + rows, from_x : from_x + columns
    ]
    return out


def _cut(have: int, want: int) -> tuple[int, int, int]:
    """Returns where a side goes, where it comes from, and its length."""
    start = (have - want) // 2
    if start < 0:
        pad = -(-(want - have) // 2)
        start += pad
        return max(pad - start, 0), max(start - pad, 0), have
    return 0, start, want


def floats(steps: Steps, image: np.ndarray) -> np.ndarray:
    """Returns the pixels as the tower reads them, float32 [3, H, W]."""
    values = np.arange(256, dtype=np.uint8)
    table = values.astype(np.float32)
    if steps.scale is not None:
        table = (values.astype(np.float64) * steps.scale).astype(np.float32)
    tables = [table] * 3
    if steps.mean is not None and steps.std is not None:
        pairs = zip(np.array(steps.mean, np.float32), np.array(steps.std, np.float32))
        tables = [(table - mean) / std for mean, std in pairs]
    return np.stack([t[image[:, :, k]] for k, t in enumerate(tables)])
