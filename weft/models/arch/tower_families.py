"""Vision towers of each family: turns the parts of a config.json into a TowerConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.models.arch.tower_config import Projector, TowerActivation, TowerConfig

MOST = 1 << 16  # elements of a width
_ACTS: Mapping[str, TowerActivation] = {
    "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu", "relu": "relu",
}  # fmt: skip


def side(c: Fields, name: str, default: int) -> int:
    """Returns a size in pixels, given as one number or as two equal ones."""
    found = c.integers(name, 1, 1 << 14) or (default,)
    if len(set(found)) != 1:
        raise ModelError(f"{c.where}: {name} is {list(found)}; expected a square")
    return int(found[0])


def act(c: Fields, name: str, default: str) -> TowerActivation:
    """Returns an activation function."""
    return _ACTS[c.text(name, default, tuple(_ACTS))]


def _base(c: Fields, family: str, usual: Mapping[str, Any], **more: Any) -> TowerConfig:
    hidden = c.integer(usual.get("hidden", "hidden_size"), 1, MOST, usual.get("width", 768))
    heads = c.integer(usual.get("heads", "num_attention_heads"), 1, 1024, usual.get("count", 12))
    if hidden % heads:
        raise ModelError(f"{c.where}: hidden_size {hidden} is not a multiple of {heads} heads")
    patch = side(c, "patch_size", usual.get("patch", 16))
    image = side(c, "image_size", usual.get("image", 224)) if usual.get("image", 1) else 0
    made: dict[str, Any] = {
        "family": family, "hidden": hidden, "heads": heads, "patch": patch, "image": image,
        "layers": c.integer(
            usual.get("layers", "num_hidden_layers"), 1, 1024, usual.get("depth", 12)
        ),
        "ffn": c.integer("intermediate_size", 1, MOST, usual.get("ffn", 4 * hidden)),
        "channels": c.integer(usual.get("channels", "num_channels"), 1, 16, 3),
        "eps": c.number("layer_norm_eps", 0.0, 1.0, usual.get("eps", 1e-6)),
        "act": act(c, "hidden_act", usual.get("act", "gelu")), "table": image // patch,
    }  # fmt: skip
    return TowerConfig(**(made | more))


def clip(c: Fields) -> TowerConfig:
    """Reads CLIP's tower: a class, and a norm before the layers."""
    usual = {"patch": 32, "ffn": 3072, "act": "quick_gelu", "eps": 1e-5}
    return _base(c, "clip", usual, leads=1, patch_bias=False, first_norm=True)


def siglip(c: Fields) -> TowerConfig:
    usual = {"ffn": 3072, "act": "gelu_pytorch_tanh"}
    return _base(c, "siglip", usual, last_norm=True)


def gemma4(c: Fields) -> TowerConfig:
    """Reads Gemma 4's tower: pictures of any size, two tables of positions, a rope by row and
    column, norms before and after each part, and of queries, keys and values."""
    heads = c.integer("num_attention_heads", 1, 1024, 12)
    usual = {"ffn": 3072, "image": 0, "depth": 16}
    made = _base(
        c.having({**c.data, "hidden_act": c.text("hidden_activation", "gelu_pytorch_tanh")}),
        "gemma4", usual, norm="rms", eps=c.number("rms_norm_eps", 0.0, 1.0, 1e-6), gated=True,
        qk_norm="head", v_norm=True, scale=1.0, post_norms=True, ropes=True,
        theta=_theta(c, 100.0), patch_bias=False, qkv_bias=False, out_bias=False, mlp_bias=False,
        axes=c.integer("position_embedding_size", 1, 1 << 20, 10240), table=0,
        clips=c.flag("use_clipped_linears", False),
    )  # fmt: skip
    same = c.integer("num_key_value_heads", 1, 1024, heads) == heads
    if made.head_dim % 4:
        raise ModelError(f"{c.where}: heads of {made.head_dim} do not divide into four parts")
    if not same or c.integer("head_dim", 1, 1024, made.head_dim) != made.head_dim:
        raise ModelError(f"{c.where}: heads of keys, or of another size than the width's share, "
                         "are not supported in a tower")  # fmt: skip
    if c.flag("attention_bias", False):
        raise ModelError(f"{c.where}: attention_bias is not supported in this tower")
    pool = c.integer("pooling_kernel_size", 1, 64, 3)
    standard = c.flag("standardize", False)
    return replace(made, projector=Projector("pooled", 0, pool, bias=False, standard=standard))


