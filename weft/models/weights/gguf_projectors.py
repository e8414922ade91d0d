"""The projectors of llama.cpp's mmproj files: what each file's metadata say, as config.json and
preprocessor_config.json would, and Hugging Face's names of its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from weft.core.errors import ModelError
from weft.core.records import dataclass
from weft.models.weights.gguf_metadata import Metadata

Names = tuple[tuple[str, str], ...]  # patterns of llama.cpp's names, and Hugging Face's
_SIGLIP: Names = (
    (r"v\.patch_embd\.(weight|bias)", r"embeddings.patch_embedding.\1"),
    (r"v\.position_embd\.weight", "embeddings.position_embedding.weight"),
    (r"v\.post_ln\.(weight|bias)", r"post_layernorm.\1"),
    (r"v\.blk\.(\d+)\.attn_(q|k|v)\.(\w+)", r"encoder.layers.\1.self_attn.\2_proj.\3"),
    (r"v\.blk\.(\d+)\.attn_out\.(\w+)", r"encoder.layers.\1.self_attn.out_proj.\2"),
    (r"v\.blk\.(\d+)\.ln([12])\.(\w+)", r"encoder.layers.\1.layer_norm\2.\3"),
    (r"v\.blk\.(\d+)\.ffn_up\.(\w+)", r"encoder.layers.\1.mlp.fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(\w+)", r"encoder.layers.\1.mlp.fc2.\2"),
    (r"mm\.soft_emb_norm\.weight", "mm_soft_emb_norm.weight"),
    (r"mm\.input_projection\.weight", "mm_input_projection_weight"),
    (r"mm\.model\.fc\.weight", "modality_projection.proj.weight"),
)
_CLIP: Names = (
    (r"v\.class_embd", "embeddings.class_embedding"),
    (r"v\.pre_ln\.(weight|bias)", r"pre_layrnorm.\1"),
    (r"mm\.0\.(weight|bias)", r"linear_1.\1"),
    (r"mm\.2\.(weight|bias)", r"linear_2.\1"),
    (r"(?:model|v)\.image_newline", "image_newline"),
    *_SIGLIP,
)
_QWEN: Names = (
    (r"v\.patch_embd\.(weight|bias)", r"patch_embed.proj.\1"),
    (r"v\.position_embd\.weight", "pos_embed.weight"),
    (r"v\.blk\.(\d+)\.attn_(qkv|q|k|v)\.(\w+)", r"blocks.\1.attn.\2.\3"),
    (r"v\.blk\.(\d+)\.attn_out\.(\w+)", r"blocks.\1.attn.proj.\2"),
    (r"v\.blk\.(\d+)\.ln([12])\.(\w+)", r"blocks.\1.norm\2.\3"),
)
_QWEN2: Names = (
    *_QWEN,
    (r"v\.blk\.(\d+)\.ffn_up\.(\w+)", r"blocks.\1.mlp.fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(\w+)", r"blocks.\1.mlp.fc2.\2"),
    (r"v\.post_ln\.(weight|bias)", r"merger.ln_q.\1"),
    (r"mm\.([02])\.(weight|bias)", r"merger.mlp.\1.\2"),
)
_QWEN25: Names = (
    *_QWEN,
    (r"v\.blk\.(\d+)\.ffn_(gate|up|down)\.(\w+)", r"blocks.\1.mlp.\2_proj.\3"),
    *_QWEN2[-2:],
)
_QWEN3: Names = (
    *_QWEN,
    (r"v\.blk\.(\d+)\.ffn_up\.(\w+)", r"blocks.\1.mlp.linear_fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(\w+)", r"blocks.\1.mlp.linear_fc2.\2"),
    (r"v\.post_ln\.(weight|bias)", r"merger.norm.\1"),
    (r"mm\.0\.(weight|bias)", r"merger.linear_fc1.\1"),
    (r"mm\.2\.(weight|bias)", r"merger.linear_fc2.\1"),
)
_PIXTRAL: Names = (
    (r"v\.patch_embd\.weight", "patch_conv.weight"),
    (r"v\.pre_ln\.weight", "ln_pre.weight"),
    (r"v\.blk\.(\d+)\.attn_(q|k|v)\.weight", r"transformer.layers.\1.attention.\2_proj.weight"),
    (r"v\.blk\.(\d+)\.attn_out\.weight", r"transformer.layers.\1.attention.o_proj.weight"),
    (r"v\.blk\.(\d+)\.ln1\.weight", r"transformer.layers.\1.attention_norm.weight"),
    (r"v\.blk\.(\d+)\.ln2\.weight", r"transformer.layers.\1.ffn_norm.weight"),
    (r"v\.blk\.(\d+)\.ffn_(gate|up|down)\.weight",
     r"transformer.layers.\1.feed_forward.\2_proj.weight"),
    (r"mm\.([12])\.(weight|bias)", r"linear_\1.\2"),
    (r"mm\.input_norm\.weight", "norm.weight"),
    (r"mm\.patch_merger\.weight", "patch_merger.merging_layer.weight"),
)  # fmt: skip
_INTERNVL: Names = (
    (r"v\.patch_embd\.(weight|bias)", r"embeddings.patch_embeddings.projection.\1"),
    (r"v\.class_embd", "embeddings.cls_token"),
    (r"v\.position_embd(?:\.weight)?", "embeddings.position_embeddings"),
    (r"v\.post_ln\.(weight|bias)", r"layernorm.\1"),
    (r"v\.blk\.(\d+)\.attn_(q|k|v)\.(\w+)", r"encoder.layer.\1.attention.\2_proj.\3"),
    (r"v\.blk\.(\d+)\.attn_([qk])_norm\.weight", r"encoder.layer.\1.attention.\2_norm.weight"),
    (r"v\.blk\.(\d+)\.attn_out\.(\w+)", r"encoder.layer.\1.attention.projection_layer.\2"),
    (r"v\.blk\.(\d+)\.ln1\.(\w+)", r"encoder.layer.\1.layernorm_before.\2"),
    (r"v\.blk\.(\d+)\.ln2\.(\w+)", r"encoder.layer.\1.layernorm_after.\2"),
    (r"v\.blk\.(\d+)\.ffn_up\.(\w+)", r"encoder.layer.\1.mlp.fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(\w+)", r"encoder.layer.\1.mlp.fc2.\2"),
    (r"v\.blk\.(\d+)\.ls([12])(?:\.weight)?", r"encoder.layer.\1.lambda_\2"),
    (r"mm\.model\.mlp\.0\.(weight|bias)", r"layer_norm.\1"),
    (r"mm\.model\.mlp\.1\.(weight|bias)", r"linear_1.\1"),
    (r"mm\.model\.mlp\.3\.(weight|bias)", r"linear_2.\1"),
)


@dataclass(frozen=True)
class Said:
    """The content of a file: `raw` as config.json, `vision` as its vision_config, `steps` as
    preprocessor_config.json, `ids` the fields of `raw` that have ids of tokens, by their texts."""

    raw: dict[str, Any]
    vision: dict[str, Any]
    steps: dict[str, Any]
    ids: dict[str, str]
    names: Names = _SIGLIP
    turned: int = 0  # heads whose rows of queries and keys are in interleaved rope order


def gemma3(meta: Metadata, usual: dict[str, Any]) -> Said:
    scale = meta.integer("vision.projector.scale_factor", 1, 64, 4)
    across = usual["image_size"] // usual["patch_size"] // scale
    ids = {"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>",
           "eoi_token_index": "<end_of_image>"}  # fmt: skip
    raw = {"model_type": "gemma3", "mm_tokens_per_image": across * across}
    return Said(raw, usual, {**_square(usual), **_processor("Gemma3")}, ids)


def idefics3(meta: Metadata, usual: dict[str, Any]) -> Said:
    side = usual["image_size"]
    raw = {"model_type": "idefics3",
           "scale_factor": meta.integer("vision.projector.scale_factor", 1, 64, 2)}  # fmt: skip
    whole = meta.integer("vision.preproc_image_size", 1, 1 << 14, 4 * side)
    steps = {"size": {"longest_edge": whole}, "max_image_size": {"longest_edge": side}}
    return Said(raw, usual, {**steps, **_processor("Idefics3")}, {"image_token_id": "<image>"})


def llava(meta: Metadata, usual: dict[str, Any]) -> Said:
    """LLaVA 1.5, and 1.6 where the file lists grids of tiles. A file has the layers up to the one
    that vectors are taken from."""
    raw: dict[str, Any] = {
        "model_type": "llava", "vision_feature_layer": usual["num_hidden_layers"],
        "vision_feature_select_strategy": "default",
    }  # fmt: skip
    side = usual["image_size"]
    steps: dict[str, Any] = {
        "size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side},
    }  # fmt: skip
    kind = "clip_vision_model"
    if not meta.has("v.class_embd"):
        kind, raw["vision_feature_select_strategy"] = "siglip_vision_model", "full"
        steps = _square(usual)
    steps |= _processor("Siglip" if "siglip" in kind else "CLIP")
    grids = meta.value("vision.image_grid_pinpoints")
    if isinstance(grids, list) and len(grids) % 2 == 0 and grids:
        raw["model_type"] = "llava_next"
        pairs = [list(pair) for pair in zip(grids[::2], grids[1::2])]
        steps |= {"image_grid_pinpoints": pairs, **_processor("LlavaNext")}
    act = _act(meta, "quick_gelu" if kind == "clip_vision_model" else "gelu_pytorch_tanh")
    vision = {**usual, "model_type": kind, "hidden_act": act}
    return Said(raw, vision, steps, {"image_token_index": "<image>"}, _CLIP)


def pixtral(meta: Metadata, usual: dict[str, Any]) -> Said:
    merge = meta.integer("vision.spatial_merge_size", 1, 16, 1)
    vision = {**usual, "model_type": "pixtral", "hidden_act": _act(meta, "gelu")}
    raw: dict[str, Any] = {
        "model_type": "llava" if merge == 1 else "mistral3", "spatial_merge_size": merge,
        "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": meta.has("mm.1.bias"),
    }  # fmt: skip
    steps = {"size": {"longest_edge": usual["image_size"]}, **_processor("Pixtral"),
             "patch_size": usual["patch_size"] * merge}  # fmt: skip
    ids = {"image_token_index": "[IMG]"}
    return Said(raw, vision, steps, ids, _PIXTRAL, usual["num_attention_heads"])


def internvl(meta: Metadata, usual: dict[str, Any]) -> Said:
    scale = meta.integer("vision.projector.scale_factor", 1, 64, 2)
    vision = {
        **usual, "model_type": "internvl_vision", "hidden_act": _act(meta, "gelu"),
        "attention_bias": meta.has("v.blk.0.attn_q.bias"),
        "use_qk_norm": meta.has("v.blk.0.attn_q_norm.weight"),
        "norm_type": "layer_norm" if meta.has("v.blk.0.ln1.bias") else "rms_norm",
        "use_mean_pooling": not meta.has("v.post_ln.weight"),
    }  # fmt: skip
    tiles = {"crop_to_patches": True, "max_patches": meta.integer(
        "vision.preproc_max_tiles", 1, 64, 12)}  # fmt: skip
    steps = {**_square(usual), **tiles, **_processor("GotOcr2")}
    raw = {"model_type": "internvl", "downsample_ratio": 1 / scale}
    return Said(raw, vision, steps, {"image_token_id": "<IMG_CONTEXT>"}, _INTERNVL)


def qwen2_vl(meta: Metadata, usual: dict[str, Any]) -> Said:
    wide = usual["hidden_size"]
    ffn = max(_shape(meta, "v.blk.0.ffn_up.weight"))
    vision = _qwen(meta, usual) | {
        "model_type": "qwen2_vl_vision", "embed_dim": wide, "hidden_size": _width(meta),
        "mlp_ratio": math.nextafter(ffn / wide, math.inf),
        "hidden_act": _act(meta, "quick_gelu"),
    }  # fmt: skip
    return _qwen_said(meta, "qwen2_vl", vision, _QWEN2)


def qwen2_5_vl(meta: Metadata, usual: dict[str, Any]) -> Said:
    """A file says every how many layers one sees the whole picture, or lists those layers."""
    full = meta.value("vision.wa_layer_indexes")
    if not isinstance(full, list):
        every = meta.integer("vision.n_wa_pattern", 1, 1024)
        full = [i for i in range(usual["num_hidden_layers"]) if (i + 1) % every == 0]
    vision = _qwen(meta, usual) | {
        "model_type": "qwen2_5_vl_vision", "out_hidden_size": _width(meta),
        "fullatt_block_indexes": full, "hidden_act": _act(meta, "silu"),
        "window_size": meta.integer("vision.window_size", 1, 1 << 14, 112),
    }  # fmt: skip
    return _qwen_said(meta, "qwen2_5_vl", vision, _QWEN25)


def qwen3_vl(meta: Metadata, usual: dict[str, Any]) -> Said:
    flags = meta.value("vision.is_deepstack_layers")
    deep = [i for i, flag in enumerate(flags) if flag] if isinstance(flags, list) else []
    vision = _qwen(meta, usual) | {
        "model_type": "qwen3_vl_vision", "out_hidden_size": _width(meta),
        "num_position_embeddings": _shape(meta, "v.position_embd.weight")[0],
        "deepstack_visual_indexes": deep, "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    deeper: Names = tuple(
        (rf"v\.deepstack\.{layer}\.{ours}\.(\w+)", rf"deepstack_merger_list.{k}.{theirs}.\1")
        for k, layer in enumerate(deep)
        for ours, theirs in (("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2"))
    )
    return _qwen_said(meta, "qwen3_vl", vision, (*_QWEN3, *deeper))


def _qwen(meta: Metadata, usual: dict[str, Any]) -> dict[str, Any]:
    made = {k: v for k, v in usual.items() if k != "image_size"}
    made |= {"num_heads": usual["num_attention_heads"], "depth": usual["num_hidden_layers"]}
    return made | {"spatial_merge_size": meta.integer("vision.spatial_merge_size", 1, 16, 2)}


def _qwen_said(meta: Metadata, kind: str, vision: dict[str, Any], names: Names) -> Said:
    """Pictures have 8 to 4,096 tokens where a file says no pixels, as llama.cpp has it."""
    token = (vision["patch_size"] * vision["spatial_merge_size"]) ** 2
    size = {
        "shortest_edge": meta.integer("vision.image_min_pixels", 1, 1 << 28, 8 * token),
        "longest_edge": meta.integer("vision.image_max_pixels", 1, 1 << 28, 4096 * token),
    }
    steps = {"size": size, "patch_size": vision["patch_size"],
             "merge_size": vision["spatial_merge_size"], **_processor("Qwen2VL")}  # fmt: skip
    ids = {"image_token_id": "<|image_pad|>"}
    return Said({"model_type": kind}, vision, steps, ids, names)


def _processor(name: str) -> dict[str, str]:
    return {"image_processor_type": f"{name}ImageProcessor"}


def _square(usual: Mapping[str, Any]) -> dict[str, Any]:
    return {"size": {"height": usual["image_size"], "width": usual["image_size"]}}


def _width(meta: Metadata) -> int:
    return int(meta.integer("vision.projection_dim", 1, 1 << 16))


def _shape(meta: Metadata, name: str) -> tuple[int, ...]:
    if not meta.has(name):
        raise ModelError(f"{meta.where}: tensor {name!r} of the vision tower is missing")
    return meta.gguf.tensors[name].shape


def _act(meta: Metadata, usual: str) -> str:
    if meta.value("use_silu"):
        return "silu"
    return "gelu" if meta.value("use_gelu") else usual


KINDS: Mapping[str, Callable[[Metadata, dict[str, Any]], Said]] = {
    "gemma3": gemma3, "idefics3": idefics3, "mlp": llava, "pixtral": pixtral,
    "internvl": internvl, "qwen2vl_merger": qwen2_vl, "qwen2.5vl_merger": qwen2_5_vl,
    "qwen3vl_merger": qwen3_vl,
}  # fmt: skip
