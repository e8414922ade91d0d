"""Random models of pictures' vectors, as transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as t
from picture_zoo import tokenizer
from tokenizers import processors

VISION = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
          "num_attention_heads": 3, "image_size": 28, "patch_size": 7}  # fmt: skip
TEXT = {"vocab_size": 300, "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 5, "max_position_embeddings": 48}  # fmt: skip


def write_vectors(name: str, folder: Path) -> tuple[Any, Any]:
    """Writes a random model, and returns transformers' model and image processor."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    torch.manual_seed(1)
    crop: dict[str, Any] = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    steps: Any = CLIPImageProcessorPil(**crop)
    if name == "clip":
        text = TEXT | {"eos_token_id": 297, "bos_token_id": 298, "pad_token_id": 297}
        model: Any = t.CLIPModel(
            t.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=18)
        )
    elif name == "siglip":
        text = TEXT | {"hidden_size": 24, "num_attention_heads": 3, "pad_token_id": 1,
                       "projection_size": 24}  # fmt: skip
        model = t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=VISION))
        steps = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    elif name.startswith("dinov3"):  # heads of 8: a rope has four parts
        more = {"rope_theta": 50.0, "attention_dropout": 0.0}
        if name == "dinov3":
            more |= {"num_register_tokens": 3, "use_gated_mlp": True, "hidden_act": "silu"}
        model = t.DINOv3ViTModel(t.DINOv3ViTConfig(**VISION | more))
    else:
        model = t.Dinov2Model(t.Dinov2Config(**VISION | {"mlp_ratio": 2, "image_size": 42}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, parameter.mean().item() if parameter.ndim < 2 else 0, 0.2)
    model.eval().save_pretrained(folder)
    said = {k: v for k, v in steps.to_dict().items() if not callable(v)}
    (folder / "preprocessor_config.json").write_text(json.dumps(said, default=str))
    made = tokenizer()
    ends = "<start_of_image>:0 $A <end_of_image>:0" if name == "clip" else "$A <image>:0"
    marks = [(token, made.token_to_id(token)) for token in (
        "<start_of_image>", "<end_of_image>", "<image>")]  # fmt: skip
    made.post_processor = processors.TemplateProcessing(single=ends, special_tokens=marks)
    made.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    if name == "clip":
        config["text_config"]["eos_token_id"] = made.token_to_id("<end_of_image>")
        model.config.text_config.eos_token_id = made.token_to_id("<end_of_image>")
        for module in model.modules():
            if hasattr(module, "eos_token_id"):
                module.eos_token_id = made.token_to_id("<end_of_image>")
    (folder / "config.json").write_text(json.dumps(config))
    return model, steps
