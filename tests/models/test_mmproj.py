"""llama.cpp's mmproj files beside text models: the answers are transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import finish
from gguf_vocab import byte_level
from gguf_zoo import write_gguf
from picture_zoo import greedy, tokenizer, write_pictured
from safetensors.numpy import load_file, save_file
from test_pictures import close, inputs_of, talk

import weft
from weft.core.errors import ModelError, UsageError
from weft.models.run.model import Decoder

TOWER = {"embeddings.patch_embedding": "v.patch_embd", "embeddings.position_embedding":
         "v.position_embd", "post_layernorm": "v.post_ln"}  # fmt: skip
LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.out_proj": "attn_out", "layer_norm1": "ln1", "layer_norm2": "ln2",
         "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}  # fmt: skip
FAMILIES = {"gemma3": ("gemma3", "<soft>"), "smolvlm": ("idefics3", "<image>")}
RENAMED = {"<soft>": "<image_soft_token>"}  # the name that the vocabulary of Gemma 3 has


def theirs(name: str) -> str:
    """llama.cpp's name of a tensor of the tower or the projector."""
    if name.endswith("mm_input_projection_weight"):
        return "mm.input_projection.weight"
    if name.endswith("mm_soft_emb_norm.weight"):
        return "mm.soft_emb_norm.weight"
    if "modality_projection" in name:
        return "mm.model.fc.weight"
    stem, _, what = name.rpartition(".")
    for ours, to in TOWER.items():
        if stem.endswith(ours):
            return f"{to}.{what}"
    number, part = stem.split("encoder.layers.")[1].split(".", 1)
    return f"v.blk.{number}.{LAYER[part]}.{what}"


def write_mmproj(
    path: Path, config: dict[str, Any], steps: dict[str, Any], tensors: dict[str, np.ndarray],
    kind: str,
) -> None:  # fmt: skip
    vision = config["vision_config"]
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(kind)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(vision["layer_norm_eps"])
    writer.add_vision_image_mean(steps["image_mean"])
    writer.add_vision_image_std(steps["image_std"])
    if kind == "gemma3":
        across = vision["image_size"] // vision["patch_size"]
        writer.add_vision_projector_scale_factor(
            across // int(config["mm_tokens_per_image"] ** 0.5)
        )
    else:
        writer.add_vision_projector_scale_factor(config["scale_factor"])
        writer.add_uint32("clip.vision.preproc_image_size", steps["size"]["longest_edge"])
    for name, value in tensors.items():
        if "head." in name:
            continue
        to = theirs(name)
        value = value + np.float32(1) if to == "mm.soft_emb_norm.weight" else value
        writer.add_tensor(to, np.ascontiguousarray(value))
    finish(writer)


def write_pair(name: str, folder: Path) -> tuple[Path, Any, Any]:
    """Writes a text model and its mmproj; returns the path of the text model, transformers' model
    and its processor."""
    kind, mark = FAMILIES[name]
    reference, processor = write_pictured(name, folder / "hf")
    config = json.loads((folder / "hf" / "config.json").read_text())
    steps = json.loads((folder / "hf" / "preprocessor_config.json").read_text())
    tensors = load_file(folder / "hf" / "model.safetensors")
    seeing = {k: v for k, v in tensors.items() if "vision" in k or "projector" in k
              or "connector" in k}  # fmt: skip
    (folder / "text").mkdir()
    own = {k.replace(".language_model.", ".").replace(".text_model.", "."): v
           for k, v in tensors.items() if k not in seeing}  # fmt: skip
    own = {k.removeprefix("language_model."): v for k, v in own.items()}
    save_file(own, folder / "text" / "model.safetensors")
    (folder / "text" / "config.json").write_text(json.dumps(config["text_config"]))
    template = json.loads((folder / "hf" / "tokenizer_config.json").read_text())["chat_template"]
    whole = tokenizer().to_str().replace(json.dumps(mark), json.dumps(RENAMED.get(mark, mark)))

    class Hf:
        class backend_tokenizer:
            @staticmethod
            def to_str() -> str:
                made = json.loads(whole)
                vocab = made["model"]["vocab"]
                vocab |= {token["content"]: token["id"] for token in made["added_tokens"]}
                made["model"]["merges"] = [["À", "Á"]]  # bytes that no text has
                vocab |= {f"unused {i}": i for i in range(len(vocab), 299)} | {"ÀÁ": 299}
                return json.dumps(made)

    keys = {"tokenizer.chat_template": template, "eos_token_id": 298, "bos_token_id": None}

    def vocabulary(writer: gguf.GGUFWriter) -> None:
        byte_level(Hf, **keys)(writer)

    path = write_gguf(folder / "text", folder / "model.gguf", tokenizer=vocabulary)
    write_mmproj(folder / "mmproj-model-f32.gguf", config, steps, seeing, kind)
    return path, reference, processor


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_transformers(name: str, tmp_path: Path) -> None:
    path, reference, processor = write_pair(name, tmp_path)
    inputs = inputs_of(name, processor)
    wanted, logits = greedy(reference, inputs, 16)
    model = weft.load(path, device="cpu", context=1024)
    rows: list[np.ndarray] = []

    def kept(ids: list[int], row: np.ndarray) -> np.ndarray:
        rows.append(row)
        return row

    made = model.generate(messages=talk(name), max_new_tokens=16, min_new_tokens=16, logits=kept)
    assert list(model.chat_ids(talk(name))) == inputs["input_ids"][0].tolist()
    close(rows[0], logits[0])
    assert list(made.ids) == wanted


def rewritten(path: Path, **changes: Any) -> None:
    """Writes a file with other metadata (None: without it), or a tensor more."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: t.data.copy() for t in reader.tensors}
    fields = {k: f.contents() for k, f in reader.fields.items() if k.startswith("clip.")}
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in (fields | {k: v for k, v in changes.items() if "." in k}).items():
        if value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    if "tensor" in changes:
        writer.add_tensor(changes["tensor"], np.zeros(3, np.float32))
    finish(writer)


def test_files_that_do_not_fit_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, _, _ = write_pair("smolvlm", tmp_path)
    beside = tmp_path / "mmproj-model-f32.gguf"
    whole = beside.read_bytes()

    def seeing() -> Decoder:
        model = weft.load(path, device="oracle")
        assert isinstance(model, Decoder)
        return model

    rewritten(beside, tensor="v.new.weight")
    with pytest.raises(ModelError, match=r"'v\.new\.weight' is not part of this vision tower"):
        seeing().need_eyes()
    beside.write_bytes(whole)
    rewritten(beside, **{"clip.projector_type": "resampler"})
    capfd.readouterr()
    with pytest.raises(UsageError, match="reads text alone"):
        seeing().need_eyes()
    assert "projector 'resampler' is not supported" in capfd.readouterr().err
    rewritten(beside, **{"clip.vision.projection_dim": 37})  # of another model
    assert seeing().make_eyes is None
    beside.write_bytes(whole[:100])
    assert seeing().make_eyes is None and "mmproj-model-f32.gguf" in capfd.readouterr().err
    beside.write_bytes(whole)
    (tmp_path / "mmproj-another.gguf").write_bytes(whole)
    assert seeing().make_eyes is not None
    assert "taken: mmproj-another.gguf" in capfd.readouterr().err
