"""Videos of the Qwen-VL families against transformers: frames, prompts, logits, greedy tokens."""

from __future__ import annotations

import base64
import importlib
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from picture_zoo import greedy, picture, write_pictured
from PIL import Image
from rows import few
from test_pictures import close
from transformers.video_utils import VideoMetadata

import weft
from weft.cli import main
from weft.core.errors import FileFormatError, LimitError, ModelError, UsageError
from weft.vision import films
from weft.vision.films import Video


def processing(name: str) -> Any:
    """A module of transformers that asks for torchvision, which only its resizing needs."""
    hollow = {n: MagicMock() for n in (
        "torchvision", "torchvision.transforms", "torchvision.transforms.v2",
        "torchvision.transforms.v2.functional", "torchvision.io")}  # fmt: skip
    sys.modules.update(hollow)
    try:
        return importlib.import_module(f"transformers.models.{name}.video_processing_{name}")
    finally:
        for known in hollow:
            del sys.modules[known]


qwen2, qwen3 = processing("qwen2_vl"), processing("qwen3_vl")
FRAMES = [picture(k, 37, 53) for k in range(9)]
STILL = picture(9, 41, 60)
MARKS = "<|vision_start|>{}<|vision_end|>"
STEPS = {"patch_size": 7, "merge_size": 2, "temporal_patch_size": 2, "min_frames": 4,
         "max_frames": 8, "fps": 2.5, "image_mean": [0.4, 0.5, 0.45], "image_std": [0.2, 0.3, 0.25],
         "size": {"shortest_edge": 784, "longest_edge": 4000}}  # fmt: skip


class Theirs:
    """transformers' video processor, which asks for torchvision, with Pillow's resizing."""

    def __init__(self, new: bool) -> None:
        self.cls = qwen3.Qwen3VLVideoProcessor if new else qwen2.Qwen2VLVideoProcessor
        self.smart: Any = qwen3.smart_resize if new else qwen2.smart_resize
        self.new, self.merge_size, self.temporal_patch_size = new, 2, 2

    def __call__(self, videos: Any, video_metadata: Any, **more: Any) -> dict[str, Any]:
        (frames,), (said,) = videos, video_metadata
        metadata = VideoMetadata(**said)
        own = SimpleNamespace(num_frames=None, **STEPS)
        numbers = [int(n) for n in self.cls.sample_frames(own, metadata)]
        metadata.frames_indices = numbers
        height, width = frames[0].shape[:2]
        sizes = {"factor": 14, "min_pixels": 784, "max_pixels": 4000}
        counts = {"num_frames": len(numbers), "temporal_factor": 2} if self.new else {}
        tall, wide = self.smart(height=height, width=width, **counts, **sizes)
        made = [np.asarray(Image.fromarray(frames[n]).resize((wide, tall), 3)) for n in numbers]
        pixels = torch.tensor(np.stack(made)).permute(0, 3, 1, 2)[None] / 255.0
        mean, std = (torch.tensor(STEPS[k])[:, None, None] for k in ("image_mean", "image_std"))
        flat, *grid = self.cls.patchify(None, (pixels - mean) / std, 7, 2, 2)
        return {"pixel_values_videos": flat[0], "video_grid_thw": torch.tensor([grid]),
                "video_metadata": [metadata]}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Any] = {}

    def get(name: str) -> tuple[Path, Any, Any]:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            reference, processor = write_pictured(name, folder)
            processor.video_processor = Theirs(not name.startswith("qwen2"))
            (folder / "video_preprocessor_config.json").write_text(json.dumps(STEPS))
            path = folder / "tokenizer_config.json"
            said = json.loads(path.read_text())
            both = "{% if p.type == 'video' %}" + MARKS.format("<|video_pad|>") + "{% elif"
            said["chat_template"] = said["chat_template"].replace("{% if p.type", both + " p.type")
            path.write_text(json.dumps(said))
            known[name] = (folder, reference, processor)
        return known[name]

    return get


