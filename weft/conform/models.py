"""Level "models": whole models of random weights, compiled for the device, against the oracle:
inference and training.

Logits must agree within the table. Under forced decoding (the oracle's tokens go to both), the
likeliest token must be the same at every step whose margin in the oracle exceeds the tolerance. A
tie within rounding is not an error.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.conform import packed
from weft.conform.gpt import GPT, GptSizes
from weft.conform.harness import check_close, check_equal
from weft.conform.report import Check, CheckFailed, Skip
from weft.core import dtypes as dt
from weft.core.tolerance import Tolerance, tolerance
from weft.importers.hf_config import Fields
from weft.models.run.runner import Runner
from weft.models.weights.random_weights import random_folder
from weft.optim import SGD, AdamW, Optimizer
from weft.program.device import Device
from weft.tensor import Tensor
from weft.training.model import TrainableDecoder, config_of, fresh_weights

Loss = Callable[[Tensor, Tensor], Tensor]
_LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 120, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MANY = {k: v for k, v in _LLAMA.items() if k not in ("num_key_value_heads", "rms_norm_eps")}
_LATENT = {
    **_EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 4, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}  # fmt: skip
_DELTA = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_ALONE = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 120, "state_size": 12}
_SPACE = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 12}
_KINDS = {"layer_types": ["linear_attention", "full_attention"]}
_TURNED = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3],
                               "rope_theta": 1e4}}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 120,
             "n_positions": 64},
    "llama": {"model_type": "llama", **_LLAMA},
    "mistral": {"model_type": "mistral", **_LLAMA, "sliding_window": 7},
    "qwen2": {"model_type": "qwen2", **_LLAMA, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_LLAMA, "head_dim": 32},
    "qwen2_vl": {"model_type": "qwen2_vl_text", **_LLAMA, **_TURNED},
    "qwen2_5_vl": {"model_type": "qwen2_5_vl_text", **_LLAMA, **_TURNED},
    "qwen3_vl": {"model_type": "qwen3_vl_text", **_LLAMA, **_TURNED, "head_dim": 16},
    "gemma2": {"model_type": "gemma2", **_LLAMA, "head_dim": 16, "sliding_window": 8,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {"model_type": "gemma3_text", **_LLAMA, "head_dim": 16, "sliding_window": 8},
    "gemma4": {"model_type": "gemma4_text", **_LLAMA, "head_dim": 16, "global_head_dim": 32,
               "num_key_value_heads": 2, "hidden_size_per_layer_input": 8, "sliding_window": 8,
               "layer_types": ["sliding_attention", "full_attention"]},
    "gemma3n": {"model_type": "gemma3n_text", **_LLAMA, "head_dim": 16, "num_hidden_layers": 3,
                "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 120,
                "sliding_window": 8, "altup_num_inputs": 2, "laurel_rank": 8,
                "num_kv_shared_layers": 1, "activation_sparsity_pattern": [0.5, 0.0, 0.0],
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "phi3": {"model_type": "phi3", **_LLAMA, "partial_rotary_factor": 0.5},
    "smollm3": {"model_type": "smollm3", **_LLAMA, "num_hidden_layers": 4},
    "ministral3": {"model_type": "ministral3", **_LLAMA, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 16}},
    "granite": {"model_type": "granite", **_LLAMA, "attention_multiplier": 0.2,
                "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "olmo2": {"model_type": "olmo2", **_LLAMA},
    "olmo3": {"model_type": "olmo3", **_LLAMA, "sliding_window": 8},
    "qwen3_moe": {"model_type": "qwen3_moe", **_LLAMA, **_EXPERTS},
    "gpt_oss": {"model_type": "gpt_oss", **_LLAMA, "head_dim": 16, "num_local_experts": 4,
                "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 8,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "lfm2": {"model_type": "lfm2", **_LLAMA, "layer_types": ["conv", "full_attention"]},
    "qwen3_5": {"model_type": "qwen3_5_text", **_LLAMA, **_DELTA},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", **_LLAMA, **_DELTA, **_EXPERTS,
                    "shared_expert_intermediate_size": 16},
    "qwen3_next": {"model_type": "qwen3_next", **_LLAMA, **_DELTA, **_EXPERTS,
                   "shared_expert_intermediate_size": 16},
    "mixtral": {"model_type": "mixtral", **_LLAMA, **_LOCAL},
    "olmoe": {"model_type": "olmoe", **_LLAMA, **_LOCAL, "num_experts": 4},
    "qwen2_moe": {"model_type": "qwen2_moe", **_LLAMA, **_EXPERTS,
                  "shared_expert_intermediate_size": 16},
    "granitemoe": {"model_type": "granitemoe", **_LLAMA, **_LOCAL, "attention_multiplier": 0.2,
                   "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "glm4_moe": {"model_type": "glm4_moe", **_LLAMA, **_EXPERTS, "n_routed_experts": 4,
                 "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
    "deepseek_v2": {"model_type": "deepseek_v2", **_LLAMA, **_LATENT, "q_lora_rank": None},
    "deepseek_v3": {"model_type": "deepseek_v3", **_LLAMA, **_LATENT, "q_lora_rank": 24,
                    "n_group": 2, "topk_group": 1, "num_nextn_predict_layers": 0},
    "ernie4_5_moe": {"model_type": "ernie4_5_moe", **_LLAMA, "moe_num_experts": 4, "moe_k": 2,
                     "moe_intermediate_size": 32},
    "llama4": {"model_type": "llama4_text", **_LLAMA, **_LOCAL, "head_dim": 16,
               "num_hidden_layers": 4, "intermediate_size_mlp": 48,
               "interleave_moe_layer_step": 2},
    "gpt_neox": {"model_type": "gpt_neox", **_MANY},
    "phi": {"model_type": "phi", **_LLAMA},
    "stablelm": {"model_type": "stablelm", **_LLAMA, "partial_rotary_factor": 0.5,
                 "qk_layernorm": True},
    "starcoder2": {"model_type": "starcoder2", **_LLAMA},
    "cohere": {"model_type": "cohere", **_LLAMA, "use_qk_norm": True, "logit_scale": 0.5},
    "cohere2": {"model_type": "cohere2", **_LLAMA, "sliding_window": 8, "logit_scale": 0.5,
                "layer_types": ["sliding_attention", "full_attention"]},
    "nemotron": {"model_type": "nemotron", **_LLAMA},
    "olmo": {"model_type": "olmo", **_LLAMA, "clip_qkv": 2.0},
    "gemma": {"model_type": "gemma", **_LLAMA, "head_dim": 16},
    "seed_oss": {"model_type": "seed_oss", **_LLAMA, "head_dim": 16},
    "exaone4": {"model_type": "exaone4", **_LLAMA, "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"]},
    "glm4": {"model_type": "glm4", **_LLAMA, "head_dim": 16},
    "ernie4_5": {"model_type": "ernie4_5", **_LLAMA, "head_dim": 16},
    "hunyuan": {"model_type": "hunyuan_v1_dense", **_LLAMA},
    "apertus": {"model_type": "apertus", **_LLAMA,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "mamba": {"model_type": "mamba", **_ALONE},
    "falcon_mamba": {"model_type": "falcon_mamba", **_ALONE},
    "mamba2": {"model_type": "mamba2", **_ALONE, "num_heads": 4, "head_dim": None, "n_groups": 2},
    "bamba": {"model_type": "bamba", **_LLAMA, **_SPACE, "attn_layer_indices": [1]},
    "granitemoehybrid": {"model_type": "granitemoehybrid", **_LLAMA, **_LOCAL, **_SPACE, **_KINDS,
                         "shared_intermediate_size": 48},
    "falcon_h1": {"model_type": "falcon_h1", **_LLAMA, **_SPACE, "mamba_d_ssm": None},
    "nemotron_h": {"model_type": "nemotron_h", **_MANY, "num_experts_per_tok": 2,
                   "num_key_value_heads": 2,
                   "n_routed_experts": 4, "moe_intermediate_size": 32, "head_dim": 16,
                   "moe_shared_expert_intermediate_size": 48, "mamba_num_heads": 4,
                   "mamba_head_dim": 20, "n_groups": 2, "ssm_state_size": 12},
    "jamba": {"model_type": "jamba", **_LLAMA, **_LOCAL, "num_experts": 4, "mamba_d_state": 12,
              "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
}  # fmt: skip
_BERT = {
    "model_type": "bert", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 120, "max_position_embeddings": 64,
}  # fmt: skip
_STEPS = 12


def _pair(device: Device, config: dict[str, Any], dtype: str) -> tuple[Any, Any]:
    """The model on the device and on the oracle, from one folder of random weights."""
    if not device.supports(dt.as_dtype(dtype)):
        raise Skip(f"{device.info.id} does not store {dtype}")
    with tempfile.TemporaryDirectory() as name:
        folder = random_folder(Path(name) / "model", {**config, "dtype": dtype}, 3, 0.2)
        model = weft.load(folder, device=device, context=64)
        return model, weft.load(folder, device="oracle", context=64)


def _logits(device: Device, family: str, dtype: str) -> float:
    model, oracle = _pair(device, CONFIGS[family], dtype)
    ids = np.random.default_rng(1).integers(0, 120, 21).tolist()
    got, want = model.logits(ids), oracle.logits(ids)
    worst = check_close(got, want, "model", dt.as_dtype(dtype))
    forced(model.runner(), oracle.runner(), ids, tolerance("model", dt.as_dtype(dtype)))
    return worst


def forced(model: Runner, oracle: Runner, ids: list[int], tol: Tolerance) -> None:
    """Forced decoding: both see the oracle's tokens; the likeliest next one must agree."""
    runners = model, oracle
    rows = [r.prefill(0, ids) for r in runners]
    for step in range(_STEPS):
        got, want = rows
        best, top = int(want.argmax()), int(got.argmax())
        slack = 2 * (tol.atol + tol.rtol * abs(float(want[best])))
        if top != best and want[best] - want[top] > slack:
            raise CheckFailed(f"step {step}: token {top}, the oracle's is {best}")
        rows = [r.rows([best], [0], [len(ids) + step])[0] for r in runners]


