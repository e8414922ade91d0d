"""Opens the eyes of a multimodal model in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core.dtypes import as_dtype, bfloat16, float32
from weft.core.errors import FileFormatError, ModelError
from weft.core.notices import say
from weft.importers.hf_config import Fields, read_config
from weft.importers.safetensors import Checkpoint, open_checkpoint
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_qwen import turned
from weft.models.arch.tower_config import TowerConfig
from weft.models.arch.tower_families import USUAL
from weft.models.arch.tower_wrappers import read_tower
from weft.models.arch.weights import Weights
from weft.models.run.eyes import Eyes, Sight
from weft.models.run.tower_runner import Tower
from weft.models.text.placeholders import Marks
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.gguf_tower import Mmproj, file_sections, mmproj_beside, read_mmproj
from weft.models.weights.placement import Placement
from weft.models.weights.source import Source
from weft.models.weights.tower_reading import tower_weights
from weft.models.weights.weight_dtypes import cast_weights, check_dtypes, wanted
from weft.vision.steps import Steps, steps_of

if TYPE_CHECKING:
    from weft.program.device import Device

_BOTH_WAYS = "use_bidirectional_attention"
FILMS = "video_preprocessor_config.json"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
KINDS = tuple(kind for kind in USUAL if kind not in ("clip", "siglip"))


def sighted(raw: Fields, config: DecoderConfig) -> tuple[DecoderConfig, TowerConfig] | None:
    """Returns the config of a text model that reads pictures, and its tower's; None if weft reads
    no pictures for the folder's type."""
    kind = raw.text("model_type", "")
    if kind not in KINDS or raw.section("vision_config") is None:
        return None
    try:
        tower = read_tower(kind, raw, config.hidden)
    except ModelError as error:
        say(f"weft takes the text model alone, no pictures: {error}")
        return None
    text = raw.section("text_config") or raw
    if kind.startswith("qwen3_5"):
        config = turned(text, config, (11, 11, 10))
    looks: Any = _looks(kind, text)
    pad = text.integer("pad_token_id", 0, config.vocab - 1, 0)
    return replace(config, looks=looks, deep=tower.deep, layer_pad=pad), tower


def inside(raw: Mapping[str, Any]) -> str:
    """Returns the name of the text model within transformers' model of a config.json that sees,
    "language_model."; "" for a model of text alone."""
    if raw.get("model_type") not in KINDS or not isinstance(raw.get("vision_config"), Mapping):
        return ""
    return "text_model." if raw["model_type"] in ("idefics3", "smolvlm") else "language_model."


def _looks(kind: str, text: Fields) -> str:
    """Returns the layers in which tokens of a picture see each other, as DecoderConfig.looks."""
    if kind == "gemma3":
        return "all"
    usual = {"gemma4": "", "gemma4_unified": "vision"}
    if kind not in usual or text.data.get(_BOTH_WAYS, usual[kind]) != "vision":
        return ""
    return "near" if kind == "gemma4" else "all"


def with_eyes(
    folder: Path, raw: Fields, source: Source, device: Device | None, place: Placement
) -> tuple[Source, Callable[[Tokenizer], Eyes] | None]:
    """Returns the text model in a folder, and a maker of its eyes; None if it reads no pictures, or
    is a part of a model. Raises ModelError."""
    known = place.part is None and source.config.traced is None
    found = sighted(raw, source.config) if known else None
    if found is None:
        return source, None
    eyes = partial(_open, folder, raw, found[1], device, place)
    return replace(source, config=found[0]), eyes


def eyes_maker(
    folder: Path, raw: Fields, tower: TowerConfig, device: Device | None, place: Placement
) -> Callable[[Tokenizer], Eyes]:
    """Returns a maker of the eyes, which reads the weights. Raises ModelError."""
    return partial(_open, folder, raw, tower, device, place)