def animation(kind: str, milliseconds: int, frames: Any = FRAMES) -> bytes:
    out = io.BytesIO()
    first, *rest = [Image.fromarray(one) for one in frames]
    first.save(out, kind, save_all=True, append_images=rest, duration=milliseconds, loop=0,
               **({"lossless": True} if kind == "WEBP" else {}))  # fmt: skip
    return out.getvalue()


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_family(made: Any, name: str) -> None:
    """An animation of 5 frames a second, a picture, and a second video."""
    folder, reference, processor = made(name)
    text = f"user: {MARKS.format('<|video_pad|>')}what is {MARKS.format('<|image_pad|>')}\n"
    inputs = dict(processor(
        images=[STILL], videos=[FRAMES], text=[text + "assistant:"], return_tensors="pt",
        video_metadata=[{"fps": 5.0, "total_num_frames": 9}],
    ))  # fmt: skip
    inputs = {k: v for k, v in inputs.items() if k != "video_metadata"}
    wanted, logits = greedy(reference, inputs, 16)
    model = weft.load(folder, device="cpu", context=1024)
    said = [{"role": "user", "content": [
        {"type": "video", "video": animation("PNG", 200)}, {"type": "text", "text": "what is "},
        {"type": "image", "image": STILL}]}]  # fmt: skip
    assert list(model.chat_ids(said)) == inputs["input_ids"][0].tolist()
    rows: list[np.ndarray] = []
    found = model.generate(messages=said, max_new_tokens=16,
                           logits=lambda ids, row: rows.append(row) or row)  # fmt: skip
    close(np.stack(rows), logits)
    assert list(found.ids) == wanted
    still = inputs["pixel_values_videos"]
    _, other = greedy(reference, inputs | {"pixel_values_videos": still.flip(0)}, 1)
    assert np.abs(other - logits[0]).max() > 1e-2  # frames matter


@pytest.mark.parametrize(
    "options", few([{"dtype": "bfloat16"}, {"quant": "int8"}], {"quant": "int8"})
)
def test_narrow_numbers(made: Any, options: dict[str, Any]) -> None:
    folder, *_ = made("qwen2_5_vl")
    rows: list[np.ndarray] = []
    for given in ({}, options):
        model = weft.load(folder, device="cpu", context=512, **given)
        model.generate(model.look("what?", [Video(FRAMES[:4])]), max_new_tokens=1,
                       logits=lambda ids, row: rows.append(row) or row)  # fmt: skip
    off = np.abs(rows[0] - rows[1]).max() / np.abs(rows[0]).max()
    assert 1e-7 < off < 0.1


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_animations_are_their_frames(kind: str) -> None:
    film = films.opened(animation(kind, 250))
    assert (film.count, film.rate) == (9, 4.0)
    wanted = [Image.open(io.BytesIO(animation(kind, 250))) for _ in (0, 1)]
    for n, image, got in zip((3, 8), wanted, film.pick([3, 8])):
        image.seek(n)
        np.testing.assert_array_equal(got, np.asarray(image.convert("RGB")))
    if kind != "GIF":
        np.testing.assert_array_equal(film.pick([5])[0], FRAMES[5])


@pytest.mark.parametrize("count, rate", [(1, 2.0), (2, 30.0), (7, 3.0), (9, 2.0), (40, 10.0)])
@pytest.mark.parametrize("new", [False, True])
def test_the_frames_are_transformers(made: Any, new: bool, count: int, rate: float) -> None:
    folder, *_ = made("qwen3_vl" if new else "qwen2_vl")
    steps = weft.load(folder, device="oracle").need_eyes().films
    film = films.Film(count, rate, lambda numbers: [])
    own = SimpleNamespace(num_frames=None, **STEPS)
    metadata = VideoMetadata(total_num_frames=count, fps=rate)
    got = films.chosen(steps, film, Video(None), "")[1]
    if count == 1 and not new:  # theirs divides by zero
        assert got == [0]
        return
    assert got == [int(n) for n in Theirs(new).cls.sample_frames(own, metadata)]


