"""Tiny checkpoints of every family, written by transformers with fixed seeds, and its answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from family_zoo import MORE

os.environ.setdefault("OMP_NUM_THREADS", "1")

VOCAB = 300
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
GEMMA = {**SMALL, "head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 6}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "beta_fast": 3.0,
    "original_max_position_embeddings": 32,
}
ODD = {  # three query heads to a key head, sizes that no vector divides
    **SMALL, "vocab_size": 211, "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2,
    "num_attention_heads": 6, "head_dim": 12,
}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 8,
        "short_factor": [1.0, 1.1, 1.3, 1.7],
        "long_factor": [1.0, 2.0, 5.0, 9.0]}  # fmt: skip
MINISTRAL = {**YARN, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.3,
             "mscale": 1.0, "mscale_all_dim": 0.7}  # fmt: skip
DELTA = {  # three heads of values to one of keys, sizes that no vector divides
    **ODD, "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6, "linear_key_head_dim": 10, "linear_value_head_dim": 14,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e3, "partial_rotary_factor": 0.25},
}  # fmt: skip
SHARED = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
          "shared_expert_intermediate_size": 12}  # fmt: skip
GEMMA4 = {
    **ODD, "num_hidden_layers": 4, "num_key_value_heads": 3, "head_dim": 10, "global_head_dim": 16,
    "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 3.0, "vocab_size_per_layer_input": ODD["vocab_size"],
}  # fmt: skip
OLMO3_ROPES = {"full_attention": YARN, "sliding_attention": {"rope_type": "default",
               "rope_theta": 7000.0}}  # fmt: skip
BERT = {k: v for k, v in SMALL.items() if k not in ("num_key_value_heads", "eos_token_id")}
BERT |= {"bos_token_id": None, "pad_token_id": 1, "type_vocab_size": 2}
UNTYPED = {k: v for k, v in BERT.items() if k != "type_vocab_size"}
DEBERTA = {
    **BERT, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
    "type_vocab_size": 0,
}  # fmt: skip
T5 = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 10, "d_ff": 48, "num_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
}  # fmt: skip
# name -> (transformers config class, its arguments)
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCAB,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 128,
            "eos_token_id": None,
            "bos_token_id": None,
        },
    ),
    "llama2": ("LlamaConfig", SMALL),
    "llama3": (
        "LlamaConfig",
        {
            **SMALL,
            "head_dim": 16,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": LLAMA3,
        },
    ),
    "llama-linear": (
        "LlamaConfig",
        {**SMALL, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "llama-yarn": ("LlamaConfig", {**SMALL, "head_dim": 32, "rope_parameters": YARN}),
    "mistral": ("MistralConfig", {**SMALL, "sliding_window": 7}),
    "qwen2": (
        "Qwen2Config",
        {
            **SMALL,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 16}),
    "gemma2": ("Gemma2Config", GEMMA),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **GEMMA,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
# The families of tests/models/test_families.py, one of each kind of layer.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": (
        "Phi3Config",
        {
            **{k: v for k, v in ODD.items() if k != "head_dim"},
            "hidden_size": 60,  # heads of 10
            "original_max_position_embeddings": 8,
            "rope_parameters": {**LONG, "partial_rotary_factor": 0.8},
        },
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            **ODD,
            "num_hidden_layers": 3,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        {
            **ODD,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 20,
            "sliding_window": 5,
            "swiglu_limit": 0.7,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "lfm2": (
        "Lfm2Config",
        {
            **ODD,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_multiple_of": 4,
            "conv_bias": True,
        },
    ),
    "qwen3_5": ("Qwen3_5TextConfig", DELTA),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        {k: v for k, v in (DELTA | SHARED).items() if k != "intermediate_size"},
    ),
    "qwen3_next": ("Qwen3NextConfig", {**DELTA, **SHARED, "mlp_only_layers": [1]}),
    "gemma4": (
        "Gemma4TextConfig",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 7,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4_moe": (
        "Gemma4TextConfig",
        {
            **GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 2,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 20,
        },
    ),
    "smollm3": ("SmolLM3Config", {**ODD, "no_rope_layers": [1, 0]}),
    "ministral3": ("Ministral3Config", {**ODD, "rope_parameters": MINISTRAL}),
    "granite": (
        "GraniteConfig",
        {
            **ODD,
            "attention_multiplier": 0.3,
            "embedding_multiplier": 5.3,
            "residual_multiplier": 0.22,
            "logits_scaling": 1.7,
        },
    ),
    "olmo2": ("Olmo2Config", ODD),
    "olmo3": (
        "Olmo3Config",
        {
            **ODD,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": OLMO3_ROPES,
        },
    ),
}
FAMILIES |= MORE
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", BERT),
    "roberta": ("RobertaConfig", {**BERT, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaConfig", {**BERT, "type_vocab_size": 1}),
    "distilbert": (
        "DistilBertConfig",
        {
            "vocab_size": VOCAB,
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": 3,
            "n_heads": 4,
            "max_position_embeddings": 128,
        },
    ),
    "electra": ("ElectraConfig", {**BERT, "embedding_size": 20}),
    "electra-wide": ("ElectraConfig", {**BERT, "embedding_size": 32}),
    "albert": ("AlbertConfig", {**BERT, "embedding_size": 20}),
    "albert-groups": ("AlbertConfig", {**BERT, "num_hidden_layers": 4, "num_hidden_groups": 2}),
    "mpnet": ("MPNetConfig", UNTYPED),
    "modernbert": ("ModernBertConfig", {**UNTYPED, "num_hidden_layers": 4, "local_attention": 10}),
    "modernbert-biased": (
        "ModernBertConfig",
        {**UNTYPED, "norm_bias": True, "attention_bias": True, "mlp_bias": True},
    ),
    "nomic": ("NomicBertConfig", BERT),
    "jina-v3": ("JinaEmbeddingsV3Config", {**BERT, "type_vocab_size": 1}),
    "gte": ("GteConfig", {**BERT, "type_vocab_size": 1}),
    "gte-untyped": ("GteConfig", {**BERT, "type_vocab_size": 0}),
    "deberta": (
        "DebertaConfig",
        {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
         "position_biased_input": False, "type_vocab_size": 0},
    ),
    "deberta-near": (
        "DebertaConfig",
        {**BERT, "relative_attention": True, "pos_att_type": ["p2c"], "max_relative_positions": 6},
    ),
    "deberta-v3": ("DebertaV2Config", DEBERTA),
    "deberta-v2": (
        "DebertaV2Config",
        {**DEBERTA, "share_att_key": False, "position_buckets": -1, "norm_rel_ebd": "none",
         "max_relative_positions": 9, "position_biased_input": True, "type_vocab_size": 2},
    ),
    "deberta-c2p": ("DebertaV2Config", {**DEBERTA, "pos_att_type": ["c2p"]}),
    "t5": ("T5Config", T5),
    "t5-gated": ("T5Config", {**T5, "feed_forward_proj": "gated-gelu"}),
    "mt5": ("MT5Config", {**T5, "feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5Config", {**T5, "feed_forward_proj": "gated-gelu"}),
}  # fmt: skip


def write_model(
    name: str, folder: Path, dtype: str = "float32", changed: dict[str, Any] | None = None,
    **save: Any,
) -> Any:  # fmt: skip
    """Writes family `name` into `folder`, with arguments `changed`; gives the transformers model
    (eager attention)."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    kind, arguments = (DECODERS | FAMILIES | ENCODERS)[name]
    config = getattr(transformers, kind)(**arguments | (changed or {}))
    torch.manual_seed(0)
    auto = transformers.AutoModelForCausalLM if name not in ENCODERS else transformers.AutoModel
    if kind.endswith("T5Config"):
        made = getattr(transformers, kind.replace("Config", "EncoderModel"))(config)
    else:
        made = auto.from_config(config, attn_implementation="eager")
    model = made.eval()
    with torch.no_grad():  # away from zero biases and unit norms, which would hide mistakes
        kept = ("layer_scalar", "e_score_correction_bias")  # of checkpoints, though buffers
        scalars = (b for name, b in model.named_buffers() if name.endswith(kept))
        for parameter in (*model.parameters(), *scalars):
            scale = 0.1 if parameter.ndim == 1 else 0.15
            parameter.add_(torch.randn_like(parameter) * scale)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder, **save)
    return model


