"""`weft bench pictures`: pictures per second of a model that gives vectors, or the time to the
first token about a picture, beside other libraries that are installed.

The pictures are noise over a pattern; each round has one of its own, so no cache helps.
"""

from __future__ import annotations

import inspect
import io
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from weft.bench.turns import Call, in_turns
from weft.core.errors import UsageError
from weft.models.run.model import Decoder
from weft.models.run.picture_encoder import PictureEncoder
from weft.vision.decode import decode
from weft.vision.tiles import prepare

PEERS = ("transformers", "onnxruntime")
TOGETHER = 8  # pictures of a step


def run(
    model: Any, size: tuple[int, int], repeats: int, threads: int, beside: Sequence[str],
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Returns the seconds of each side for pictures of `size` (height, width). Raises UsageError
    for a model without eyes."""
    if isinstance(model, PictureEncoder):
        return _vectors(model, size, repeats, threads, beside, tell)
    if isinstance(model, Decoder) and model.make_eyes is not None:
        return _first_token(model, size, repeats, threads, beside, tell)
    raise UsageError(f"{model.folder} has no eyes; expected a model that reads pictures")


def picture(size: tuple[int, int], seed: int) -> np.ndarray:
    """Returns a picture uint8 [height, width, 3]."""
    y, x = np.mgrid[: size[0], : size[1]]
    noise = np.random.default_rng(seed).integers(0, 9, (*size, 3))
    pattern = np.stack([y % 247, x % 247, (x * y) % 247], -1)
    return np.asarray(pattern + noise, np.uint8)


# -- vectors --------------------------------------------------------------------------------------


def _vectors(
    model: PictureEncoder, size: tuple[int, int], repeats: int, threads: int,
    beside: Sequence[str], tell: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture(size, 0)).save(file, "JPEG")
    data, tower = file.getvalue(), model.towers[0]
    pixels = np.stack([prepare(model.steps, decode(data)).pixels[0]] * TOGETHER)
    sides: dict[str, Call] = {"weft": lambda: tower.many(pixels)}
    sides["preparing"] = lambda: [prepare(model.steps, decode(data)) for _ in range(TOGETHER)]
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        theirs = _peer_vectors(model, pixels, threads, beside, Path(folder))
        want = np.asarray(tower.many(pixels)).reshape(TOGETHER, -1)
        for name, call in theirs.items():
            _same(name, np.asarray(call()).reshape(TOGETHER, -1), want)
        found = in_turns(sides | theirs, repeats, tell)
    preparing = found.pop("preparing")
    for row in found.values():
        row["pictures_s"] = round(TOGETHER / row["median_s"], 2)
    share = round(preparing["median_s"] / found["weft"]["median_s"], 4)
    return {"model": model.folder.name, "precision": model.precision, "batch": TOGETHER,
            "preparing_s": round(preparing["median_s"] / TOGETHER, 5), "preparing_share": share,
            "results": found}  # fmt: skip


def _peer_vectors(
    model: PictureEncoder, pixels: np.ndarray, threads: int, beside: Sequence[str], folder: Path
) -> dict[str, Call]:
    if not beside or not (find_spec("torch") and find_spec("transformers")):
        return {}
    import torch
    import transformers as t

    torch.set_num_threads(threads)
    whole: Any = t.AutoModel.from_pretrained(model.folder, dtype="float32").eval()

    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = whole

        def forward(self, pixel_values: Any) -> Any:
            look = getattr(self.whole, "get_image_features", self.whole)
            out = look(pixel_values=pixel_values)
            return getattr(out, "pooler_output", out)

    tower, given = Tower(), torch.from_numpy(pixels)

    def theirs() -> Any:
        with torch.no_grad():
            return tower(given).numpy()

    found: dict[str, Call] = {PEERS[0]: theirs} if PEERS[0] in beside else {}
    if PEERS[1] in beside and find_spec("onnxruntime") and find_spec("onnx"):
        import onnxruntime

        path = str(folder / "tower.onnx")
        torch.onnx.export(tower, (given,), path, input_names=["x"], dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        found[PEERS[1]] = lambda: session.run(None, {"x": pixels})[0]
    return found


def _same(name: str, made: np.ndarray, want: np.ndarray) -> None:
    off = float(np.abs(made - want).max() / np.abs(want).max())
    if off > 0.05:  # weights of fewer bits differ a little
        raise UsageError(f"{name} gives other vectors ({off:.2g} of the largest): not compared")


# -- the first token ------------------------------------------------------------------------------


def _first_token(
    model: Decoder, size: tuple[int, int], repeats: int, threads: int, beside: Sequence[str],
    tell: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    eyes = model.need_eyes()
    shown = [picture(size, seed) for seed in range(4 * repeats + 7)]  # for four sides
    prompts = iter(shown[2:])

    def ours(one: np.ndarray) -> list[int]:
        asked = model.look("What is this?", [one])
        made: Any = model.generate(asked, max_new_tokens=1, temperature=0)
        return list(made.ids)

    tokens = sum(len(part.vectors) for part in model.look("What?", shown[:1]).insets.parts)
    sides: dict[str, Call] = {
        "weft": lambda: ours(next(prompts)),
        "tower": lambda: eyes.see(next(prompts)),
    }
    steps = getattr(eyes, "steps", None)
    if steps is not None:
        sides["preparing"] = lambda: prepare(steps, next(prompts))
    theirs = _peer_token(model, threads, shown[0]) if PEERS[0] in beside else None
    same = None
    if theirs is not None:
        same = theirs(shown[-1]) == ours(shown[-1])
        sides[PEERS[0]] = lambda: theirs(next(prompts))
    found = in_turns(sides, repeats, tell)
    parts = {f"{n}_s": found.pop(n)["median_s"] for n in ("tower", "preparing") if n in found}
    return {"model": model.folder.name, "precision": model.precision, "picture_tokens": tokens,
            **parts, "same_token": same, "results": found}  # fmt: skip


def _peer_token(
    model: Decoder, threads: int, like: np.ndarray
) -> Callable[[np.ndarray], list[int]] | None:
    """Returns a function to the likeliest token about a picture by transformers, for the ids of
    weft's prompt with one of the size of `like`."""
    if not (find_spec("torch") and find_spec("transformers")):
        return None
    import torch
    import transformers as t

    torch.set_num_threads(threads)
    make: Any = t.AutoModelForImageTextToText.from_pretrained
    whole = make(model.folder, dtype="float32").eval()
    steps: Any = t.AutoImageProcessor
    images = steps.from_pretrained(model.folder)
    taken = inspect.signature(whole.forward).parameters
    given = torch.tensor([list(model.look("What is this?", [like]))])
    mark = given == int(whole.config.image_token_id)
    more = {"mm_token_type_ids": mark.int()} if "mm_token_type_ids" in taken else {}

    def token(one: np.ndarray) -> list[int]:
        made = dict(images(one, return_tensors="pt"))
        with torch.no_grad():
            out = whole(input_ids=given, logits_to_keep=1, **made, **more)
        return [int(out.logits[0, -1].argmax())]

    return token
