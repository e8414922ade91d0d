"""A tiny Phi-4-multimodal, and the inputs that its processor makes, over Pillow: transformers' own
asks for torchvision."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from picture_zoo import ID, PLAIN, VISION, tokenizer
from PIL import Image

SIDE, PATCH, MOST = 28, 7, 4
VISUAL = VISION | {"num_hidden_layers": 4, "image_size": SIDE, "crop_size": SIDE,
                   "patch_size": PATCH, "image_token_id": ID["<image>"]}  # fmt: skip
AUDIBLE = {
    "hidden_size": 16, "intermediate_size": 20, "num_blocks": 2, "num_attention_heads": 2,
    "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "nemo_conv_channels": 16,
    "audio_token_id": ID["<soft>"], "bias_max_distance": 10,
}  # fmt: skip
STEPS = {
    "image_processor_type": "Phi4MultimodalImageProcessorFast", "dynamic_hd": MOST,
    "size": {"height": SIDE, "width": SIDE}, "patch_size": PATCH, "resample": 3,
    "feature_extractor_type": "Phi4MultimodalFeatureExtractor", "audio_compression_rate": 8,
    "audio_downsample_rate": 1, "audio_feat_stride": 1,
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}assistant:"
)


def write_phi4(folder: Path) -> Any:
    """Writes a random model, and returns transformers'."""
    torch.manual_seed(0)
    sizes = {k: v for k, v in PLAIN.items() if k != "vocab_size"}
    config = transformers.Phi4MultimodalConfig(
        vocab_size=300, **sizes, vision_config=VISUAL, audio_config=AUDIBLE,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.Phi4MultimodalForCausalLM(config).eval().float()
    for parameter in model.parameters():
        if parameter.ndim < 2:
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.3)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "preprocessor_config.json").write_text(json.dumps(STEPS))
    return model


def grid_of(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """The columns and rows of tiles."""
    wide, tall = math.ceil(width / side), math.ceil(height / side)
    if wide * tall <= most:
        return wide, tall
    every = [(i, j) for i in range(1, most + 1) for j in range(1, most + 1) if i * j <= most]
    every.sort(key=lambda g: g[0] * g[1])
    return min(every, key=lambda g: abs(width / height - g[0] / g[1]))


def steps(image: np.ndarray, side: int = SIDE, patch: int = PATCH, most: int = MOST) -> Any:
    """The tiles [1 + N, 3, side, side] of a picture, the sheet's mask by patch, and its size."""
    height, width, _ = image.shape
    columns, rows = grid_of(height, width, side, most)
    by = min(columns * side / width, rows * side / height)
    new = (int(height * by), columns * side)
    if columns * side / width >= rows * side / height:
        new = (rows * side, int(width * by))
    resized = Image.fromarray(image).resize(new[::-1], Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None]
    right, below = columns * side - new[1], rows * side - new[0]
    sheet = F.pad(pixels, (0, right, 0, below), value=255).float()
    sheet = (sheet - 127.5) / 127.5
    n = side // patch
    mask = torch.ones(rows * n, columns * n)
    mask[:, columns * n - right // patch :] = 0
    mask[rows * n - below // patch :] = 0
    whole = F.interpolate(sheet, (side, side), mode="bicubic", align_corners=False)
    cuts = sheet.unfold(2, side, side).unfold(3, side, side)[0].permute(1, 2, 0, 3, 4)
    tiles = torch.cat([whole, cuts.reshape(-1, 3, side, side)])
    return tiles, mask, (rows * side, columns * side)


def inputs_of(text: str, pictures: list[np.ndarray]) -> dict[str, Any]:
    """What Phi4MultimodalProcessor makes of a prompt with a mark for each picture."""
    made, n = [steps(picture) for picture in pictures], SIDE // PATCH
    most = max(len(tiles) for tiles, _, _ in made)
    for _, mask, _ in made:
        halved = mask[0::2, 0::2]
        count = n // 2 * (n // 2 + 1) + 1 + int(halved.sum() + halved[:, 0].sum())
        text = text.replace("<image>", "@" * count, 1)
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer())
    ids = own(text.replace("@", "<image>"), return_tensors="pt")["input_ids"]
    tiles = [F.pad(m[0], (0,) * 7 + (most - len(m[0]),)) for m in made]
    masks = [m[1].unfold(0, n, n).unfold(1, n, n).reshape(-1, n, n) for m in made]
    masks = [F.pad(m, (0, 0, 0, 0, 1, most - 1 - len(m)), value=1) for m in masks]
    return {
        "input_ids": ids, "attention_mask": torch.ones_like(ids),
        "image_pixel_values": torch.stack(tiles), "image_attention_mask": torch.stack(masks),
        "image_sizes": torch.tensor([m[2] for m in made]),
    }  # fmt: skip
