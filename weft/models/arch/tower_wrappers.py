"""The tower and the projector of a multimodal model, as its own config.json says them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from weft.core.errors import ModelError
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.models.arch.tower_config import Projector, TowerConfig
from weft.models.arch.tower_families import MOST, SHORT, TOWERS, USUAL, act


def read_tower(kind: str, raw: Fields, width: int) -> TowerConfig:
    """Returns the tower and the projector of a multimodal model whose text model is `width` wide.
    Raises ModelError."""
    vision = raw.section("vision_config")
    vision = raw.having({}) if vision is None else vision
    said = vision.text("model_type", USUAL[kind])
    said = SHORT.get(said, said)
    if said not in TOWERS:
        raise ModelError(
            f"{raw.where}: vision_config has model_type {shown(said, 40)}; supported in it: "
            f"{', '.join(TOWERS)}"
        )
    c = TOWERS[said](vision)
    if c.projector.kind and not c.projector.width:
        return replace(c, projector=replace(c.projector, width=width))
    if c.projector.kind:
        if c.projector.width != width:
            raise ModelError(
                f"{raw.where}: the tower gives vectors of {c.projector.width}; the text model's "
                f"are {width}"
            )
        return c
    return _PROJECTED[kind](raw, c, width)


def _llava(raw: Fields, c: TowerConfig, width: int) -> TowerConfig:
    """LLaVA and its kin: vectors after an inner layer or several, with or without the class."""
    kind = raw.text("model_type", "")
    one, vip = kind == "llava_onevision", kind == "vipllava"
    if vip and "vision_feature_layer" not in raw.data:  # as older files say it
        several = raw.data.get("vision_feature_layers", (-2, -5, -8, -11, 6))
        raw = raw.having({**raw.data, "vision_feature_layer": several})
    layers = raw.integers("vision_feature_layer", -1024, 1024) or (-1 if one else -2,)
    usual = "full" if one else "default"
    full = raw.text("vision_feature_select_strategy", usual, ("default", "full")) == "full"
    full = full and not vip
    if not full and not c.leads and c.family != "pixtral":
        raise ModelError(
            f"{raw.where}: vision_feature_select_strategy default drops the first vector, and "
            f"{c.family} has no class; full keeps all"
        )
    taken = tuple(k if k >= 0 else c.layers + 1 + k for k in layers)
    if any(not 0 <= k <= c.layers for k in taken):
        raise ModelError(f"{raw.where}: vision_feature_layer is {list(layers)}, of {c.layers}")
    made = Projector(
        "normed" if vip else "mlp", width, act=act(raw, "projector_hidden_act", "gelu"),
        eps=raw.number("projector_layernorm_eps", 0.0, 1.0, 1e-5),
        bias=vip or raw.flag("multimodal_projector_bias", True),
        newline=one or kind.startswith("llava_next"),
        most_tiles=_most_tiles(raw) if one else 0,
    )  # fmt: skip
    return replace(c, taken=taken, keeps_leads=full, last_norm=False, projector=made)


def _most_tiles(raw: Fields) -> int:
    said = raw.text("vision_aspect_ratio", "anyres_max_9")
    found = re.fullmatch(r"anyres_max_(\d{1,4})", said)
    if found is None or not int(found[1]):
        raise ModelError(
            f"{raw.where}: vision_aspect_ratio is {said[:40]!r}; expected anyres_max_N"
        )
    return int(found[1])


def _gemma3(raw: Fields, c: TowerConfig, width: int) -> TowerConfig:
    tokens = raw.integer("mm_tokens_per_image", 1, MOST, 256)
    across = int(tokens**0.5)
    if across * across != tokens or c.across % across:
        raise ModelError(
            f"{raw.where}: mm_tokens_per_image is {tokens}; {c.across} patches of a side do not "
            "divide into the root of it"
        )
    return replace(c, projector=Projector("mean", width, c.across // across, eps=c.eps))


def _idefics(raw: Fields, c: TowerConfig, width: int) -> TowerConfig:
    block = raw.integer("scale_factor", 1, 64, 2)
    if c.across % block:
        raise ModelError(f"{raw.where}: scale_factor {block} does not divide {c.across} patches")
    return replace(c, projector=Projector("blocks", width, block, bias=False))


def _internvl(raw: Fields, c: TowerConfig, width: int) -> TowerConfig:
    block = round(1 / raw.number("downsample_ratio", 0.01, 1.0, 0.5))
    layer = raw.integers("vision_feature_layer", -1024, 1024) or (-1,)
    full = raw.text("vision_feature_select_strategy", "default", ("default", "full")) == "full"
    if layer != (-1,) or full or c.across % block:
        raise ModelError(
            f"{raw.where}: only vision_feature_layer -1 without the class is supported"
        )
    made = Projector("normed blocks", width, block, act(raw, "projector_hidden_act", "gelu"))
    return replace(c, projector=made)


def _mistral3(raw: Fields, c: TowerConfig, width: int) -> TowerConfig:
    text = raw.section("text_config")
    eps = 1e-5 if text is None else text.number("rms_norm_eps", 0.0, 1.0, 1e-5)
    if (raw.integers("vision_feature_layer", -1024, 1024) or (-1,)) != (-1,):
        raise ModelError(f"{raw.where}: only vision_feature_layer -1 is supported")
    made = Projector(
        "patch merger", width, raw.integer("spatial_merge_size", 1, 16, 2),
        act(raw, "projector_hidden_act", "gelu"), eps,
        raw.flag("multimodal_projector_bias", False),
    )  # fmt: skip
    return replace(c, projector=made)


_PROJECTED: Mapping[str, Callable[[Fields, TowerConfig, int], TowerConfig]] = {
    "llava": _llava, "llava_next": _llava, "llava_onevision": _llava, "gemma3": _gemma3,
    "llava_next_video": _llava, "video_llava": _llava, "vipllava": _llava, "idefics3": _idefics,
    "smolvlm": _idefics, "internvl": _internvl, "mistral3": _mistral3,
}  # fmt: skip
