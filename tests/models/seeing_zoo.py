"""Tiny checkpoints of families that see by transformers' own code."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import picture_zoo
import torch
import transformers as t
from picture_zoo import PLAIN, TEXT, VISION
from tokenizers import AddedToken, Tokenizer

SQUARE = VISION | {"image_size": 28, "patch_size": 7}
SIDE = {"size": {"height": 28, "width": 28}}
GRIDS = [[28, 56], [56, 28], [56, 56]]
HIGH = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4,
        "mlp_dim": 40, "output_channels": 12, "window_size": 5,
        "global_attn_indexes": [1]}  # fmt: skip
SLIDES = {"sliding_window": 9,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}  # fmt: skip
LLAVA = {"patch_size": 7, "vision_feature_select_strategy": "default",
         "num_additional_image_tokens": 1}  # fmt: skip
IMAGE, ATOM, PAD = (picture_zoo.ID["<image>"], 282, 283)
SPECIAL = ("<IMG_ATOM>", "<imgpad>")
TILES = {
    "image_token": "<image>", "start_of_img_token": "<img>", "end_of_img_token": "</img>",
    "img_patch_token": "<soft>", "img_line_break_token": "[IMG_BREAK]",
    "tile_token": "<row_1_col_1>", "tile_global_token": "<global-img>",
}  # fmt: skip
Case = tuple[Any, str, tuple[str, str, dict[str, Any]], dict[str, Any]]


def _clip() -> Any:
    return t.CLIPVisionConfig(**SQUARE)


def _aya_vision() -> Case:
    config = t.AyaVisionConfig(
        text_config=t.Cohere2Config(**TEXT | SLIDES), image_token_index=picture_zoo.ID["<soft>"],
        vision_config=t.SiglipVisionConfig(**SQUARE),
    )  # fmt: skip
    more = TILES | {"patch_size": 7, "img_size": 28, "downsample_factor": 2}
    return config, "AyaVisionProcessor", ("got_ocr2", "GotOcr2", SIDE | {"max_patches": 4}), more


def _vipllava() -> Case:
    config = t.VipLlavaConfig(
        text_config=t.LlamaConfig(**TEXT), vision_config=_clip(), image_token_index=IMAGE,
        vision_feature_layer=[-1, -2, 1], image_seq_length=16,
    )  # fmt: skip
    return config, "LlavaProcessor", ("clip", "CLIP", picture_zoo._SMALL), LLAVA


def _video_llava() -> Case:
    config = t.VideoLlavaConfig(
        text_config=t.LlamaConfig(**TEXT), vision_config=_clip(), image_token_index=IMAGE,
        video_token_index=picture_zoo.ID["<|video_pad|>"],
    )  # fmt: skip
    return config, "LlavaProcessor", ("clip", "CLIP", picture_zoo._SMALL), LLAVA


def _llava_next_video() -> Case:
    config = t.LlavaNextVideoConfig(
        text_config=t.LlamaConfig(**TEXT), vision_config=_clip(), image_token_index=IMAGE,
        image_grid_pinpoints=GRIDS,
    )  # fmt: skip
    steps = picture_zoo._SMALL | {"image_grid_pinpoints": GRIDS}
    return config, "LlavaNextProcessor", ("llava_next", "LlavaNext", steps), LLAVA


def _deepseek_vl() -> Case:
    config = t.DeepseekVLConfig(
        text_config=t.LlamaConfig(**TEXT), vision_config=t.SiglipVisionConfig(**SQUARE),
        image_token_id=IMAGE,
    )  # fmt: skip
    steps = SIDE | {"min_size": 7}
    more = {"num_image_tokens": 16}
    return config, "DeepseekVLProcessor", ("deepseek_vl", "DeepseekVL", steps), more


def _deepseek_vl_hybrid() -> Case:
    config = t.DeepseekVLHybridConfig(
        text_config=t.LlamaConfig(**TEXT), vision_config=t.SiglipVisionConfig(**SQUARE),
        high_res_vision_config=HIGH | {"image_size": 64}, image_token_id=IMAGE,
    )  # fmt: skip
    steps = SIDE | {"min_size": 7, "high_res_size": {"height": 64, "width": 64}}
    images = ("deepseek_vl_hybrid", "DeepseekVLHybrid", steps)
    return config, "DeepseekVLHybridProcessor", images, {"num_image_tokens": 16}


def _janus() -> Case:
    codes = {"embed_dim": 4, "num_embeddings": 8, "double_latent": False, "latent_channels": 32,
             "num_patches": 4, "base_channels": 32, "channel_multiplier": [1, 1],
             "num_res_blocks": 1, "projection_dim": 12, "image_token_embed_dim": 12,
             "hidden_size": 12}  # fmt: skip
    config = t.JanusConfig(
        text_config=t.LlamaConfig(**TEXT), vq_config=codes, image_token_id=IMAGE,
        vision_config=SQUARE | {"projection_dim": 36, "mlp_ratio": 2.0, "depth": 2},
    )  # fmt: skip
    steps = SIDE | {"min_size": 7}
    return config, "JanusProcessor", ("janus", "Janus", steps), {"num_image_tokens": 16}


def _got_ocr2() -> Case:
    config = t.GotOcr2Config(
        text_config=t.Qwen2Config(**PLAIN), vision_config=HIGH | {"image_size": 256},
        image_token_index=PAD, image_seq_length=256,
    )  # fmt: skip
    steps = {"size": {"height": 256, "width": 256}}
    return config, "GotOcr2Processor", ("got_ocr2", "GotOcr2", steps), {}


def _lighton_ocr() -> Case:
    from transformers.models.lighton_ocr.configuration_lighton_ocr import LightOnOcrConfig

    vision = VISION | {"num_attention_heads": 2, "image_size": 84, "patch_size": 7}
    config = LightOnOcrConfig(
        text_config=t.Qwen3Config(**TEXT), vision_config=t.PixtralVisionConfig(**vision),
        image_token_id=IMAGE,
    )  # fmt: skip
    steps = {"size": {"longest_edge": 84}, "patch_size": 14}
    more = {"patch_size": 7, "spatial_merge_size": 2}
    return config, "LightOnOcrProcessor", ("pixtral", "Pixtral", steps), more


def _ovis2() -> Case:
    config = t.Ovis2Config(
        text_config=t.Qwen2Config(**PLAIN), hidden_size=72, vocab_size=300, image_token_id=ATOM,
        vision_config=SQUARE | {"vocab_size": 40, "hidden_stride": 2},
        visual_indicator_token_ids=[270, 271, 272, 273, 274],
    )  # fmt: skip
    return config, "Ovis2Processor", ("ovis2", "Ovis2", SIDE), {"image_seq_length": 4}


CASES: dict[str, Callable[[], Case]] = {
    "aya_vision": _aya_vision, "vipllava": _vipllava, "video_llava": _video_llava,
    "llava_next_video": _llava_next_video, "deepseek_vl": _deepseek_vl,
    "deepseek_vl_hybrid": _deepseek_vl_hybrid, "janus": _janus, "got_ocr2": _got_ocr2,
    "lighton_ocr": _lighton_ocr,
}  # fmt: skip
MARK = {"got_ocr2": "<imgpad>"}  # of a picture in a template; elsewhere <image>


def tokenizer() -> Tokenizer:
    made = picture_zoo.tokenizer()
    spare = (f"<spare {k}>" for k in range(made.get_vocab_size(), ATOM))
    made.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (*spare, *SPECIAL)]
    )
    return made


def write_seeing(name: str, folder: Path, case: Case | None = None) -> Any:
    """Writes a random model, and returns transformers' own."""
    config, processor, (module, cls, steps), more = case or CASES[name]()
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    classes = t.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    model = classes[type(config)](config).eval().float()
    for parameter in model.parameters():
        flat = parameter.ndim < 2  # norms that do something
        torch.nn.init.normal_(parameter, parameter.mean().item() * flat, 0.3 if flat else 0.25)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    parts = (
        "{% for p in m.content %}{% if p.type == 'image' %}" + MARK.get(name, "<image>")
        + "{% else %}{{ p.text }}{% endif %}{% endfor %}"
    )  # fmt: skip
    template = (
        "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}"
        "{% else %}" + parts + "{% endif %}{{ '\\n' }}{% endfor %}assistant:"
    )
    named = {"image_token": "<image>", "boi_token": "<start_of_image>",
             "eoi_token": "<end_of_image>", "image_break_token": "[IMG_BREAK]",
             "image_end_token": "[IMG_END]", "video_token": "<|video_pad|>"}  # fmt: skip
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template,
            "extra_special_tokens": named, "pad_token": "<img>"}  # fmt: skip
    found = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    images = getattr(found, f"{cls}ImageProcessorPil")(**steps).to_dict()
    for file, data in (
        ("tokenizer_config", said), ("preprocessor_config", images),
        ("processor_config", {"processor_class": processor, **more}),
    ):  # fmt: skip
        (folder / f"{file}.json").write_text(json.dumps(data, default=str))
    return model