def file_eyes(
    path: Path, config: DecoderConfig, device: Device | None, place: Placement
) -> tuple[DecoderConfig, Callable[[Tokenizer], Eyes]] | None:
    """Returns the config of the text model in a GGUF file and a maker of its eyes, if its folder
    has an mmproj file. Returns None without one, or with one that weft cannot read; then it says
    so."""
    try:
        file = mmproj_beside(path, config.hidden)
        if file is None:
            return None
        found = read_mmproj(file)
        raw = Fields(found.raw, str(file))
        tower = read_tower(raw.text("model_type"), raw, config.hidden)
        if "blocks.0.attn.q.weight" in found.checkpoint:
            tower = replace(tower, fused_qkv=False)
        if config.family.startswith("qwen3_5"):
            config = turned(file_sections(path), config, (11, 11, 10))
    except (ModelError, FileFormatError) as error:
        say(f"weft takes the text model alone, no pictures: {error}")
        return None
    looks: Any = _looks(raw.text("model_type"), raw)
    config = replace(config, looks=looks, deep=tower.deep)
    return config, partial(_open_file, found, raw, tower, device, place)


def _open_file(
    found: Mmproj, raw: Fields, config: TowerConfig, device: Device | None, place: Placement,
    tokenizer: Tokenizer,
) -> Eyes:  # fmt: skip
    ids = {text: token for token, text in tokenizer.added.items()}
    if lacks := [text for text in found.ids.values() if text not in ids]:
        raise ModelError(f"{raw.where}: the text model has no token {lacks[0]!r} for pictures")
    named = Fields({**found.raw, **{k: ids[text] for k, text in found.ids.items()}}, raw.where)
    if odd := sorted(n for n in found.checkpoint if n.startswith(("v.", "mm."))):
        raise ModelError(f"{raw.where}: tensor {odd[0][:80]!r} is not part of this vision tower")
    kind, steps = raw.text("model_type"), steps_of(raw.where, found.steps)
    tower = tower_of(raw.where, found.checkpoint, config, device, place)
    seen = "pixtral" if kind == "llava" and config.family == "pixtral" else kind
    sight = _sight(seen, named, tokenizer, bool(_looks(kind, raw)))
    if sight.film < 0:
        return Eyes(tower, steps, sight)
    films = {k: v for k, v in found.steps.items() if k != "size"}
    films["image_processor_type"] = _FILMS[kind]
    return Eyes(tower, steps, sight, steps_of(raw.where, films))


def _open(
    folder: Path, raw: Fields, config: TowerConfig, device: Device | None, place: Placement,
    tokenizer: Tokenizer,
) -> Eyes:  # fmt: skip
    kind = raw.text("model_type")
    steps = read_steps(folder, kind)
    tower = open_tower(folder, config, device, place)
    kind = "pixtral" if kind == "llava" and config.family == "pixtral" else kind
    whole = bool(_looks(kind, raw.section("text_config") or raw))
    sight = _sight(kind, raw, tokenizer, whole)
    films = None if sight.film < 0 else film_steps(folder, kind)
    return Eyes(tower, steps, sight, films)


def open_tower(folder: Path, config: TowerConfig, device: Device | None, place: Placement) -> Tower:
    """Returns the tower of a folder on a device, in the requested dtype."""
    return tower_of(str(folder), open_checkpoint(folder), config, device, place)


def tower_of(
    where: str, checkpoint: Checkpoint, config: TowerConfig, device: Device | None, place: Placement
) -> Tower:
    """Returns the tower in a checkpoint on a device, in the requested dtype."""
    found = tower_weights(config, checkpoint).weights
    made = Weights(cast_weights(Path(where), found, wanted(place.dtype)))
    kept = as_dtype(made[config.matrix].dtype)
    check_dtypes(device, {"the vision tower": kept})
    narrow = place.act_dtype in (None, bfloat16, bfloat16.name) and kept is bfloat16
    return Tower(replace(config, act_dtype=bfloat16 if narrow else float32), made, device)


def read_steps(folder: Path, kind: str = "") -> Steps:
    """Returns the steps before the tower, as the folder's files say. Raises ModelError."""
    for name in (PREPROCESSOR, PROCESSOR):
        if not (folder / name).exists():
            continue
        found = read_config(folder, name).data
        if name == PROCESSOR:
            found = found.get("image_processor") or {}
        if not found:
            continue
        return steps_of(str(folder / name), {**found, **_ASKED.get(kind, {})})
    raise ModelError(
        f"{folder} has no {PREPROCESSOR}, which says how pictures are prepared; copy it from where "
        "the model comes from"
    )


