"""Tiny random models with an encoder and a decoder, of odd sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SIZES = {
    "vocab_size": 211, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 3, "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 72,
}  # fmt: skip


def whisper(folder: Path, seed: int = 3, scale: float = 0.25) -> Any:
    """Writes a Whisper that hears two seconds at once, and returns transformers' model."""
    import torch
    import transformers as t

    torch.manual_seed(seed)
    ids = {"decoder_start_token_id": 90, "eos_token_id": 80, "pad_token_id": 80}
    model = t.WhisperForConditionalGeneration(t.WhisperConfig(
        **SIZES, **ids, num_mel_bins=20, max_source_positions=100, max_target_positions=60,
        bos_token_id=80, suppress_tokens=None, begin_suppress_tokens=None,
    ))  # fmt: skip
    shake(model, scale)
    model.generation_config = t.GenerationConfig(
        **ids, no_timestamps_token_id=108, max_initial_timestamp_index=50, is_multilingual=True,
        lang_to_id={"<|en|>": 91, "<|de|>": 92}, task_to_id={"transcribe": 95, "translate": 96},
        prev_sot_token_id=97, suppress_tokens=[1, 2, 95, 96, 97], begin_suppress_tokens=[5, 80],
        max_length=60, alignment_heads=[[1, 0], [1, 2]],
    )  # fmt: skip
    model.save_pretrained(folder)
    words = {chr(33 + i) if i < 80 else f"<{i}>": i for i in range(211)}
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(words)))
    return model


def moonshine(folder: Path, scale: float = 0.2) -> Any:
    """Writes a Moonshine, and returns transformers' model."""
    import torch
    import transformers as t

    torch.manual_seed(3)
    model = t.MoonshineForConditionalGeneration(t.MoonshineConfig(
        vocab_size=211, hidden_size=60, intermediate_size=96, encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2, encoder_num_attention_heads=3, decoder_num_attention_heads=3,
        max_position_embeddings=64, partial_rotary_factor=0.9,
    ))  # fmt: skip
    shake(model, scale)
    model.save_pretrained(folder)
    words = {chr(33 + i) if i < 80 else f"<{i}>": i for i in range(211)}
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(words)))
    return model


def parakeet(folder: Path, scale: float = 0.15) -> Any:
    """Writes a Parakeet with a CTC head, and returns transformers' model."""
    import torch
    import transformers as t

    torch.manual_seed(3)
    inner = {
        "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "scale_input": True,
        "intermediate_size": 64, "conv_kernel_size": 5, "subsampling_conv_channels": 6,
        "num_mel_bins": 24,
    }  # fmt: skip
    config: Any = t.ParakeetCTCConfig(vocab_size=131, pad_token_id=130, encoder_config=inner)
    model = t.ParakeetForCTC(config)
    shake(model, scale)
    with torch.no_grad():
        for name, kept in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                kept.add_(torch.rand_like(kept))
    model.save_pretrained(folder)
    steps = t.ParakeetFeatureExtractor(feature_size=24)
    steps.save_pretrained(folder)
    words = {chr(33 + i) if i < 80 else f"<{i}>": i for i in range(131)}
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(words)))
    return model


TRANSLATORS = ("t5", "bart", "marian")


def translator(kind: str) -> Any:
    """Returns transformers' model of one that reads and writes text."""
    import torch
    import transformers as t

    torch.manual_seed(5)
    sizes = {**SIZES, "max_position_embeddings": 64, "forced_eos_token_id": None}
    if kind == "t5":
        return t.T5ForConditionalGeneration(t.T5Config(
            vocab_size=131, d_model=32, d_kv=12, d_ff=60, num_layers=2, num_heads=3,
            decoder_start_token_id=0, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
        ))  # fmt: skip
    if kind == "bart":
        return t.BartForConditionalGeneration(t.BartConfig(**sizes, decoder_start_token_id=2))
    ids = {"decoder_start_token_id": 130, "pad_token_id": 130, "eos_token_id": 0}
    return t.MarianMTModel(t.MarianConfig(
        **sizes, **ids, scale_embedding=True, activation_function="swish",
    ))  # fmt: skip


def learned(model: Any, steps: int = 150) -> tuple[Any, Any]:
    """Teaches a model 24 pairs of texts by heart, and returns them: ids [24, 8] and [24, 6]."""
    import torch

    given = torch.randint(3, 130, (24, 14), generator=torch.Generator().manual_seed(0))
    sources, targets = given[:, :8], given[:, 8:]
    begin = torch.full((24, 1), model.config.decoder_start_token_id)
    fed = torch.cat([begin, targets[:, :-1]], 1)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    model.eval()
    for _ in range(steps):
        rows = model(sources, decoder_input_ids=fed).logits
        loss = torch.nn.functional.cross_entropy(rows.flatten(0, 1), targets.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return sources, targets


def _tokenizer(words: dict[str, int]) -> dict[str, Any]:
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": f"<{i}>", "special": True, **special} for i in range(80, len(words))
    ]
    return {
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "!"},
    }  # fmt: skip


def shake(model: Any, scale: float) -> None:
    """Moves every weight, so that none is 0 or 1."""
    import torch

    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:  # sines are made, not stored
                p.add_(torch.randn_like(p) * scale)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    model.eval()
