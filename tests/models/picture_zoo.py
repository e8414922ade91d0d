"""Tiny multimodal checkpoints with odd sizes, and what transformers makes of pictures and text."""

from __future__ import annotations

import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEXT = {
    "vocab_size": 300, "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12,
    "max_position_embeddings": 1024, "eos_token_id": None, "bos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
VISION = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
          "num_attention_heads": 3}  # fmt: skip
PLAIN = {k: v for k, v in TEXT.items() if k != "head_dim"} | {"hidden_size": 72}
TURNED = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 1],
                              "rope_theta": 1e4}}  # fmt: skip
DELTA = {"layer_types": ["linear_attention", "full_attention", "linear_attention"],
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 6, "rope_parameters": {
             "rope_type": "default", "mrope_section": [1, 1, 1], "mrope_interleaved": True,
             "rope_theta": 1e4, "partial_rotary_factor": 0.5}}  # fmt: skip
SPECIAL = [
    "<image>", "<start_of_image>", "<end_of_image>", "<soft>", "<fake_token_around_image>",
    "<global-img>", "<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "[IMG]", "[IMG_BREAK]",
    "[IMG_END]", "<IMG_CONTEXT>", "<img>", "</img>", "<end_of_utterance>", "<|video_pad|>",
    *(f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4)),
]  # fmt: skip
ID = {token: 256 + i for i, token in enumerate(SPECIAL)}
_SMALL = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
QWEN_STEPS = {"size": {"shortest_edge": 784, "longest_edge": 14000}, "patch_size": 7}


GEMMA4 = {
    "num_hidden_layers": 4, "hidden_size_per_layer_input": 0, "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "global_head_dim": 20, "vocab_size_per_layer_input": 300, "pad_token_id": 7,
    "num_kv_shared_layers": 0,
}  # fmt: skip
SEES4 = VISION | {"head_dim": 8, "num_key_value_heads": 3, "patch_size": 7,
                  "pooling_kernel_size": 2, "position_embedding_size": 30}  # fmt: skip
IDS4 = {"image_token_id": ID["<soft>"], "boi_token_id": ID["<start_of_image>"],
        "eoi_token_id": ID["<end_of_image>"], "video_token_id": None,
        "audio_token_id": None}  # fmt: skip


