"""Decoder families as llama.cpp writes them: turns a GGUF file's metadata into a DecoderConfig.

Facts missing from the metadata follow from the tensors: biases, a separate head. Facts in neither
(an activation, the sliding layers) are fixed for the family, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.importers.gguf import Gguf
from weft.models.arch.config import DecoderConfig, Delta, Layer, Rope
from weft.models.arch.family_parts import (
    MAX_EXPERTS,
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    checked_heads,
    sharing,
)
from weft.models.weights.gguf_source import (
    MORE_TOKENS,
    ROPE_FACTORS,
    Source,
    base,
    divisors_of,
    eps_of,
    original_of,
    rms,
    rope_of,
    windows_of,
)

# Architectures with rows of queries and keys in interleaved rope order.
TURNED = ("llama", "smollm3", "mistral3", "granite")
# Keys that can change the computation, and the value that means "not used".
_PLAIN: dict[str, Any] = {
    "expert_count": 0, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0,
    "attention.causal": True, "attention.shared_kv_layers": 0, "use_parallel_residual": False,
    "logit_scale": 1.0, "residual_scale": 1.0, "embedding_scale": 1.0,
    "rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0,
}  # fmt: skip
# Keys that llama.cpp's graph of these architectures does not use, and sizes known from tensors.
_INERT = (
    "rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.dimension_sections",
    "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "attention.key_length", "attention.value_length", "vocab_size", "tensor_data_layout",
    "feed_forward_length", "expert_used_count", "expert_feed_forward_length",
    "attention.sliding_window", "interleave_moe_layer_step", "rope.freq_base",
)  # fmt: skip
# Keys of _PLAIN that a family reads.
_READ = {
    "granite": ("logit_scale", "residual_scale", "embedding_scale"),
    "mistral3": ("rope.scaling.yarn_log_multiplier",),
    "phi3": ("rope.scaling.attn_factor",),
    "qwen3moe": ("expert_count",),
    "gpt-oss": ("expert_count",),
    "qwen3next": ("expert_count",),
    "qwen35moe": ("expert_count",),
    "gemma4": ("expert_count", "attention.shared_kv_layers"),
}


def read_config(gguf: Gguf) -> DecoderConfig:
    """Returns the config of the decoder in a file. Raises ModelError for an unsupported
    architecture, and for metadata that are missing or invalid."""
    arch = gguf.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ModelError(
            f"{gguf.path}: architecture {arch!r:.60} is not supported; supported in GGUF: {known}"
        )
    c = Source(gguf, arch)
    for key, plain in _PLAIN.items():
        if c.value(key) not in (None, plain) and key not in _READ.get(arch, ()):
            raise c.refuse(key, f"other than {plain!r} is not supported")
    made = FAMILIES[arch](c)
    say_unknown(f"{gguf.path}: {arch}", c.unread(), _INERT)
    return made


# -- families -------------------------------------------------------------------------------------


def _gpt2(c: Source) -> DecoderConfig:
    eps = c.number("attention.layer_norm_epsilon", 0.0, 1.0)
    made = base(c, "gpt2", norm="layer", norm_eps=eps, ropes=(), act="gelu_tanh")
    made = replace(made, gated=False, fused_qkv=True, qkv_bias=True, out_bias=True, mlp_bias=True)
    return made


def _gemma(c: Source, family: str, every: int, large: int) -> DecoderConfig:
    """Reads what Gemma 2 and 3 share. `large` is the number of layers of the 27B model, which
    scales its scores differently."""
    made = rms(c, family, every, act="gelu_tanh", norm_offset=1.0, post_norms=True)
    given = c.value("attention.scale") is not None
    scale = (made.hidden // made.heads) ** -0.5 if made.layers == large else made.head_dim**-0.5
    return replace(
        made,
        embed_scale=made.hidden**0.5,
        embed_scale_rounded=True,
        scale=made.scale if given else scale,
    )


def _gemma2(c: Source) -> DecoderConfig:
    made = _gemma(c, "gemma2", 2, 46)
    return replace(
        made,
        windows=windows_of(c, made.layers, 2, 4096),
        attn_softcap=c.number("attn_logit_softcapping", 0.0, 1e6, 50.0),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 30.0),
    )


def _gemma3(c: Source) -> DecoderConfig:
    made = _gemma(c, "gemma3_text", 6, 62)
    local = Rope(c.number("rope.freq_base_swa", 1.0, 1e12, 10000.0))
    return replace(
        made,
        qk_norm="head",
        ropes=(*made.ropes, local),
        layer_rope=tuple(1 if made.window(i) else 0 for i in range(made.layers)),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def _gemma4(c: Source) -> DecoderConfig:
    """Reads Gemma 4. The file's usual sizes are those of full layers; its tensors show which
    projections exist. The converter encodes pairs that do not turn in the rope's divisors."""
    made = base(c, "gemma4_text", mixed=True, norm_eps=eps_of(c), act="gelu_tanh", post_norms=True)
    windows = windows_of(c, made.layers, 6) or (0,) * made.layers
    size = c.integer("attention.key_length_swa", 2, MAX_HEAD_DIM, made.head_dim)
    if c.integer("attention.value_length_swa", 1, MAX_HIDDEN, size) != size:
        raise c.refuse("attention.value_length_swa", f"not that of keys, which is {size}")
    if c.integer("rope.dimension_count_swa", 2, MAX_HIDDEN, size) != size:
        raise c.refuse("rope.dimension_count_swa", f"rotating a part of {size} is not supported")
    local = Rope(c.number("rope.freq_base_swa", 1.0, 1e12, 1e4), rotary=size)
    made = replace(
        made,
        qk_norm="head",
        value_norm=True,
        scale=1.0,
        ropes=(replace(rope_of(c, made.head_dim), rotary=made.head_dim), local),
        layer_rope=tuple(1 if w else 0 for w in windows),
        windows=windows,
        by_layer=_gemma4_layers(c, made, windows, size),
        layer_input=c.integer("embedding_length_per_layer_input", 0, MAX_HIDDEN, 0),
        layer_scale=c.has("blk.0.layer_output_scale.weight"),
        embed_scale=made.hidden**0.5,
        embed_scale_rounded=True,
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )
    if not c.has("blk.0.ffn_gate_inp.weight"):
        return made
    return replace(
        _experts(c, made),
        feed_forwards=("dense and experts",) * made.layers,
        fused_experts="halves" if c.has("blk.0.ffn_gate_up_exps.weight") else "",
    )