def gemma4_unified(c: Fields) -> TowerConfig:
    """Reads the eyes of Gemma 4 without a tower: patches of many pixels through one matrix, between
    norms, and two tables of positions."""
    hidden = c.integer("mm_embed_dim", 1, MOST, 3840)
    if c.integer("output_proj_dims", 1, MOST, 3840) != hidden:
        raise ModelError(f"{c.where}: output_proj_dims is not mm_embed_dim ({hidden})")
    eps = c.number("rms_norm_eps", 0.0, 1.0, 1e-6)
    return TowerConfig(
        "gemma4_unified", hidden, layers=0, heads=1, ffn=0, image=0, eps=1e-5,
        patch=side(c, "patch_size", 16) * c.integer("pooling_kernel_size", 1, 64, 3),
        axes=c.integer("mm_posemb_size", 1, 1 << 20, 1120), patch_norms=True, first_norm=True,
        projector=Projector("bare", 0, eps=eps, bias=False),
    )  # fmt: skip


def idefics3(c: Fields) -> TowerConfig:
    usual = {"width": 1152, "count": 16, "patch": 32, "ffn": 3072, "act": "gelu_pytorch_tanh"}
    return _base(c, "siglip", usual, last_norm=True)


def phi4(c: Fields) -> TowerConfig:
    """Reads Phi-4-multimodal's tower: SigLIP's, of tiles that a picture may fill in part; vectors
    come after an inner layer."""
    usual = {"width": 1152, "count": 16, "depth": 27, "ffn": 4304, "image": 448, "patch": 14,
             "act": "gelu_pytorch_tanh"}  # fmt: skip
    made = _base(c, "siglip", usual, masked=True)
    (layer,) = c.integers("feature_layer", -1024, 1024) or (-2,)
    taken = layer if layer >= 0 else made.layers + 1 + layer
    if not 0 < taken <= made.layers:
        raise ModelError(f"{c.where}: feature_layer is {layer}, of {made.layers} layers")
    if made.across % 2:
        raise ModelError(f"{c.where}: {made.across} patches of a side do not divide into blocks")
    return replace(made, taken=(taken,), projector=Projector("averaged", 0, 2))


def pixtral(c: Fields) -> TowerConfig:
    """Reads Pixtral's tower: RMS norms, a rope by row and column, pictures of any size."""
    usual = {"width": 1024, "count": 16, "depth": 24, "ffn": 4096, "image": 1024}
    plain = {"patch_bias": False, "qkv_bias": False, "out_bias": False, "mlp_bias": False}
    made = _base(
        c, "pixtral", usual, norm="rms", eps=1e-5, gated=True, first_norm=True, ropes=True,
        alternating=True, table=0, theta=_theta(c), **plain,
    )  # fmt: skip
    return replace(made, image=0)


def internvl(c: Fields) -> TowerConfig:
    usual = {"width": 1024, "count": 16, "depth": 24, "ffn": 4096, "image": 448, "patch": 14}
    made = _base(
        c, "internvl", usual, leads=1, layer_scale=True,
        qkv_bias=c.flag("attention_bias", False),
        qk_norm="whole" if c.flag("use_qk_norm", False) else "",
        last_norm=not c.flag("use_mean_pooling", True),
        norm={"layer_norm": "layer", "rms_norm": "rms"}[
            c.text("norm_type", "layer_norm", ("layer_norm", "rms_norm"))],
    )  # fmt: skip
    return made if c.flag("use_absolute_position_embeddings", True) else replace(made, table=0)


def dinov2(c: Fields) -> TowerConfig:
    """Reads DINOv2's tower: a class, scales of layers; its vectors are those of all tokens."""
    if c.flag("use_swiglu_ffn", False):
        raise ModelError(f"{c.where}: use_swiglu_ffn is not supported")
    usual = {
        "patch": 14,
        "ffn": c.integer("mlp_ratio", 1, 64, 4) * c.integer("hidden_size", 1, MOST),
    }
    made = _base(
        c, "dinov2", usual, leads=1, layer_scale=True, last_norm=True, keeps_leads=True,
        qkv_bias=c.flag("qkv_bias", True),
    )  # fmt: skip
    return replace(made, ffn=usual["ffn"])