def _configs() -> dict[str, tuple[str, str, Any, dict[str, Any], str, dict[str, Any]]]:
    """Family -> (class of models, module of the processor, config, steps, mark of a picture in a
    template, arguments of the processor)."""
    t = transformers
    square = VISION | {"image_size": 28, "patch_size": 7}
    qwen = {"depth": 3, "num_heads": 3, "patch_size": 7}
    ids = {
        "image_token_id": ID["<|image_pad|>"],
        "vision_start_token_id": ID["<|vision_start|>"],
        "vision_end_token_id": ID["<|vision_end|>"],
        "video_token_id": ID["<|video_pad|>"],
    }
    shown = "<|vision_start|><|image_pad|><|vision_end|>"
    return {
        "llava": (
            "LlavaForConditionalGeneration", "llava",
            t.LlavaConfig(text_config=t.LlamaConfig(**TEXT),
                          vision_config=t.CLIPVisionConfig(**square),
                          image_token_index=ID["<image>"]),
            _SMALL, "<image>",
            {"patch_size": 7, "vision_feature_select_strategy": "default",
             "num_additional_image_tokens": 1},
        ),
        "gemma3": (
            "Gemma3ForConditionalGeneration", "gemma3",
            t.Gemma3Config(
                text_config=t.Gemma3TextConfig(**TEXT | {
                    "sliding_window": 9, "query_pre_attn_scalar": 12, "layer_types": [
                        "sliding_attention", "full_attention", "sliding_attention"]}),
                vision_config=t.SiglipVisionConfig(**square | {"image_size": 42}),
                mm_tokens_per_image=9, image_token_index=ID["<soft>"],
                boi_token_index=ID["<start_of_image>"], eoi_token_index=ID["<end_of_image>"]),
            {"size": {"height": 42, "width": 42}}, "<start_of_image>", {"image_seq_length": 9},
        ),
        "gemma4": (
            "Gemma4ForConditionalGeneration", "gemma4",
            t.Gemma4Config(
                text_config=TEXT | GEMMA4 | {"use_bidirectional_attention": "vision"},
                vision_config=SEES4 | {"use_clipped_linears": True, "standardize": True},
                audio_config=None, **IDS4),
            {"patch_size": 7, "max_soft_tokens": 70, "pooling_kernel_size": 2}, "<soft>",
            {"feature_extractor": None},
        ),
        "gemma4_small": (
            "Gemma4ForConditionalGeneration", "gemma4",
            t.Gemma4Config(text_config=TEXT | GEMMA4 | {
                "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 1},
                           vision_config=SEES4, audio_config=None, **IDS4),
            {"patch_size": 7, "max_soft_tokens": 70, "pooling_kernel_size": 2}, "<soft>",
            {"feature_extractor": None},
        ),
        "idefics3": (
            "Idefics3ForConditionalGeneration", "idefics3",
            t.Idefics3Config(text_config=t.LlamaConfig(**TEXT), vision_config=square,
                             scale_factor=2, image_token_id=ID["<image>"]),
            {"size": {"longest_edge": 84}, "max_image_size": {"longest_edge": 28}}, "<image>",
            {"image_seq_len": 4},
        ),
        "smolvlm": (
            "SmolVLMForConditionalGeneration", "smolvlm",
            t.SmolVLMConfig(text_config=t.LlamaConfig(**TEXT), vision_config=square,
                            scale_factor=2, image_token_id=ID["<image>"]),
            {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}, "<image>",
            {"image_seq_len": 4},
        ),
        "qwen2_vl": (
            "Qwen2VLForConditionalGeneration", "qwen2_vl",
            t.Qwen2VLConfig(text_config=PLAIN | TURNED, **ids, vision_config=qwen | {
                "embed_dim": 24, "hidden_size": 72, "mlp_ratio": 2}),
            QWEN_STEPS, shown, {},
        ),
        "qwen2_5_vl": (
            "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl",
            t.Qwen2_5_VLConfig(text_config=PLAIN | TURNED, **ids, vision_config=qwen | {
                "hidden_size": 24, "out_hidden_size": 72, "intermediate_size": 40,
                "window_size": 28, "fullatt_block_indexes": [1]}),
            QWEN_STEPS, shown, {},
        ),
        "qwen3_vl": (
            "Qwen3VLForConditionalGeneration", "qwen3_vl",
            t.Qwen3VLConfig(text_config=TEXT | TURNED, **ids, vision_config=qwen | {
                "hidden_size": 24, "out_hidden_size": 36, "intermediate_size": 40,
                "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 1]}),
            QWEN_STEPS, shown, {},
        ),
        "qwen3_5": (
            "Qwen3_5ForConditionalGeneration", "qwen3_5",
            t.Qwen3_5Config(text_config=TEXT | DELTA, **ids, vision_config=qwen | {
                "hidden_size": 24, "out_hidden_size": 36, "intermediate_size": 40,
                "num_position_embeddings": 25}),
            QWEN_STEPS, shown, {},
        ),
        "internvl": (
            "InternVLForConditionalGeneration", "internvl",
            t.InternVLConfig(text_config=t.Qwen2Config(**PLAIN), vision_config=VISION | {
                "image_size": [28, 28], "patch_size": [7, 7]},
                image_token_id=ID["<IMG_CONTEXT>"]),
            {"size": {"height": 28, "width": 28}, "max_patches": 4}, "<IMG_CONTEXT>",
            {"image_seq_length": 4},
        ),
        "mistral3": (
            "Mistral3ForConditionalGeneration", "pixtral",
            t.Mistral3Config(
                text_config=t.MistralConfig(**TEXT | {"sliding_window": None}),
                vision_config=t.PixtralVisionConfig(**VISION | {
                    "num_attention_heads": 2, "image_size": 84, "patch_size": 7}),
                image_token_index=ID["[IMG]"]),
            {"size": {"longest_edge": 84}, "patch_size": 14}, "[IMG]",
            {"patch_size": 7, "spatial_merge_size": 2},
        ),
        "llava_next": (
            "LlavaNextForConditionalGeneration", "llava_next",
            t.LlavaNextConfig(text_config=t.LlamaConfig(**TEXT),
                              vision_config=t.CLIPVisionConfig(**square),
                              image_token_index=ID["<image>"],
                              image_grid_pinpoints=[[28, 56], [56, 28], [56, 56], [84, 28]]),
            _SMALL | {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [84, 28]]},
            "<image>", {"patch_size": 7, "vision_feature_select_strategy": "default",
                        "num_additional_image_tokens": 1},
        ),
        "llava_onevision": (
            "LlavaOnevisionForConditionalGeneration", "llava_onevision",
            t.LlavaOnevisionConfig(
                text_config=t.Qwen2Config(**PLAIN), image_token_index=ID["<image>"],
                vision_config=t.SiglipVisionConfig(**square), vision_aspect_ratio="anyres_max_2",
                image_grid_pinpoints=[[28, 56], [56, 28], [56, 56], [84, 56]]),
            {"size": {"height": 28, "width": 28},
             "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [84, 56]]},
            "<image>", {"num_image_tokens": 16, "vision_feature_select_strategy": "full",
                        "vision_aspect_ratio": "anyres_max_2"},
        ),
        "pixtral": (
            "LlavaForConditionalGeneration", "pixtral",
            t.LlavaConfig(
                text_config=t.MistralConfig(**TEXT | {"sliding_window": 20}),
                vision_config=t.PixtralVisionConfig(**VISION | {
                    "num_attention_heads": 2, "image_size": 84, "patch_size": 7}),
                vision_feature_layer=-1, vision_feature_select_strategy="full",
                image_token_index=ID["[IMG]"]),
            {"size": {"longest_edge": 63}, "patch_size": 7}, "[IMG]",
            {"patch_size": 7, "spatial_merge_size": 1},
        ),
    }  # fmt: skip


_IMAGE_PROCESSORS = {
    "llava_next": "llava_next.LlavaNextImageProcessor",
    "llava_onevision": "llava_onevision.LlavaOnevisionImageProcessor",
    "llava": "clip.CLIPImageProcessor", "gemma3": "gemma3.Gemma3ImageProcessor",
    "gemma4": "gemma4.Gemma4ImageProcessor",
    "idefics3": "idefics3.Idefics3ImageProcessor", "smolvlm": "smolvlm.SmolVLMImageProcessor",
    "internvl": "got_ocr2.GotOcr2ImageProcessor", "pixtral": "pixtral.PixtralImageProcessor",
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"),
                    "qwen2_vl.Qwen2VLImageProcessor"),
}  # fmt: skip
_PROCESSORS = {
    "llava": "LlavaProcessor", "llava_next": "LlavaNextProcessor",
    "llava_onevision": "LlavaOnevisionProcessor",
    "gemma3": "Gemma3Processor", "gemma4": "Gemma4Processor", "idefics3": "Idefics3Processor",
    "internvl": "InternVLProcessor", "pixtral": "", "smolvlm": "Idefics3Processor",
    "qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor", "qwen3_5": "Qwen3VLProcessor",
}  # fmt: skip
_IMAGE_TOKENS = {"gemma3": "<soft>", "gemma4": "<soft>", "pixtral": "[IMG]",
                 "internvl": "<IMG_CONTEXT>"}  # fmt: skip
FAMILIES = tuple(_configs())
MARK = {name: case[4] for name, case in _configs().items()}


def tokenizer() -> Tokenizer:
    """A tokenizer of bytes, and of the marks that processors put around pictures."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return made


def write_pictured(name: str, folder: Path, seed: int = 0) -> tuple[Any, Any]:
    """Writes a random model, and returns transformers' model and processor."""
    cls, module, config, steps, mark, more = _configs()[name]
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = getattr(transformers, cls)(config).eval().float()
    for parameter in model.parameters():
        if parameter.ndim < 2:  # norms that do something
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.3)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
    for name, buffer in model.named_buffers():
        if name.endswith(("std_bias", "std_scale")):
            torch.nn.init.normal_(buffer, 0.5, 0.3)
        elif name.endswith(("put_min", "put_max")):  # limits that some values reach
            torch.nn.init.constant_(buffer, -2.5 if name.endswith("min") else 2.0)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    parts = (
        "{% for p in m.content %}{% if p.type == 'image' %}" + mark + "{% else %}{{ p.text }}"
        "{% endif %}{% endfor %}"
    )
    template = (
        "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}"
        "{% else %}" + parts + "{% endif %}{{ NEWLINE }}{% endfor %}assistant:"
    )
    template = template.replace("NEWLINE", repr("\n"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    images = _image_processor(module, steps)
    (folder / "preprocessor_config.json").write_text(json.dumps(images.to_dict(), default=str))
    return model, _processor(module, images, folder, more)


def _image_processor(module: str, steps: dict[str, Any]) -> Any:
    where, cls = _IMAGE_PROCESSORS[module].split(".")
    found = importlib.import_module(f"transformers.models.{where}.image_processing_pil_{where}")
    return getattr(found, f"{cls}Pil")(**steps)


def _processor(module: str, images: Any, folder: Path, more: dict[str, Any]) -> Any:
    own = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for name, token in (
        ("boi_token", "<start_of_image>"), ("eoi_token", "<end_of_image>"),
        ("image_token", _IMAGE_TOKENS.get(
            module, "<|image_pad|>" if "qwen" in module else "<image>")),
        ("audio_token", "<img>"), ("boa_token", "<img>"), ("eoa_token", "<img>"),
        ("pad_token", "<img>"),
        ("video_token", "<|video_pad|>"), ("start_image_token", "<img>"),
        ("end_image_token", "</img>"), ("context_image_token", "<IMG_CONTEXT>"),
    ):  # fmt: skip
        setattr(own, name, token)
        setattr(own, f"{name}_id", ID[token])
    if module == "pixtral":  # its own asks for torchvision
        side = more["patch_size"] * more["spatial_merge_size"]
        return partial(_pixtral, processor=images, own=own, side=side)
    where = {"smolvlm": "idefics3", "qwen3_5": "qwen3_vl"}.get(module, module)
    found = importlib.import_module(f"transformers.models.{where}.processing_{where}")
    cls = getattr(found, _PROCESSORS[module])
    made = cls.__new__(cls)
    cls.check_argument_for_proper_class = lambda self, *given: None
    if "video_processor" in cls.__init__.__code__.co_varnames:
        more = {**more, "video_processor": None}
    cls.__init__(made, image_processor=images, tokenizer=own, **more)
    return made


def _pixtral(processor: Any, own: Any, side: int, **given: Any) -> dict[str, Any]:
    """What PixtralProcessor makes."""
    made = processor(given["images"], return_tensors="pt")
    (text,) = given["text"]
    for height, width in made["image_sizes"]:
        line = "[IMG]" * (int(width) // side)
        lines = "[IMG_BREAK]".join([line.replace("[IMG]", "@")] * (int(height) // side))
        text = text.replace("[IMG]", lines + "[IMG_END]", 1)
    made["input_ids"] = own(text.replace("@", "[IMG]"), return_tensors="pt")["input_ids"]
    return dict(made)


def picture(seed: int, height: int, width: int) -> np.ndarray:
    """A picture with some structure: gradients and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    base = np.stack([y * 255 // height, x * 255 // width, (x + y) * 127 // (height + width)], -1)
    return (base * 0.7 + rng.integers(0, 76, (height, width, 3))).astype(np.uint8)


def greedy(model: Any, inputs: dict[str, Any], count: int) -> tuple[list[int], np.ndarray]:
    """The tokens that transformers chooses after a prompt, and the logits of each."""
    with torch.no_grad():
        out = model.generate(
            **inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    made = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    return made, torch.stack(out.logits)[:, 0].float().numpy()
