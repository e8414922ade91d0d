"""llama.cpp's mmproj files of Qwen-VL, LLaVA, Pixtral and InternVL beside text models, with the
names of the gguf package: the answers are transformers' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import finish
from gguf_vocab import byte_level
from gguf_zoo import write_gguf
from picture_zoo import greedy, tokenizer, write_pictured
from rows import few
from safetensors.numpy import load_file, save_file
from test_pictures import close, inputs_of, talk

import weft

KINDS = {
    "llava": "mlp", "llava_next": "mlp", "pixtral": "pixtral", "mistral3": "pixtral",
    "internvl": "internvl", "qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
}  # fmt: skip
SEES = ("visual", "vision", "projector", "connector", "image_newline")
NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
Tensors = Iterator[tuple[str, np.ndarray]]


def by_map(name: str) -> str:
    """The gguf package's own name of a tensor."""
    for known in (name, name.removeprefix("model."), f"model.{name}",
                  name.replace("vision_tower.", "vision_tower.vision_model.")):  # fmt: skip
        found = NAMES.get_name(known, try_suffixes=(".weight", ".bias"))
        if found:
            return str(found)
    raise AssertionError(name)


def permuted(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of an interleaved rope, as the converter writes Pixtral's."""
    return value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def renamed(kind: str, name: str, value: np.ndarray, config: dict[str, Any]) -> Tensors:
    vision = config["vision_config"]
    if "image_newline" in name:
        yield "model.image_newline", value
    elif name.endswith("patch_embed.proj.weight"):
        yield "v.patch_embd.weight", value[:, :, 0]
        yield "v.patch_embd.weight.1", value[:, :, 1]
    elif "deepstack_merger_list" in name:
        _, _, _, k, part, what = name.split(".")
        layer = vision["deepstack_visual_indexes"][int(k)]
        yield f"v.deepstack.{layer}.{part.replace('linear_', '')}.{what}", value
    elif "merger.linear_fc" in name or "merger.mlp." in name or "merger.norm" in name:
        part, what = name.split(".")[-2:]
        to = {"linear_fc1": "mm.0", "linear_fc2": "mm.2", "norm": "v.post_ln"}.get(part)
        yield f"{to or 'mm.' + part}.{what}", value
    elif ".attn.qkv." in name and kind != "qwen3vl_merger":
        at, _, what = by_map(name.replace(".qkv.", ".q.")).rpartition(".")
        for role, part in zip("qkv", np.split(value, 3)):
            yield f"{at[:-1]}{role}.{what}", part
    elif kind == "mlp" and "multi_modal_projector" in name:
        yield name.split("projector.")[1].replace("linear_1", "mm.0").replace(
            "linear_2", "mm.2"), value  # fmt: skip
    elif kind == "internvl" and "multi_modal_projector" in name:
        own = {"layer_norm": "0", "linear_1": "1", "linear_2": "3"}
        part, what = name.split(".")[-2:]
        yield f"mm.model.mlp.{own[part]}.{what}", value
    elif "lambda_" in name:
        yield by_map(name.replace("lambda_", "lambda_")) + ".weight", value
    elif kind == "pixtral" and name.endswith(("q_proj.weight", "k_proj.weight")):
        yield by_map(name), permuted(value, vision["num_attention_heads"])
    else:
        yield by_map(name), value


def write_mmproj(path: Path, name: str, config: dict[str, Any], steps: dict[str, Any],
                 tensors: dict[str, np.ndarray], legacy: bool) -> None:  # fmt: skip
    vision, text, kind = config["vision_config"], config["text_config"], KINDS[name]
    layers = vision.get("num_hidden_layers") or vision["depth"]
    if kind == "mlp":
        layers -= 1  # vectors are taken before the last
    wide, patch = vision.get("embed_dim") or vision["hidden_size"], vision["patch_size"]
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(kind)
    writer.add_vision_projection_dim(text["hidden_size"])
    side, patch = (x[0] if isinstance(x, list) else x for x in (
        vision.get("image_size") or 560, patch))  # fmt: skip
    side = steps["size"]["longest_edge"] if kind == "pixtral" else side
    writer.add_vision_image_size(side)
    writer.add_vision_patch_size(patch)
    writer.add_vision_embedding_length(wide)
    writer.add_vision_feed_forward_length(vision.get("intermediate_size") or 7)  # Qwen2-VL's is odd
    writer.add_vision_block_count(layers)
    writer.add_vision_head_count(vision.get("num_attention_heads") or vision["num_heads"])
    usual = 1e-6 if kind.startswith("qwen") else 1e-5
    writer.add_vision_attention_layernorm_eps(vision.get("layer_norm_eps") or usual)
    writer.add_vision_image_mean(steps["image_mean"])
    writer.add_vision_image_std(steps["image_std"])
    if kind.startswith("qwen"):
        writer.add_uint32("clip.vision.image_min_pixels", steps["size"]["shortest_edge"])
        writer.add_uint32("clip.vision.image_max_pixels", steps["size"]["longest_edge"])
    if kind in ("qwen2.5vl_merger", "pixtral"):
        (writer.add_vision_use_silu if vision["hidden_act"] == "silu" else
         writer.add_vision_use_gelu)(True)  # fmt: skip
    if name == "qwen2_5_vl":
        writer.add_vision_n_wa_pattern(2)
        writer.add_uint32("clip.vision.window_size", vision["window_size"])
    if name == "qwen3_vl":
        flags = [i in vision["deepstack_visual_indexes"] for i in range(layers)]
        writer.add_vision_is_deepstack_layers(flags)
    if name == "mistral3":
        writer.add_vision_spatial_merge_size(config["spatial_merge_size"])
    if name == "internvl":
        writer.add_vision_projector_scale_factor(2)
        writer.add_uint32("clip.vision.preproc_max_tiles", steps["max_patches"])
    if name == "llava_next":
        writer.add_array("clip.vision.image_grid_pinpoints",
                         [n for pair in steps["image_grid_pinpoints"] for n in pair])  # fmt: skip
    for own, value in tensors.items():
        for to, part in renamed(kind, own, value, config):
            if f"v.blk.{layers}." in to or (kind == "mlp" and "post_ln" in to):
                continue
            to = to.replace("class_embd.weight", "class_embd")
            swapped = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"} if legacy else {}
            to = next((to.replace(a, b) for a, b in swapped.items() if a in to), to)
            writer.add_tensor(to, np.ascontiguousarray(part))
    finish(writer)


def write_pair(name: str, folder: Path, legacy: bool = False) -> tuple[Path, Any, Any]:
    """Writes a text model and its mmproj; returns the path of the text model, transformers' model
    and its processor."""
    reference, processor = write_pictured(name, folder / "hf")
    config, steps, said = (json.loads((folder / "hf" / f"{n}.json").read_text()) for n in (
        "config", "preprocessor_config", "tokenizer_config"))  # fmt: skip
    tensors = load_file(folder / "hf" / "model.safetensors")
    seeing = {k: v for k, v in tensors.items() if any(part in k for part in SEES)}
    (folder / "text").mkdir()
    own = {k.replace("language_model.", "", 1): v for k, v in tensors.items() if k not in seeing}
    own = {k if k.startswith(("model.", "lm_head")) else f"model.{k}": v for k, v in own.items()}
    save_file(own, folder / "text" / "model.safetensors")
    (folder / "text" / "config.json").write_text(json.dumps(config["text_config"]))
    whole = json.loads(tokenizer().to_str())
    vocab = whole["model"]["vocab"]
    vocab |= {token["content"]: token["id"] for token in whole["added_tokens"]}
    whole["model"]["merges"] = [["À", "Á"]]  # bytes that no text has
    vocab |= {f"unused {i}": i for i in range(len(vocab), 299)} | {"ÀÁ": 299}

    class Hf:
        class backend_tokenizer:
            @staticmethod
            def to_str() -> str:
                return json.dumps(whole)

    keys = {"tokenizer.chat_template": said["chat_template"], "eos_token_id": 298,
            "bos_token_id": None}  # fmt: skip
    path = write_gguf(folder / "text", folder / "model.gguf", tokenizer=byte_level(Hf, **keys))
    write_mmproj(folder / "mmproj-model-f32.gguf", name, config, steps, seeing, legacy)
    return path, reference, processor


@pytest.mark.parametrize("name, legacy", few(
    [*((n, False) for n in KINDS), ("llava", True)],
    *((n, False) for n in ("llava_next", "pixtral", "internvl", "qwen2_vl", "qwen3_vl")),
    ("llava", True),
))  # fmt: skip
def test_answers_are_transformers(name: str, legacy: bool, tmp_path: Path) -> None:
    path, reference, processor = write_pair(name, tmp_path, legacy)
    inputs = inputs_of(name, processor)
    wanted, logits = greedy(reference, inputs, 16)
    model = weft.load(path, device="cpu", context=1024)
    assert list(model.chat_ids(talk(name))) == inputs["input_ids"][0].tolist()
    rows: list[np.ndarray] = []

    def kept(ids: list[int], row: np.ndarray) -> np.ndarray:
        rows.append(row)
        return row

    made = model.generate(messages=talk(name), max_new_tokens=16, min_new_tokens=16, logits=kept)
    close(rows[0], logits[0])
    assert list(made.ids) == wanted