def dinov3(c: Fields) -> TowerConfig:
    """Reads DINOv3's tower: a class and registers, and a rope from the picture's middle."""
    said = {part: c.flag(f"{part}_bias", part != "key") for part in ("query", "key", "value")}
    if said["query"] != said["value"]:
        raise ModelError(f"{c.where}: query_bias and value_bias differ; weft takes both or none")
    usual = {"width": 384, "count": 6, "ffn": 1536, "eps": 1e-5}
    return _base(
        c, "dinov3", usual, leads=1 + c.integer("num_register_tokens", 0, 1024, 0), table=0,
        layer_scale=True, last_norm=True, keeps_leads=True, ropes=True, centred=True,
        theta=_theta(c, 100.0), gated=c.flag("use_gated_mlp", False),
        qkv_bias=said["query"], key_bias=said["key"], out_bias=c.flag("proj_bias", True),
        mlp_bias=c.flag("mlp_bias", True),
    )  # fmt: skip


_QWEN = {
    "heads": "num_heads", "count": 16, "layers": "depth", "channels": "in_channels", "image": 0,
    "patch": 14, "depth": 32,
}  # fmt: skip


def _qwen(c: Fields, usual: Mapping[str, Any], **more: Any) -> TowerConfig:
    frames = side(c, "temporal_patch_size", 2)
    more = {"frames": frames, "fused_qkv": True, "ropes": True, "theta": _theta(c), **more}
    return _base(c, "qwen", {**_QWEN, **usual}, eps=1e-6, **more)


def qwen2_vl(c: Fields) -> TowerConfig:
    """Reads Qwen2-VL's tower: a rope by row and column; its hidden_size is the text model's."""
    usual = {"hidden": "embed_dim", "width": 1280, "act": "quick_gelu"}
    hidden = c.integer("embed_dim", 1, MOST, 1280)
    ffn = int(hidden * c.number("mlp_ratio", 0.1, 64, 4))
    merger = Projector(
        "merger", c.integer("hidden_size", 1, MOST, 3584),
        c.integer("spatial_merge_size", 1, 16, 2), eps=1e-6,
    )  # fmt: skip
    return replace(_qwen(c, usual, patch_bias=False, projector=merger), ffn=ffn)


def qwen2_5_vl(c: Fields) -> TowerConfig:
    """Reads Qwen2.5-VL's tower: RMS norms, gates, and windows in most layers."""
    merge, patch = c.integer("spatial_merge_size", 1, 16, 2), side(c, "patch_size", 14)
    full = c.integers("fullatt_block_indexes", 0, 1023)
    merger = Projector("merger", c.integer("out_hidden_size", 1, MOST, 3584), merge, eps=1e-6,
                       rms=True)  # fmt: skip
    return _qwen(
        c, {"width": 3584, "act": "silu", "ffn": 3420}, patch_bias=False, norm="rms", gated=True,
        window=c.integer("window_size", 1, MOST, 112) // merge // patch * merge,
        full=full if "fullatt_block_indexes" in c.data else (7, 15, 23, 31), projector=merger,
    )  # fmt: skip


def qwen3_vl(c: Fields) -> TowerConfig:
    """Reads Qwen3-VL's tower: also a table of positions, stretched to each picture; vectors of
    some layers go to layers of the text model."""
    rows = c.integer("num_position_embeddings", 1, 1 << 20, 2304)
    deep = (8, 16, 24)
    if "deepstack_visual_indexes" in c.data:
        deep = c.integers("deepstack_visual_indexes", 0, 1023)
    merger = Projector(
        "merger", c.integer("out_hidden_size", 1, MOST, 3584),
        c.integer("spatial_merge_size", 1, 16, 2), eps=1e-6, deep=deep,
    )  # fmt: skip
    usual = {"width": 1152, "depth": 27, "patch": 16, "ffn": 4304, "act": "gelu_pytorch_tanh"}
    return _qwen(c, usual, table=int(rows**0.5), projector=merger)