def _packed(device: Device, inputs: dt.DType) -> float:
    """Matrices packed in five ways; every token is the oracle's, whatever its margin. Where inputs
    are quantised, codes that differ by a rounding before move the logits more than sums do."""
    config = replace(config_of(Fields(CONFIGS["llama"], "config")), act_dtype=inputs)
    model, oracle = packed.model(device, config, 64)
    ids = np.random.default_rng(1).integers(0, 120, 21).tolist()
    got, want = (r.prefill(0, ids) for r in (model, oracle))
    worst = check_close(got, want, "model", dt.float16 if inputs is dt.int8 else dt.float32)
    forced(model, oracle, ids, Tolerance(0, 0, "every token the same"))
    return worst


def _batch(device: Device) -> float:
    """Sequences give the same tokens alone and in a batch of different lengths."""
    model, _ = _pair(device, CONFIGS["llama"], "float32")
    prompts = [[5, 7, 9], [11], [3, 1, 4, 1, 5, 9, 2, 6], [100, 2]]
    together = model.generate(prompts, max_new_tokens=8)
    for prompt, one in zip(prompts, together):
        check_equal(np.array(model.generate(prompt, max_new_tokens=8).ids), np.array(one.ids))
    return 0.0


def _encoder(device: Device) -> float:
    model, oracle = _pair(device, _BERT, "float32")
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, 120, n).tolist() for n in (3, 17, 9)]
    return check_close(model.embed_ids(rows), oracle.embed_ids(rows), "model", dt.float32)


