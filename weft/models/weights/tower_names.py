"""The names of a vision tower's weights in Hugging Face checkpoints, and their required shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from weft.core.records import dataclass
from weft.models.arch.config import WeightSpec
from weft.models.arch.tower_config import TowerConfig
from weft.models.weights.layout_builder import LayoutBuilder


@dataclass(frozen=True)
class _Names:
    """A family's names: `layer` begins those of a layer's parts."""

    outer: Mapping[str, str]
    layer: str
    inner: Mapping[str, str]
    unread: str = r"(?!)"  # tensors that nothing here reads


_CLIP = _Names(
    {"patch": "embeddings.patch_embedding", "places": "embeddings.position_embedding.weight",
     "leads": "embeddings.class_embedding", "first": "pre_layrnorm", "last": "post_layernorm"},
    "encoder.layers.{}.",
    {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
     "o": "self_attn.out_proj", "up": "mlp.fc1", "down": "mlp.fc2", "attn_norm": "layer_norm1",
     "mlp_norm": "layer_norm2"},
    r"embeddings\.position_ids$|^head\.",
)  # fmt: skip
_QWEN = _Names(
    {"patch": "patch_embed.proj", "places": "pos_embed.weight"}, "blocks.{}.",
    {"qkv": "attn.qkv", "q": "attn.q", "k": "attn.k", "v": "attn.v", "o": "attn.proj",
     "attn_norm": "norm1", "mlp_norm": "norm2"},
)  # fmt: skip
NAMES: Mapping[str, _Names] = {
    "text": _Names({"last": "final_layer_norm"}, _CLIP.layer, _CLIP.inner),
    "clip": _CLIP, "siglip": _CLIP,
    "pixtral": _Names(
        {"patch": "patch_conv", "first": "ln_pre"}, "transformer.layers.{}.",
        {"q": "attention.q_proj", "k": "attention.k_proj", "v": "attention.v_proj",
         "o": "attention.o_proj", "gate": "feed_forward.gate_proj", "up": "feed_forward.up_proj",
         "down": "feed_forward.down_proj", "attn_norm": "attention_norm", "mlp_norm": "ffn_norm"},
    ),
    "internvl": _Names(
        {"patch": "embeddings.patch_embeddings.projection", "leads": "embeddings.cls_token",
         "places": "embeddings.position_embeddings", "last": "layernorm"}, "encoder.layer.{}.",
        {"q": "attention.q_proj", "k": "attention.k_proj", "v": "attention.v_proj",
         "o": "attention.projection_layer", "q_norm": "attention.q_norm",
         "k_norm": "attention.k_norm", "up": "mlp.fc1", "down": "mlp.fc2",
         "attn_norm": "layernorm_before", "mlp_norm": "layernorm_after", "attn_scale": "lambda_1",
         "mlp_scale": "lambda_2"},
        r"embeddings\.mask_token$",
    ),
    "dinov2": _Names(
        {"patch": "embeddings.patch_embeddings.projection", "leads": "embeddings.cls_token",
         "places": "embeddings.position_embeddings", "last": "layernorm"}, "encoder.layer.{}.",
        {"q": "attention.attention.query", "k": "attention.attention.key",
         "v": "attention.attention.value", "o": "attention.output.dense", "up": "mlp.fc1",
         "down": "mlp.fc2", "attn_norm": "norm1", "mlp_norm": "norm2",
         "attn_scale": "layer_scale1.lambda1", "mlp_scale": "layer_scale2.lambda1"},
        r"embeddings\.mask_token$",
    ),
    "dinov3": _Names(
        {"patch": "embeddings.patch_embeddings", "leads": "embeddings.cls_token",
         "registers": "embeddings.register_tokens", "last": "norm"}, "layer.{}.",
        {"q": "attention.q_proj", "k": "attention.k_proj", "v": "attention.v_proj",
         "o": "attention.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
         "down": "mlp.down_proj", "attn_norm": "norm1", "mlp_norm": "norm2",
         "attn_scale": "layer_scale1.lambda1", "mlp_scale": "layer_scale2.lambda1"},
        r"embeddings\.mask_token$",
    ),
    "gemma4": _Names(
        {"patch": "patch_embedder.input_proj", "places": "patch_embedder.position_embedding_table"},
        "encoder.layers.{}.",
        {"q": "self_attn.q_proj.linear", "k": "self_attn.k_proj.linear",
         "v": "self_attn.v_proj.linear", "o": "self_attn.o_proj.linear",
         "gate": "mlp.gate_proj.linear", "up": "mlp.up_proj.linear",
         "down": "mlp.down_proj.linear", "attn_norm": "input_layernorm",
         "attn_post": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
         "mlp_post": "post_feedforward_layernorm", "q_norm": "self_attn.q_norm",
         "k_norm": "self_attn.k_norm"},
    ),
    "gemma4_unified": _Names(
        {"patch": "patch_dense", "patch_before": "patch_ln1", "patch_after": "patch_ln2",
         "places": "pos_embedding", "first": "pos_norm"}, "layers.{}.", {},
    ),
    "qwen": _QWEN,
}  # fmt: skip
_QWEN_MLP = {
    False: {"up": "mlp.fc1", "down": "mlp.fc2"},
    True: {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"},
}
_QWEN3_MLP = {"up": "mlp.linear_fc1", "down": "mlp.linear_fc2"}
# What may stand before the names, of the tower and of the projector.
TOWER = (
    "vision_tower.vision_model.", "vision_tower.", "model.vision_tower.vision_model.",
    "model.vision_tower.", "model.vision_model.", "vision_model.", "model.visual.", "visual.",
    "vision_encoder.", "vision_tower.vision_tower.",
    "model.embed_tokens_extend.image_embed.img_processor.",
    "model.image_tower.vision_model.", "model.image_tower.", "image_tower.vision_model.",
    "image_tower.", "model.vision_embedder.", "vision_embedder.", "",
)  # fmt: skip
PROJECTOR = (
    "model.embed_vision.", "embed_vision.",
    "model.embed_tokens_extend.image_embed.",
    "multi_modal_projector.", "model.multi_modal_projector.", "model.connector.", "connector.",
    "model.visual.", "visual.", "",
)  # fmt: skip
NEWLINE = ("image_newline", "model.image_newline")
OURS = re.compile(
    r"^(?:model\.)?(?:vision_tower|vision_embedder|image_tower|vision_model|vision_encoder|visual|multi_modal_projector|"
    r"connector|embed_vision|embed_tokens_extend\.image_embed)\."
)


def tower_layout(c: TowerConfig) -> tuple[dict[str, WeightSpec], dict[str, WeightSpec]]:
    """Returns the weights of the tower and of the projector, by role."""
    b, names = LayoutBuilder(), NAMES[c.family]
    inner = dict(names.inner)
    if c.family == "qwen":
        inner |= _QWEN3_MLP if c.table else _QWEN_MLP[c.gated]
    biased = c.norm == "layer"
    if not c.text:
        b.both("matrix", "patch", names.outer["patch"], c.hidden, c.row, biased=c.patch_bias)
    if c.leads:
        b.add("table", "leads", names.outer["leads"], c.leads, c.hidden)
    if c.table:
        rows = c.table * c.table + (c.leads if c.class_position else 0)
        b.add("table", "places", names.outer["places"], rows, c.hidden)
    if c.patch_norms:
        b.both("norm", "patch_before", names.outer["patch_before"], c.row)
        b.both("norm", "patch_after", names.outer["patch_after"], c.hidden)
    if c.axes:
        shape = (c.axes, 2) if c.patch_norms else (2, c.axes)
        b.add("table", "places", names.outer["places"], *shape, c.hidden)
    if c.projector.standard:
        for part in ("bias", "scale"):
            b.add("scale", f"project.{part}", f"std_{part}", c.hidden)
    if c.first_norm:
        b.both("norm", "first", names.outer["first"], c.hidden, biased=biased)
    if c.last_norm or (c.projector.kind == "head" and not c.projector.hidden):
        b.both("norm", "last", names.outer["last"], c.hidden, biased=biased)
    for i in range(c.depth):
        _layer(c, b, names.layer.format(i), inner, i)
    if c.projector.kind == "head" and c.projector.hidden:
        _query_head(c, b)
    return b.weights, _projector(c)


def _layer(c: TowerConfig, b: LayoutBuilder, at: str, inner: Mapping[str, str], i: int) -> None:
    shapes = {"o": (c.hidden, c.hidden), "up": (c.ffn, c.hidden), "down": (c.hidden, c.ffn)}
    square = (c.hidden, c.hidden)
    shapes |= {"qkv": (3 * c.hidden, c.hidden)} if c.fused_qkv else dict.fromkeys("qkv", square)
    shapes |= {"gate": (c.ffn, c.hidden)} if c.gated else {}
    has = {"o": c.out_bias, "up": c.mlp_bias, "gate": c.mlp_bias, "down": c.mlp_bias}
    for role, shape in shapes.items():
        biased = has.get(role, c.qkv_bias and (role != "k" or c.key_bias))
        b.both("matrix", f"{i}.{role}", at + inner[role], *shape, biased=biased)
    norms = ["attn_norm", "mlp_norm", *(["attn_post", "mlp_post"] if c.post_norms else ())]
    for role in norms:
        b.both("norm", f"{i}.{role}", at + inner[role], c.hidden, biased=c.norm == "layer")
    for role in ("q_norm", "k_norm") if c.qk_norm else ():
        wide = c.head_dim if c.qk_norm == "head" else c.hidden
        b.both("norm", f"{i}.{role}", at + inner[role], wide, biased=False)
    for role in shapes if c.clips else ():
        b.add("scale", f"{i}.{role}.clip", at + inner[role].removesuffix(".linear"), 4)
    for part in ("attn", "mlp") if c.layer_scale else ():
        b.add("scale", f"{i}.{part}_scale", at + inner[f"{part}_scale"], c.hidden)


def _query_head(c: TowerConfig, b: LayoutBuilder) -> None:
    """Adds the weights of attention by a learned query (SigLIP); q, k and v are thirds of one."""
    b.add("table", "head.probe", "head.probe", 1, c.hidden)
    for role in "qkv":
        b.add("matrix", f"head.{role}.w", "head.attention.in_proj_weight", c.hidden, c.hidden)
        b.add("bias", f"head.{role}.b", "head.attention.in_proj_bias", c.hidden)
    b.both("matrix", "head.o", "head.attention.out_proj", c.hidden, c.hidden)
    b.both("norm", "head.norm", "head.layernorm", c.hidden)
    b.both("matrix", "head.up", "head.mlp.fc1", c.ffn, c.hidden)
    b.both("matrix", "head.down", "head.mlp.fc2", c.hidden, c.ffn)


def _projector(c: TowerConfig) -> dict[str, WeightSpec]:
    b, p = LayoutBuilder(), c.projector
    wide = p.block * p.block * c.hidden
    if p.kind in ("mlp", "normed", "normed blocks", "patch merger"):
        several = c.hidden * max(len(c.taken), 1)
        count = {"mlp": several, "normed": several, "normed blocks": wide}
        if p.kind == "normed":
            b.both("norm", "project.norm", "projector_layernorm", several)
        if p.kind == "normed blocks":
            b.both("norm", "project.norm", "layer_norm", wide)
        if p.kind == "patch merger":
            b.both("norm", "project.norm", "norm", c.hidden, biased=False)
            name = "patch_merger.merging_layer"
            b.both("matrix", "project.merge", name, c.hidden, wide, biased=False)
        inside = count.get(p.kind, c.hidden)
        b.both("matrix", "project.1", "linear_1", p.width, inside, biased=p.bias)
        b.both("matrix", "project.2", "linear_2", p.width, p.width, biased=p.bias)
    if p.newline:
        b.add("table", "newline", "image_newline", p.width)
    if p.kind == "mean":
        b.add("norm", "project.norm.w", "mm_soft_emb_norm.weight", c.hidden)
        b.add("matrix", "project.w", "mm_input_projection_weight", c.hidden, p.width)
    if p.kind == "averaged":
        b.both("matrix", "project.1", "img_projection_up", p.width, c.hidden)
        b.both("matrix", "project.2", "img_projection_down", p.width, p.width)
        b.add("table", "end.line", "sub_img_feature_extensor", 1, c.hidden)
        b.add("table", "end.tiles", "global_img_feature_extensor", 1, c.hidden)
    if p.kind in ("pooled", "bare"):
        name = "embedding_projection"
        b.both("matrix", "project", name, p.width, c.hidden, biased=False)
    if p.kind == "blocks":
        b.both("matrix", "project", "modality_projection.proj", p.width, wide, biased=False)
    if p.kind == "merger":
        first, second, norm = ("linear_fc1", "linear_fc2", "norm") if c.table else (
            "mlp.0", "mlp.2", "ln_q")  # fmt: skip
        b.both("norm", "project.norm", f"merger.{norm}", c.hidden, biased=not p.rms)
        b.both("matrix", "project.1", f"merger.{first}", wide, wide)
        b.both("matrix", "project.2", f"merger.{second}", p.width, wide)
        for k in range(len(p.deep)):
            at = f"deepstack_merger_list.{k}."
            b.both("norm", f"deep.{k}.norm", f"{at}norm", wide)
            b.both("matrix", f"deep.{k}.1", f"{at}{first}", wide, wide)
            b.both("matrix", f"deep.{k}.2", f"{at}{second}", p.width, wide)
    if p.kind == "head" and not p.hidden:
        b.add("matrix", "project.w", "visual_projection.weight", p.width, c.hidden)
    return b.weights
