"""The steps before a tower, against transformers' own processors over Pillow, to the last bit."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from weft.core.errors import ModelError
from weft.vision.steps import PROCESSORS, steps_of
from weft.vision.tiles import prepare

SIZES = [(37, 53), (300, 171), (224, 224), (5, 90), (601, 380), (96, 97)]
RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES]
_PAN = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 4,
        "pan_and_scan_min_ratio_to_activate": 1.2}  # fmt: skip
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("clip", "CLIPImageProcessor", {}),
    ("clip", "CLIPImageProcessor", {"size": {"shortest_edge": 35}, "do_normalize": False,
                                    "crop_size": {"height": 41, "width": 30}}),
    ("llava", "LlavaImageProcessor", {"do_pad": True, "size": {"shortest_edge": 56}}),
    ("siglip", "SiglipImageProcessor", {"size": {"height": 42, "width": 56}}),
    ("gemma3", "Gemma3ImageProcessor", {"size": {"height": 56, "width": 56}, **_PAN}),
    ("gemma4", "Gemma4ImageProcessor", {"max_soft_tokens": 70}),
    ("idefics3", "Idefics3ImageProcessor", {"size": {"longest_edge": 120},
                                            "max_image_size": {"longest_edge": 40}}),
    ("idefics3", "Idefics3ImageProcessor", {"do_image_splitting": False}),
    ("smolvlm", "SmolVLMImageProcessor", {"size": {"longest_edge": 84},
                                          "max_image_size": {"longest_edge": 42}}),
    ("qwen2_vl", "Qwen2VLImageProcessor", {"size": {"shortest_edge": 3136,
                                                    "longest_edge": 50000}}),
    ("pixtral", "PixtralImageProcessor", {"size": {"longest_edge": 200}, "patch_size": 14}),
    ("llava_next", "LlavaNextImageProcessor", {"size": {"shortest_edge": 28},
                                               "crop_size": {"height": 28, "width": 28},
                                               "image_grid_pinpoints": [[28, 56], [56, 28],
                                                                        [56, 56], [84, 28]]}),
    ("llava_onevision", "LlavaOnevisionImageProcessor", {
        "size": {"height": 28, "width": 28}, "image_grid_pinpoints": [[28, 56], [56, 28]]}),
    ("got_ocr2", "GotOcr2ImageProcessor", {"size": {"height": 32, "width": 32},
                                           "crop_to_patches": True, "max_patches": 6}),
    ("vit", "ViTImageProcessor", {"size": {"height": 30, "width": 44}}),
    ("deit", "DeiTImageProcessor", {}),
    ("convnext", "ConvNextImageProcessor", {"size": {"shortest_edge": 60}}),
    ("convnext", "ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
    ("segformer", "SegformerImageProcessor", {"size": {"height": 50, "width": 70}}),
    ("dpt", "DPTImageProcessor", {"keep_aspect_ratio": True, "ensure_multiple_of": 14,
                                  "size": {"height": 98, "width": 84}}),
    ("detr", "DetrImageProcessor", {"size": {"shortest_edge": 80, "longest_edge": 120}}),
    ("yolos", "YolosImageProcessor", {"size": {"shortest_edge": 80, "longest_edge": 120}}),
    ("rt_detr", "RTDetrImageProcessor", {}),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "given"), CASES)
def test_steps_are_transformers(module: str, name: str, given: dict[str, Any]) -> None:
    found = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    reference = getattr(found, f"{name}Pil")(**given)
    said = reference.to_dict()
    steps = steps_of("preprocessor_config.json", said)
    for picture in PICTURES:
        if name in ("DPTImageProcessor", "YolosImageProcessor") and min(picture.shape[:2]) < 28:
            continue  # transformers' give no size
        if name == "Qwen2VLImageProcessor" and max(picture.shape) < 28:
            continue
        want = reference(picture, return_tensors="np")
        got = prepare(steps, picture)
        pixels = np.stack(got.pixels)
        if name == "Qwen2VLImageProcessor":
            assert list(want["image_grid_thw"][0, 1:]) == [n // 14 for n in pixels.shape[2:]]
            flat = np.asarray(want["pixel_values"]).reshape(-1, 3, 2, 14, 14)[:, :, 0]
            rows, columns = want["image_grid_thw"][0, 1:]
            back = flat.reshape(rows // 2, columns // 2, 2, 2, 3, 14, 14)
            back = back.transpose(4, 0, 2, 5, 1, 3, 6).reshape(pixels[0].shape)
            np.testing.assert_array_equal(pixels[0], back)
            continue
        if name == "Gemma4ImageProcessor":
            count = want["num_soft_tokens_per_image"][0] * 9
            rows, columns = (n // 16 for n in pixels.shape[2:])
            flat = np.asarray(want["pixel_values"])[0, :count].reshape(rows, columns, 16, 16, 3)
            back = flat.transpose(4, 0, 2, 1, 3).reshape(pixels[0].shape)
            np.testing.assert_array_equal(pixels[0], 2 * (back - np.float32(0.5)))
            continue
        np.testing.assert_array_equal(
            pixels, np.asarray(want["pixel_values"]).reshape(pixels.shape)
        )


def test_what_is_unknown_is_named() -> None:
    with pytest.raises(ModelError, match="image processor 'NewProcessor' is not supported"):
        steps_of("x", {"image_processor_type": "NewProcessor"})
    with pytest.raises(ModelError, match="field 'sharpen' is unknown"):
        steps_of("x", {"image_processor_type": "CLIPImageProcessor", "sharpen": True})
    with pytest.raises(ModelError, match="size is"):
        steps_of("x", {"image_processor_type": "CLIPImageProcessor", "size": {"height": -3}})
    with pytest.raises(ModelError, match="image_mean is"):
        steps_of("x", {"image_processor_type": "CLIPImageProcessor", "image_mean": [1, "a", 3]})
    assert all(steps_of("x", {"image_processor_type": f"{name}Fast"}) for name in PROCESSORS)