# -- training -------------------------------------------------------------------------------------

_GPT = GptSizes(layers=2, width=32, heads=2, context=12, batch=2, vocab=40)


def _gpt_loss() -> tuple[Loss, list[tuple[str, Tensor]]]:
    model = GPT(_GPT)
    return model, list(model.named_parameters())


def _llama_loss() -> tuple[Loss, list[tuple[str, Tensor]]]:
    config = config_of(Fields(CONFIGS["llama"], "config"))
    model = TrainableDecoder(config, fresh_weights(config, 5), _GPT.context)
    return model.loss, list(model.named_parameters())


def _curve(make: Callable[[], Any], optimiser: str, device: str | None, steps: int) -> np.ndarray:
    """The loss of each step on one batch: compiled for a device, or with NumPy alone."""
    loss_of, named = make()
    opt: Optimizer
    if optimiser == "sgd":
        opt = SGD(named, lr=0.1, momentum=0.9)
    else:
        opt = AdamW(named, lr=1e-2, weight_decay=0.1)

    def train_step(ids: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = loss_of(ids, targets)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    run = train_step if device is None else weft.compile(train_step, device=device)
    batch = [weft.tensor(a) for a in _GPT.data()]
    return np.array([run(*batch).item() for _ in range(steps)], np.float32)


def _training(device: Device, make: Callable[[], Any], optimiser: str, steps: int) -> float:
    got = _curve(make, optimiser, device.info.id, steps)
    want = _curve(make, optimiser, None, steps)
    if not want[-1] < want[0]:
        raise CheckFailed(f"the oracle's loss went from {want[0]:.3f} to {want[-1]:.3f}")
    return check_close(got, want, "model", dt.float32)


def checks(device: Device) -> Iterator[Check]:
    """Every family in f32; one in narrow dtypes, one packed; batches; an encoder; loss curves."""
    for family in CONFIGS:
        label = f"{family} float32: logits and forced decoding"
        yield label, partial(_logits, device, family, "float32")
    for dtype in ("float16", "bfloat16"):
        label = f"llama {dtype}: logits and forced decoding"
        yield label, partial(_logits, device, "llama", dtype)
    for inputs in (dt.float32, dt.int8):
        label = f"llama of packed weights, {inputs.name} inputs: logits and forced decoding"
        yield label, partial(_packed, device, inputs)
    yield "llama: alone as in a batch", partial(_batch, device)
    yield "bert: embeddings", partial(_encoder, device)
    steps = 4 if device.info.kind == "interp" else 20  # the interpreter takes seconds for one
    for name, make in (("gpt", _gpt_loss), ("llama", _llama_loss)):
        for optimiser in ("sgd", "adamw"):
            label = f"{name}: loss of {steps} training steps, {optimiser}"
            yield label, partial(_training, device, make, optimiser, steps)
