"""CLIP, SigLIP and DINOv2 against transformers: vectors of pictures and texts, labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from click.testing import CliRunner
from picture_zoo import picture, tokenizer
from PIL import Image
from tokenizers import processors

import weft
from weft.cli import main
from weft.core.errors import ModelError, UsageError

PICTURES = [picture(k, 30 + 7 * k, 61 - 5 * k) for k in range(10)]
TEXTS = ["a red car", "two cats", "a longer line of text about nothing"]
VISION = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
          "num_attention_heads": 3, "image_size": 28, "patch_size": 7}  # fmt: skip
TEXT = {"vocab_size": 300, "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 5, "max_position_embeddings": 48}  # fmt: skip
Cases = Callable[[str], tuple[Path, Any, Any]]


def write(name: str, folder: Path) -> tuple[Any, Any]:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    torch.manual_seed(1)
    crop: dict[str, Any] = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    steps: Any = CLIPImageProcessorPil(**crop)
    if name == "clip":
        text = TEXT | {"eos_token_id": 297, "bos_token_id": 298, "pad_token_id": 297}
        model: Any = t.CLIPModel(
            t.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=18)
        )
    elif name == "siglip":
        text = TEXT | {"hidden_size": 24, "num_attention_heads": 3, "pad_token_id": 1,
                       "projection_size": 24}  # fmt: skip
        model = t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=VISION))
        steps = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    else:
        model = t.Dinov2Model(t.Dinov2Config(**VISION | {"mlp_ratio": 2, "image_size": 42}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, parameter.mean().item() if parameter.ndim < 2 else 0, 0.2)
    model.eval().save_pretrained(folder)
    said = {k: v for k, v in steps.to_dict().items() if not callable(v)}
    (folder / "preprocessor_config.json").write_text(json.dumps(said, default=str))
    made = tokenizer()
    ends = "<start_of_image>:0 $A <end_of_image>:0" if name == "clip" else "$A <image>:0"
    marks = [(token, made.token_to_id(token)) for token in (
        "<start_of_image>", "<end_of_image>", "<image>")]  # fmt: skip
    made.post_processor = processors.TemplateProcessing(single=ends, special_tokens=marks)
    made.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    if name == "clip":
        config["text_config"]["eos_token_id"] = made.token_to_id("<end_of_image>")
        model.config.text_config.eos_token_id = made.token_to_id("<end_of_image>")
        for module in model.modules():
            if hasattr(module, "eos_token_id"):
                module.eos_token_id = made.token_to_id("<end_of_image>")
    (folder / "config.json").write_text(json.dumps(config))
    return model, steps


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    made: dict[str, Any] = {}

    def get(name: str) -> tuple[Path, Any, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = (folder, *write(name, folder))
        return made[name]

    return get


def close(got: np.ndarray, want: Any, tol: float = 2e-5) -> None:
    want = want.detach().numpy()
    np.testing.assert_allclose(got, want, atol=tol * np.abs(want).max(), rtol=tol)


def text_inputs(name: str, folder: Path) -> dict[str, Any]:
    own = t.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    rows = own(TEXTS)["input_ids"]
    if name == "clip":
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[258] * (longest - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows])
        return {"input_ids": ids, "attention_mask": mask}
    return {"input_ids": torch.tensor([[*row, *[1] * (48 - len(row))] for row in rows])}


@pytest.mark.parametrize("device", ["cpu", "oracle"])
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_pairs(cases: Cases, name: str, device: str) -> None:
    folder, reference, steps = cases(name)
    model: Any = weft.load(folder, device=device)
    given = PICTURES if device == "cpu" else PICTURES[:2]
    pixels = torch.from_numpy(np.stack(steps(given, return_tensors="np")["pixel_values"]))
    with torch.no_grad():
        want = reference(pixel_values=pixels, **text_inputs(name, folder))
    close(model.embed_images(given, normalize=True), want.image_embeds)
    close(model.embed(TEXTS, normalize=True), want.text_embeds)
    logits = want.logits_per_image
    found = model.classify(given, TEXTS, template="{}")
    close(found, logits.softmax(1) if name == "clip" else logits.sigmoid(), 2e-4)
    assert model.embed_images(given[0]).shape == (1, model.dim)


def test_dinov2(cases: Cases) -> None:
    folder, reference, steps = cases("dinov2")
    model: Any = weft.load(folder, device="cpu")
    pixels = torch.from_numpy(np.stack(steps(PICTURES, return_tensors="np")["pixel_values"]))
    with torch.no_grad():
        close(model.embed_images(PICTURES), reference(pixels).pooler_output)
    with pytest.raises(UsageError, match="reads pictures alone"):
        model.embed("text")
    with pytest.raises(UsageError, match="is a model of pictures"):
        model.generate("text")


def test_batches_change_no_bit_and_narrow_weights_little(cases: Cases) -> None:
    folder, _, _ = cases("clip")
    model: Any = weft.load(folder, device="cpu")
    whole = model.embed_images(PICTURES)
    alone = np.concatenate([model.embed_images(one) for one in PICTURES])
    np.testing.assert_array_equal(whole, alone)
    narrow: Any = weft.load(folder, device="cpu", dtype="bfloat16")
    off = np.abs(narrow.embed_images(PICTURES, normalize=True) - model.embed_images(
        PICTURES, normalize=True)).max()  # fmt: skip
    assert 1e-6 < off < 0.05 and narrow.precision == "bfloat16"


def test_a_folder_is_searched(cases: Cases, tmp_path: Path) -> None:
    folder, _, _ = cases("clip")
    for k, one in enumerate(PICTURES[:4]):
        Image.fromarray(one).save(tmp_path / f"p{k}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    model: Any = weft.load(folder, device="cpu")
    words = model.embed(["a red car"], normalize=True)[0]
    scores = model.embed_images(PICTURES[:4], normalize=True) @ words
    ask = ["embed", str(folder), "--images", str(tmp_path), "--query", "a red car", "--top", "2",
           "--json"]  # fmt: skip
    made = json.loads(CliRunner().invoke(main.cli, ask).stdout)
    assert [hit["image"] for hit in made["hits"]] == [
        str(tmp_path / f"p{k}.png") for k in np.argsort(-scores)[:2]
    ]
    plain = json.loads(CliRunner().invoke(main.cli, [*ask[:4], "--json"]).stdout)
    assert plain["dim"] == 18 and len(plain["embeddings"]) == 4


def test_damaged_folders_are_named(cases: Cases, tmp_path: Path) -> None:
    folder, _, _ = cases("siglip")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["intermediate_size"] = 44
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"has shape \[40, 24\].*asks for \[44, 24\]"):
        weft.load(tmp_path, device="cpu").embed_images(PICTURES[:1])
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"has no preprocessor_config\.json"):
        weft.load(tmp_path, device="cpu")