def qwen3_5(c: Fields) -> TowerConfig:
    """Reads Qwen 3.5's tower: Qwen3-VL's without vectors for layers of the text model."""
    made = qwen3_vl(c)
    return replace(made, projector=replace(made.projector, deep=()))


def _theta(c: Fields, usual: float = 1e4) -> float:
    said = c.section("rope_parameters")
    if said is not None:
        kind = said.text("rope_type", "default")
        if kind not in ("default", "axial"):
            raise ModelError(f"{c.where}: rope_type {shown(kind, 40)} is not supported in a tower")
        return float(said.number("rope_theta", 1.0, 1e12, usual))
    return float(c.number("rope_theta", 1.0, 1e12, usual))


TOWERS: Mapping[str, Callable[[Fields], TowerConfig]] = {
    "clip_vision_model": clip, "siglip_vision_model": siglip, "pixtral": pixtral,
    "idefics3_vision": idefics3, "smolvlm_vision": idefics3, "internvl_vision": internvl,
    "qwen2_vl_vision": qwen2_vl, "qwen2_5_vl_vision": qwen2_5_vl, "qwen3_vl_vision": qwen3_vl,
    "qwen3_5_vision": qwen3_5, "qwen3_5_moe_vision": qwen3_5,
    "gemma4_vision": gemma4, "gemma4_unified_vision": gemma4_unified, "dinov2": dinov2,
    "dinov3_vit": dinov3,
    "phi4_multimodal_vision": phi4,
}  # fmt: skip
# The tower of a wrapper whose vision_config does not say its type.
USUAL: Mapping[str, str] = {
    "llava": "clip_vision_model", "llava_next": "clip_vision_model",
    "llava_onevision": "siglip_vision_model", "llava_next_video": "clip_vision_model",
    "video_llava": "clip_vision_model", "vipllava": "clip_vision_model",
    "gemma3": "siglip_vision_model", "gemma4": "gemma4_vision",
    "gemma4_unified": "gemma4_unified_vision",
    "idefics3": "idefics3_vision", "smolvlm": "smolvlm_vision",
    "mistral3": "pixtral", "internvl": "internvl_vision", "qwen2_vl": "qwen2_vl_vision",
    "phi4_multimodal": "phi4_multimodal_vision",
    "qwen2_5_vl": "qwen2_5_vl_vision", "qwen3_vl": "qwen3_vl_vision",
    "qwen3_5": "qwen3_5_vision", "qwen3_5_moe": "qwen3_5_moe_vision",
    "clip": "clip_vision_model", "siglip": "siglip_vision_model",
}  # fmt: skip
SHORT = {"qwen2_vl": "qwen2_vl_vision", "qwen2_5_vl": "qwen2_5_vl_vision",
         "qwen3_vl": "qwen3_vl_vision", "qwen3_5": "qwen3_5_vision",
         "qwen3_5_moe": "qwen3_5_moe_vision", "idefics3": "idefics3_vision"}  # fmt: skip


def clip_pair(raw: Fields) -> tuple[TowerConfig, TowerConfig]:
    """Reads CLIP: towers of pictures and of text, whose vectors of a class and of an end meet."""
    width = raw.integer("projection_dim", 1, MOST, 512)
    vision = clip(raw.section("vision_config") or raw.having({}))
    vision = replace(vision, projector=Projector("head", width, bias=False))
    usual = {"width": 512, "count": 8, "ffn": 2048, "act": "quick_gelu", "eps": 1e-5, "image": 0}
    return vision, _text(raw, usual, causal=True)


def siglip_pair(raw: Fields) -> tuple[TowerConfig, TowerConfig]:
    """Reads SigLIP: towers of pictures and of text; attention by a learned query makes one vector
    of a picture."""
    vision = siglip(raw.section("vision_config") or raw.having({}))
    made = Projector("head", vision.hidden, hidden=vision.hidden)
    usual = {"ffn": 3072, "act": "gelu_pytorch_tanh", "image": 0}
    return replace(vision, projector=made), _text(raw, usual)


def _text(raw: Fields, usual: Mapping[str, Any], **more: Any) -> TowerConfig:
    c = raw.section("text_config") or raw.having({})
    made = _base(c, "text", usual, text=True, last_norm=True, patch_bias=False, **more)
    return replace(made, patch=1, table=0, channels=1)