def _gemma4_layers(
    c: Source, made: DecoderConfig, windows: tuple[int, ...], size: int
) -> tuple[Layer, ...]:
    """Returns the layers; `size` is the head size of sliding layers."""
    kv = c.each("attention.head_count_kv", MAX_HEADS, made.layers)
    ffn = c.each("feed_forward_length", MAX_FFN, made.layers)
    layers = []
    for i, window in enumerate(windows):
        head_dim = size if window else made.head_dim
        checked_heads(c.where, made.hidden, made.heads, kv[i], head_dim)
        both = c.has(f"blk.{i}.attn_v.weight")
        layers.append(Layer(head_dim, kv[i], ffn[i], "qkv" if both else "qk"))
    shared = c.integer("attention.shared_kv_layers", 0, made.layers - 1, 0)
    return sharing(c.where, layers, windows, made.layers - shared)


def _experts(c: Source, made: DecoderConfig) -> DecoderConfig:
    """Adds experts in all layers, with weights that sum to 1."""
    experts = c.integer("expert_count", 1, MAX_EXPERTS)
    return replace(
        made,
        experts=experts,
        experts_used=c.integer("expert_used_count", 1, experts),
        expert_ffn=c.integer("expert_feed_forward_length", 1, MAX_FFN),
        expert_norm=True,
        feed_forwards=("experts",) * made.layers,
    )


def _gpt_oss(c: Source) -> DecoderConfig:
    """Reads gpt-oss; gate and up are separate tensors."""
    made = rms(c, "gpt_oss", 2, sinks=True, mlp_bias=True, gate_limit=7.0)
    ropes = (replace(made.ropes[0], truncate=False),)
    return _experts(c, replace(made, ropes=ropes))


def _lfm2(c: Source) -> DecoderConfig:
    """Reads LFM2; layers without key/value heads are convolutions."""
    taps = c.integer("shortconv.l_cache", 1, 64)
    more = {"norm_eps": eps_of(c), "qk_norm": "head", "conv_taps": taps}
    made = base(c, "lfm2", hybrid=True, **more)
    heads = c.value("attention.head_count_kv")
    heads = heads if isinstance(heads, list) else [heads] * made.layers
    if len(heads) != made.layers:
        raise c.refuse("attention.head_count_kv", f"expected {made.layers} numbers")
    mixers = tuple("attention" if n else "conv" for n in heads)
    return replace(
        made, mixers=mixers, qkv_bias=False, out_bias=False, ropes=(rope_of(c, made.head_dim),)
    )