def reference_logits(model: Any, ids: Any) -> Any:
    """float32 [T, vocab] of transformers."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([list(map(int, ids))])).logits[0].float().numpy()


def reference_greedy(model: Any, ids: Any, found: Sequence[int]) -> list[int]:
    """What transformers would write after `ids`, and after each token of `found` that follows: one
    whole pass, no cache to trust. A greedy continuation is its own answer."""
    logits = reference_logits(model, [*ids, *found])
    return [int(i) for i in logits[len(ids) - 1 : -1].argmax(-1)]


CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "weaving needs a warp and a weft, and a loom to hold them",
    "naïve café: façade, jalapeño — 日本語のテキスト and emoji 😀👩‍🚀",
    "def f(x):\n    return x + 1\n",
] * 4


def write_tokenizer(folder: Path, kind: str = "bytes", **config: Any) -> Any:
    """A tokenizer of at most VOCAB tokens: "bytes" (GPT-2 style) or "fallback" (Llama style, bos
    added). Gives transformers' PreTrainedTokenizerFast of it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<unk>"]
    if kind == "bytes":
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = BpeTrainer(vocab_size=VOCAB, special_tokens=special, initial_alphabet=alphabet)
        raw.train_from_iterator(CORPUS, trainer)
    else:
        letters = sorted(set(CORPUS[0].replace(" ", "▁")))
        vocab = special + [f"<0x{i:02X}>" for i in range(256)] + letters
        table = {token: i for i, token in enumerate(vocab)}
        raw = Tokenizer(models.BPE(table, [], byte_fallback=True, unk_token="<unk>"))
        raw.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        raw.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        raw.add_special_tokens(special)
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **config
    )
    made.save_pretrained(folder)
    return made