def test_a_folder_and_an_option_of_the_command(made: Any, tmp_path: Path) -> None:
    folder, *_ = made("qwen2_5_vl")
    for n, frame in enumerate(FRAMES[:4]):
        Image.fromarray(frame).save(tmp_path / f"{n + 9}.png")  # 9, 10, 11, 12
    model = weft.load(folder, device="cpu")
    want = model.generate(model.look("what?", [Video(FRAMES[:4], 1.0)]), max_new_tokens=5)
    turns = [model.look("what?", [Video(tmp_path, by)]).insets.turns.max() for by in (0.1, 4)]
    assert turns[0] > turns[1]
    said = CliRunner().invoke(main.cli, [
        "run", str(folder), "what?", "--video", str(tmp_path), "--fps", "1", "--max-new-tokens",
        "5", "--device", "cpu", "--json"])  # fmt: skip
    assert json.loads(said.stdout)["ids"] == list(want.ids), said.stderr


def test_wrong_videos_are_named(made: Any, tmp_path: Path) -> None:
    folder, *_ = made("qwen2_vl")
    model = weft.load(folder, device="cpu", context=512)
    gif = animation("GIF", 100)
    uneven = [*FRAMES[:2], FRAMES[0][:, :40]]

    def look(source: Any, **more: Any) -> Any:
        part = {"type": "video", "video": source, **more}
        return model.chat_ids([{"role": "user", "content": [part]}])

    for source, more, error, match in (
        (tmp_path, {}, FileFormatError, "has no frames"),
        (tmp_path / "none.gif", {}, UsageError, "cannot read the video"),
        (b"RIFF....AVI ", {}, FileFormatError, "not a video that weft reads .*ffmpeg"),
        (gif[: len(gif) // 2], {}, FileFormatError, "damaged"),
        (uneven, {}, FileFormatError, "frame 3 has 40 x 37 pixels, the first 53 x 37"),
        (gif, {"fps": 2, "frames": 4}, UsageError, "give one"),
        (gif, {"fps": float("nan")}, UsageError, "fps is nan"),
        (gif, {"fps": "2"}, UsageError, "expected a number"),
        (gif, {"frames": 99}, UsageError, "has 9 frames; frames is 99"),
        (7, {}, UsageError, "a folder or a list of frames"),
        ("https://some.org/a.mp4", {}, UsageError, "weft fetches nothing"),
        (FRAMES[:1] * 5000, {}, LimitError, "5000 frames"),
    ):
        with pytest.raises(error, match=match):
            look(source, **more)
    with pytest.raises(UsageError, match=r"0 places for a video .*1 were given"):
        model.need_eyes().prompt("see", [Video(FRAMES)], model.tokenizer, False)


def test_models_of_pictures_refuse_videos(tmp_path: Path) -> None:
    write_pictured("llava", tmp_path)
    model = weft.load(tmp_path, device="oracle")
    with pytest.raises(UsageError, match="reads pictures, no videos"):
        model.look("what?", [Video(FRAMES)])


def test_a_data_uri_of_frames() -> None:
    """vLLM's form: JPEG frames with commas between them."""
    from weft.models.text.parts import with_places

    parts = []
    for frame in FRAMES[:2]:
        out = io.BytesIO()
        Image.fromarray(frame).save(out, "PNG")
        parts.append(base64.b64encode(out.getvalue()).decode())
    uri = "data:video/jpeg;base64," + ",".join(parts)
    said, (video,) = with_places([{"role": "user", "content": [
        {"type": "video_url", "video_url": {"url": uri}}]}])  # fmt: skip
    assert said[0]["content"] == [{"type": "video"}]
    np.testing.assert_array_equal(films.opened(video.source).pick([1])[0], FRAMES[1])


def test_steps_that_do_not_hold_are_named() -> None:
    """Older files say the sizes as pixels; numbers come from a stranger."""
    from weft.vision.steps import steps_of

    raw = {"image_processor_type": "Qwen2VLVideoProcessor", "min_pixels": 3136,
           "max_pixels": 12544, "size": {"min_pixels": 3136, "max_pixels": 12544}}  # fmt: skip
    made = films.groups(steps_of("file", raw), Video(FRAMES[:3]))
    assert made.pixels[0].shape == (2, 3, 56, 84) and len(made.pixels) == 2
    for name, value in (("temporal_patch_size", 0), ("min_frames", "x"), ("fps", -1.0)):
        with pytest.raises(ModelError, match=f"the steps of videos have {name}"):
            films.groups(steps_of("file", raw | {name: value}), Video(animation("GIF", 100)))