def film_steps(folder: Path, kind: str) -> Steps | None:
    """Returns the steps of videos before the tower, as transformers finds them: in the first of
    three files. Raises ModelError."""
    named = {"image_processor_type": _FILMS[kind]}
    for name in (PROCESSOR, FILMS, PREPROCESSOR):
        if (folder / name).exists():
            found: Any = read_config(folder, name).data
            found = found.get("video_processor") if name == PROCESSOR else found
            if found:
                return steps_of(str(folder / name), {**found, **named})
    return None


_FILMS: Mapping[str, str] = {
    "qwen2_vl": "Qwen2VLVideoProcessor", "qwen2_5_vl": "Qwen2VLVideoProcessor",
    "qwen3_vl": "Qwen3VLVideoProcessor", "qwen3_5": "Qwen3VLVideoProcessor",
    "qwen3_5_moe": "Qwen3VLVideoProcessor",
}  # fmt: skip
# What transformers' processors say in the call, whatever the file says.
_ASKED: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {
        "do_pan_and_scan": False, "pan_and_scan_min_crop_size": 256,
        "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2,
    },
    "internvl": {"crop_to_patches": True},
}  # fmt: skip


def _sight(kind: str, raw: Fields, tokenizer: Tokenizer, whole: bool) -> Sight:
    usual = _TOKENS.get(kind, 0)
    most = 1 << 31
    raw = raw.section("vision_config") or raw if kind == "phi4_multimodal" else raw
    name = "image_token_id" if raw.data.get("image_token_id") is not None else "image_token_index"
    token = raw.integer(name, 0, most, usual)
    spelled = _spelled(raw, tokenizer, token)
    given, around = spelled, ("", "")
    if kind == "gemma3":
        ends = raw.integer("boi_token_index", 0, most, 255999), raw.integer(
            "eoi_token_index", 0, most, 256000)  # fmt: skip
        around = _spelled(raw, tokenizer, ends[0]), _spelled(raw, tokenizer, ends[1])
        given = around[0]
    elif kind.startswith("gemma4"):
        begin = raw.integer("boi_token_id", 0, most, 255999)
        end = raw.integer("eoi_token_id", 0, most, 258882)
        around = _spelled(raw, tokenizer, begin), _spelled(raw, tokenizer, end)
    elif kind in ("idefics3", "smolvlm"):
        around = "<fake_token_around_image>", ""
    elif kind in ("mistral3", "pixtral"):
        around = "[IMG_BREAK]", "[IMG_END]"
    elif kind == "internvl":
        around = "<img>", "</img>"
    marks = Marks(kind, spelled, given, around)
    sight = Sight(marks, token, whole, kind.startswith("qwen"))
    film = raw.integer("video_token_id", 0, most, _VIDEOS.get(kind, 0))
    if kind not in _FILMS or not tokenizer.added.get(film):
        return sight
    apart = "<|vision_start|>", "<|vision_end|>"
    marks = replace(marks, film=tokenizer.added[film], dated=_FILMS[kind][4] == "3", apart=apart)
    vision = raw.section("vision_config") or raw.having({})
    tempo = vision.number("tokens_per_second", 0.0, 1e6, 4.0) if kind == "qwen2_5_vl" else 0.0
    return replace(sight, marks=marks, film=film, tempo=tempo)


_TOKENS: Mapping[str, int] = {
    "llava_next_video": 32001, "video_llava": 32000, "vipllava": 32000,
    "llava": 32000, "llava_next": 32000, "llava_onevision": 151646, "phi4_multimodal": 200010,
    "gemma3": 262144, "gemma4": 258880, "gemma4_unified": 258880,
    "idefics3": 128257, "smolvlm": 128257,
    "mistral3": 10, "pixtral": 32000, "internvl": 151667, "qwen2_vl": 151655, "qwen2_5_vl": 151655,
    "qwen3_vl": 151655, "qwen3_5": 248056, "qwen3_5_moe": 248056,
}  # fmt: skip


_VIDEOS: Mapping[str, int] = {
    "qwen2_vl": 151656, "qwen2_5_vl": 151656, "qwen3_vl": 151656, "qwen3_5": 248057,
    "qwen3_5_moe": 248057,
}  # fmt: skip


def _spelled(raw: Fields, tokenizer: Tokenizer, token: int) -> str:
    """Returns the text of a token, which no other text gives."""
    found = tokenizer.added.get(token)
    if not found:
        raise ModelError(
            f"{raw.where}: the token {token} stands for pictures, and tokenizer.json has no added "
            "token of this id"
        )
    return found