def _delta_net(c: Source, family: str, **delta: Any) -> DecoderConfig:
    """Reads Qwen 3.5 and Qwen3-Next. The last layers of `block_count` may predict further
    tokens."""
    heads, values = (
        c.integer(f"ssm.{key}", 1, MAX_HEADS) for key in ("group_count", "time_step_rank")
    )
    inner = c.integer("ssm.inner_size", 1, MAX_HIDDEN)
    if values % heads or inner % values:
        raise c.refuse("ssm.inner_size", f"{values} heads of values share {heads} of keys")
    key_dim = c.integer("ssm.state_size", 1, MAX_HEAD_DIM)
    sizes = Delta(heads, values, key_dim, inner // values, **delta)
    more: dict[str, Any] = {"norm_eps": eps_of(c), "qk_norm": "head", "output_gate": True}
    made = base(c, family, hybrid=True, delta=sizes, norm_offset=1.0, **more)
    layers = made.layers - c.integer(MORE_TOKENS, 0, made.layers - 1, 0)
    every = c.integer("full_attention_interval", 1, MAX_LAYERS, 4)
    return replace(
        made,
        layers=layers,
        conv_taps=c.integer("ssm.conv_kernel", 1, 64),
        mixers=tuple("delta" if (i + 1) % every else "attention" for i in range(layers)),
        ropes=(rope_of(c, made.head_dim, partial=True),),
    )


def _shared(c: Source, made: DecoderConfig) -> DecoderConfig:
    """Adds experts, and one that all tokens use."""
    width = c.integer("expert_shared_feed_forward_length", 1, MAX_FFN)
    return replace(_experts(c, made), shared_ffn=width)


def _qwen3_next(c: Source) -> DecoderConfig:
    """Reads Qwen3-Next; older files hold one weight where newer ones hold two."""
    fused = {"fused_ba": True, "fused_qkvz": c.has("blk.0.ssm_in.weight")}
    return _shared(c, _delta_net(c, "qwen3_next", **fused))


def _phi3(c: Source) -> DecoderConfig:
    """Reads Phi-3; its fused gate and up projection is called ffn_up."""
    made = base(c, "phi3", norm_eps=eps_of(c), fused_qkv=True, fused_gate=True)
    rope = rope_of(c, made.head_dim, partial=True)
    pairs = (rope.rotary or made.head_dim) // 2
    short, long = (divisors_of(c, name, pairs) for name in ROPE_FACTORS)
    if bool(short) != bool(long):
        raise ModelError(f"{c.where}: one of {', '.join(ROPE_FACTORS)} is missing")
    if long:
        magnitude = c.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
        rope = replace(rope, scaling="longrope", divisors=short, long_divisors=long)
        rope = replace(rope, original=original_of(c), magnitude=magnitude)
    return replace(made, ropes=(rope,), windows=windows_of(c, made.layers, 0))


def _smollm3(c: Source) -> DecoderConfig:
    made = rms(c, "smollm3", 1)
    return replace(made, layer_rope=tuple(0 if (i + 1) % 4 else None for i in range(made.layers)))


def _mistral3(c: Source) -> DecoderConfig:
    made = rms(c, "ministral3", 0)
    beta = c.number("attention.temperature_scale", 0.0, 1e3, 0.0)
    if beta and made.ropes[0].scaling is None:
        made = replace(made, ropes=(replace(made.ropes[0], original=original_of(c)),))
    return replace(made, query_growth=beta)


def _granite(c: Source) -> DecoderConfig:
    return replace(
        rms(c, "granite", 1),
        scale=c.number("attention.scale", 1e-6, 1e6, 1.0),
        embed_scale=c.number("embedding_scale", 1e-6, 1e6, 1.0),
        residual_scale=c.number("residual_scale", 1e-6, 1e6, 1.0),
        logit_divisor=c.number("logit_scale", 1e-6, 1e6, 1.0),
    )


def _olmo2(c: Source) -> DecoderConfig:
    """Reads OLMo 2, and OLMo 3 if layers slide; sliding layers ignore the rope's scaling."""
    made = rms(c, "olmo2", 4, pre_norms=False, post_norms=True, qk_norm="whole")
    if not any(made.windows):
        return made
    layer_rope = tuple(1 if w else 0 for w in made.windows)
    theta = c.number("rope.freq_base_swa", 1.0, 1e12, made.ropes[0].theta)
    ropes = (*made.ropes, Rope(theta))
    return replace(made, family="olmo3", ropes=ropes, layer_rope=layer_rope)


FAMILIES: Mapping[str, Callable[[Source], DecoderConfig]] = {
    "gpt2": _gpt2,
    "llama": lambda c: rms(c, "llama", 0),  # Mistral's models too, in which all layers slide
    "qwen2": lambda c: rms(c, "qwen2", 1),
    "qwen3": lambda c: rms(c, "qwen3", 1, qk_norm="head"),
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "qwen3moe": lambda c: _experts(c, rms(c, "qwen3_moe", 1, qk_norm="head")),
    "gpt-oss": _gpt_oss,
    "lfm2": _lfm2,
    "phi3": _phi3,
    "smollm3": _smollm3,
    "mistral3": _mistral3,
    "granite": _granite,
    "qwen35": lambda c: _delta_net(c, "qwen3_5_text", tiled=True),
    "qwen35moe": lambda c: _shared(c, _delta_net(c, "qwen3_5_moe_text", tiled=True)),
    "qwen3next": _qwen3_next,
    "olmo2": _olmo2,
}
