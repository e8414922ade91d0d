"""Families with state spaces in GGUF files: rows of the table `family_gguf`.

`ssm.inner_size` gives a field that is the channels divided by another size; `gguf_families` divides
it. Files of Falcon-H1 have its factors in their weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.models.arch.gguf_row import GgufFamily, Key


def _sizes(heads: str, inner: str, state: str, taps: str, groups: str = "") -> tuple[Key, ...]:
    found = (
        Key("ssm.time_step_rank", heads, needed=True),
        Key("ssm.inner_size", inner, needed=True),
        Key("ssm.state_size", state, needed=True),
        Key("ssm.conv_kernel", taps, needed=True),
        Key("ssm.dt_b_c_rms", ""),
    )
    return (*found, Key("ssm.group_count", groups, needed=True)) if groups else found


_EPS = Key("attention.layer_norm_rms_epsilon", "layer_norm_epsilon", "norm_eps", needed=True)
_ALONE = (
    _EPS,
    *(Key(name, "") for name in ("context_length", "attention.head_count",
                                 "attention.head_count_kv", "feed_forward_length")),
)  # fmt: skip
_MAMBA = (*_ALONE, *_sizes("time_step_rank", "expand", "state_size", "conv_kernel"))
_HYBRID = ("mamba_d_state", "mamba_d_conv", "mamba_n_groups")
_NAMES = {"shortconv.conv": "ssm_conv1d"}
_EXPERTS_USED = Key("expert_used_count", "num_experts_per_tok")

STATE_SPACES: Mapping[str, GgufFamily] = {
    "mamba": GgufFamily("mamba", _MAMBA, names=_NAMES, written=False),
    "falcon_mamba": GgufFamily(
        "mamba", _MAMBA, flag="ssm.dt_b_c_rms", names=_NAMES, written=False
    ),
    "mamba2": GgufFamily(
        "mamba2",
        (*_ALONE, *_sizes("num_heads", "expand", "state_size", "conv_kernel", "n_groups")),
        {"head_dim": None}, without=("attention.key_length",), names=_NAMES, written=False,
    ),
    "granitemoehybrid": GgufFamily(
        "granitehybrid",
        (
            *_sizes("mamba_n_heads", "mamba_expand", *_HYBRID),
            Key("attention.scale", "attention_multiplier", "scale"),
            Key("embedding_scale", "embedding_multiplier", "embed_scale"),
            Key("residual_scale", "residual_multiplier", "residual_scale"),
            Key("logit_scale", "logits_scaling", "logit_divisor"),
            Key("expert_count", "num_local_experts"), _EXPERTS_USED,
            Key("expert_shared_feed_forward_length", "shared_intermediate_size"),
            Key("rope.scaling.finetuned", ""),
        ),
        {"mamba_d_head": "auto"},
        other="linear_attention", turned=True, names=_NAMES, written=False,
    ),
    "bamba": GgufFamily(
        "granitehybrid",
        (
            *_sizes("mamba_n_heads", "mamba_expand", *_HYBRID),
            Key("rope.dimension_count", ".partial_rotary_factor"),
            Key("rope.scaling.finetuned", ""),
        ),
        {"mamba_d_head": "auto"},
        flag="rope.scaling.finetuned", lacks="attention.scale",
        other="linear_attention", turned=True, names=_NAMES, written=False,
    ),
    "falcon_h1": GgufFamily(
        "falcon-h1", _sizes("mamba_n_heads", "mamba_d_ssm", *_HYBRID),
        {"mamba_d_head": "auto", "mamba_norm_before_gate": False},
        names={**_NAMES, "ffn_norm.weight": "ffn_norm"}, written=False,
    ),
    "nemotron_h": GgufFamily(
        "nemotron_h",
        (
            _EPS,
            *_sizes("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "conv_kernel",
                    "n_groups"),
            Key("expert_count", "n_routed_experts"), _EXPERTS_USED,
            Key("expert_feed_forward_length", "moe_intermediate_size"),
            Key("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
            Key("expert_shared_count", "n_shared_experts"),
            Key("expert_weights_norm", "norm_topk_prob"),
            Key("expert_weights_scale", "routed_scaling_factor"),
            Key("expert_group_count", "n_group"), Key("moe_latent_size", "moe_latent_size"),
            Key("nextn_predict_layers", "num_nextn_predict_layers"),
        ),
        with_experts="nemotron_h_moe",
        other="linear_attention", names={**_NAMES, "ffn_norm": "attn_norm"}, written=False,
    ),
    "jamba": GgufFamily(
        "jamba",
        (
            *_sizes("mamba_dt_rank", "mamba_expand", "mamba_d_state", "mamba_d_conv"),
            Key("expert_count", "num_experts"), _EXPERTS_USED,
        ),
        other="linear_attention", names=_NAMES, written=False,
    ),
}  # fmt: skip
