"""Writes a model with random weights that hears or sees, for `weft bench speech` and `pictures`.

python scripts/sense_models.py NAME FOLDER: whisper-tiny, whisper-base, clip (ViT-B/32), or
qwen2.5-vl (of 169M parameters; a picture of 784x1008 pixels has 1,008 tokens).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers as t
from tokenizers.pre_tokenizers import ByteLevel

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))
from picture_zoo import ID, tokenizer

WHISPER = {"whisper-tiny": (384, 4, 6), "whisper-base": (512, 6, 8)}  # width, layers, heads
TEXTS = 50257  # tokens of text; those after them are special
LANGUAGES = 99
QWEN: dict[str, Any] = {
    "text_config": {
        "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048,
        "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
        "max_position_embeddings": 4096, "eos_token_id": None, "bos_token_id": None,
        "pad_token_id": None,
        "rope_parameters": {
            "rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1e6,
        },
    },
    "vision_config": {
        "hidden_size": 512, "out_hidden_size": 768, "intermediate_size": 1368, "depth": 12,
        "num_heads": 8, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [3, 7, 11],
    },
}  # fmt: skip


def whisper(folder: Path, name: str) -> None:
    """Writes a multilingual Whisper."""
    wide, layers, heads = WHISPER[name]
    end, begin = TEXTS, TEXTS + 1
    after = begin + 1 + LANGUAGES  # translate, transcribe, and four more
    ids: dict[str, Any] = {
        "decoder_start_token_id": begin, "eos_token_id": end, "pad_token_id": end,
        "bos_token_id": end,
    }  # fmt: skip
    sizes: dict[str, Any] = {
        "d_model": wide, "encoder_layers": layers, "decoder_layers": layers,
        "encoder_attention_heads": heads, "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * wide, "decoder_ffn_dim": 4 * wide,
    }  # fmt: skip
    model: Any = t.WhisperForConditionalGeneration(t.WhisperConfig(
        vocab_size=51865, num_mel_bins=80, suppress_tokens=None, begin_suppress_tokens=None,
        **ids, **sizes,
    ))  # fmt: skip
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.02)
    codes = list(t.models.whisper.tokenization_whisper.LANGUAGES)[:LANGUAGES]
    make: Any = t.GenerationConfig
    model.generation_config = make(
        **ids, no_timestamps_token_id=after + 5, max_initial_timestamp_index=50,
        is_multilingual=True, lang_to_id={f"<|{c}|>": begin + 1 + i for i, c in enumerate(codes)},
        task_to_id={"translate": after, "transcribe": after + 1}, prev_sot_token_id=after + 3,
        suppress_tokens=[end], begin_suppress_tokens=[220], max_length=448,
    )  # fmt: skip
    model.save_pretrained(folder)
    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{c}|>" for c in codes),
             "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>",
             "<|nospeech|>", "<|notimestamps|>",
             *(f"<|{i * 0.02:.2f}|>" for i in range(1501))]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(names)))
    t.WhisperFeatureExtractor().save_pretrained(folder)


def _tokenizer(names: list[str]) -> dict[str, Any]:
    letters = sorted(ByteLevel.alphabet())
    words = letters + [f"Ġ{a}{b}{c}" for a in letters[33:93] for b in letters[33:93]
                       for c in letters[33:53]]  # fmt: skip
    vocab = {word: i for i, word in enumerate(words[:TEXTS])}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}  # fmt: skip
    return {
        "version": "1.0", "normalizer": None, "pre_tokenizer": level, "post_processor": None,
        "decoder": level,
        "added_tokens": [{"id": TEXTS + i, "content": name, "special": True, **plain}
                         for i, name in enumerate(names)],
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }  # fmt: skip


def clip(folder: Path, name: str) -> None:
    """Writes a CLIP of ViT-B/32's sizes."""
    t.CLIPModel(t.CLIPConfig()).save_pretrained(folder)
    said = {"image_processor_type": "CLIPImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))


def qwen(folder: Path, name: str) -> None:
    """Writes a Qwen2.5-VL."""
    begin, pad, end = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
    config = t.Qwen2_5_VLConfig(
        **QWEN, image_token_id=ID[pad], vision_start_token_id=ID[begin],
        vision_end_token_id=ID[end], video_token_id=ID["<|video_pad|>"],
    )  # fmt: skip
    t.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    steps = {
        "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136,
        "max_pixels": 1 << 20, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(steps))


MAKERS: dict[str, Any] = {**dict.fromkeys(WHISPER, whisper), "clip": clip, "qwen2.5-vl": qwen}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MAKERS:
        sys.exit(__doc__)
    made = Path(sys.argv[2])
    made.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    MAKERS[sys.argv[1]](made, sys.argv[1])
