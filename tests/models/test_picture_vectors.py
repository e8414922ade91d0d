"""CLIP, SigLIP and DINO against transformers: vectors of pictures and texts, labels."""

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
from picture_zoo import picture
from PIL import Image
from vector_zoo import write_vectors

import weft
from weft.cli import main
from weft.core.errors import ModelError, UsageError
from weft.models.run.sight import read_steps
from weft.vision.tiles import prepare

PICTURES = [picture(k, 30 + 7 * k, 61 - 5 * k) for k in range(10)]
TEXTS = ["a red car", "two cats", "a longer line of text about nothing"]
Cases = Callable[[str], tuple[Path, Any, Any]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    made: dict[str, Any] = {}

    def get(name: str) -> tuple[Path, Any, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = (folder, *write_vectors(name, folder))
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


@pytest.mark.parametrize("name", ["dinov2", "dinov3", "dinov3-plain"])
def test_dino(cases: Cases, name: str) -> None:
    """Without texts; DINOv3's registers and gate or neither."""
    folder, reference, steps = cases(name)
    model: Any = weft.load(folder, device="cpu")
    pixels = torch.from_numpy(np.stack(steps(PICTURES, return_tensors="np")["pixel_values"]))
    with torch.no_grad():
        close(model.embed_images(PICTURES), reference(pixels).pooler_output)
    with pytest.raises(UsageError, match="reads pictures alone"):
        model.embed("text")
    with pytest.raises(UsageError, match="is a model of pictures"):
        model.generate("text")


def test_the_steps_of_dinov3(tmp_path: Path) -> None:
    """Its processor resizes after the division by 255, so pixels differ by a rounding."""
    said = {"image_processor_type": "DINOv3ViTImageProcessorFast", "do_center_crop": None,
            "size": {"height": 32, "width": 40}, "resample": 2}  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    steps = read_steps(tmp_path)
    for one in (picture(1, 91, 70), picture(2, 20, 33)):
        x = torch.from_numpy(one).permute(2, 0, 1)[None] / 255
        x = torch.nn.functional.interpolate(x, (32, 40), mode="bilinear", antialias=True)
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (
            (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))  # fmt: skip
        off = (torch.from_numpy(prepare(steps, one).pixels[0]) - (x[0] - mean) / std) * std
        assert off.abs().max() <= 1.01 / 255


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


def test_labels_of_ones_own(cases: Cases, tmp_path: Path) -> None:
    folder, _, _ = cases("siglip")
    for k, one in enumerate(PICTURES[:2]):
        Image.fromarray(one).save(tmp_path / f"p{k}.png")
    model: Any = weft.load(folder, device="cpu")
    want = model.classify(PICTURES[:2], TEXTS, template="see {}")
    ask = ["classify", str(folder), "--images", str(tmp_path), "--template", "see {}", "--top", "2",
           "--device", "cpu", *(x for text in TEXTS for x in ("--label", text))]  # fmt: skip
    made = json.loads(CliRunner().invoke(main.cli, [*ask, "--json"]).stdout)
    for row, scores in zip(made["labels"], want):
        order = np.argsort(-scores, kind="stable")[:2]
        assert row == [{"label": TEXTS[k], "score": float(scores[k])} for k in order]
    assert "p1.png" in CliRunner().invoke(main.cli, ask).stdout
    for wrong, said in (
        (ask[:4], "at least one --label"),
        ([*ask, "a text"], "goes with"),
        ([*ask[:2], "x", "--label", "y"], "are for --images"),
    ):
        done = CliRunner().invoke(main.cli, wrong)
        assert done.exit_code == 2 and said in done.output


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
