"""`weft run NET --image PICTURE`: a net that sees, from a file, and its answer as text, JSON and a
picture."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import functions, options
from weft.core import text
from weft.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from weft.vision.answers import Answer
    from weft.vision.films import Video
    from weft.vision.nets import Entry


sees = options.together(
    options.option("--task", type=click.Choice(("classify", "detect", "segment", "depth")),
                   help="What a net finds in a picture (default: what its outputs say)."),
    options.option("--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True,
                   help="Show objects that are more probable than this."),
    options.option("--stretch", is_flag=True,
                   help="Resize a picture to the net's own size, whatever its proportion."),
)  # fmt: skip


watches = options.together(
    click.option("--video", "videos", multiple=True, type=click.Path(),
                 help="A video for PROMPT to be about: a folder of frames, or an animated GIF, "
                 "WebP or PNG. May be repeated."),
    click.option("--fps", type=click.FloatRange(0, 1000, min_open=True),
                 help="Look at so many frames a second of a video; of a folder: how many were "
                 "taken a second [default: 2]."),
    click.option("--frames", type=click.IntRange(1), help="Look at so many frames of a video."),
)  # fmt: skip


def videos_of(paths: Sequence[str], fps: float | None, frames: int | None) -> list[Video]:
    """Returns the videos of a command. Raises click.UsageError for options without one."""
    if not paths:
        if fps is not None or frames is not None:
            raise click.UsageError("--fps and --frames are for --video")
        return []
    from weft.vision.films import Video

    return [Video(path, fps, frames) for path in paths]


def see(
    path: str, images: Sequence[str], device: str, output: str | None, as_json: bool,
    task: str | None, threshold: float, stretch: bool,
) -> str:  # fmt: skip
    """Shows pictures to the net in a file; what the command prints. With `output`, a folder, each
    answer is drawn into its picture there, with its JSON next to it."""
    from weft.vision import nets
    from weft.vision.decode import decode

    function = functions.of_file(path, device)
    entry, masks = _entries(path, function)
    guide = nets.guide(entry, *_beside(path), function.metadata, stretch)
    if guide.assumed:
        note = f"weft: {path} says no steps for pictures; taken: {guide.assumed}"
        print(note, file=sys.stderr)
    answers: list[dict[str, Any]] = []
    shown: list[str] = []
    for name in images:
        image = decode(name)
        start = time.perf_counter()
        pixels, made = nets.fitted(guide, entry, image)
        given = {entry.name: pixels} | {n: _ones(pixels, entry, d) for n, d in masks.items()}
        outputs = function.call(given)
        found = nets.answer(guide, outputs, made, image.shape[:2], task or "", threshold)
        took = time.perf_counter() - start
        facts = {"image": name, "seconds": round(took, 4), **found.facts()}
        if output is not None:
            facts["drawn"] = _save(Path(output), name, image, found, facts)
        answers.append(facts)
        shown.append(_shown(facts))
    return "\n".join(map(json.dumps, answers)) if as_json else "\n\n".join(shown)


def _entries(path: str, function: functions.FileFunction) -> tuple[Entry, dict[str, np.dtype]]:
    """The input for pictures, and those for masks of pixels with their dtypes."""
    from weft.vision.nets import Entry, is_entry

    pictures: list[Entry] = []
    masks: dict[str, np.dtype] = {}
    for i in function.inputs:
        shape = tuple(n if isinstance(n, int) else None for n in i.shape)
        if is_entry(shape):
            pictures.append(Entry(i.name, shape, i.dtype))
        elif i.name == "pixel_mask":
            masks[i.name] = i.dtype
        else:
            raise UsageError(
                f"{path}: input {i.said} is no picture; give all inputs as arrays: --input "
                f"{i.name}=FILE.npy"
            )
    if len(pictures) != 1:
        raise UsageError(f"{path} takes {text.counted(len(pictures), 'picture')}; expected one")
    return pictures[0], masks


def _ones(pixels: np.ndarray, entry: Entry, dtype: np.dtype) -> np.ndarray:
    import numpy as np

    size = pixels.shape[1:3] if entry.last else pixels.shape[2:]
    return np.ones((1, *size), dtype)


def _beside(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and preprocessor_config.json in the file's folder, {} for one that is missing."""
    from weft.importers.hf_config import read_object

    files = (Path(path).parent / name for name in ("config.json", "preprocessor_config.json"))
    config, processor = (read_object(file) if file.is_file() else {} for file in files)
    return config, processor


def _save(
    folder: Path, name: str, image: np.ndarray, found: Answer, facts: Mapping[str, Any]
) -> str:
    """Writes NAME.png and NAME.json; returns the name of the picture."""
    from weft.host.files import write_bytes
    from weft.vision.drawing import drawn

    folder.mkdir(parents=True, exist_ok=True)
    stem, n = Path(name).stem[:100], 1
    target = folder / f"{stem}.png"
    while target.exists():
        n += 1
        target = folder / f"{stem}-{n}.png"
    data = io.BytesIO()
    drawn(image, found).save(data, "PNG")
    write_bytes(target, data.getvalue())
    write_bytes(target.with_suffix(".json"), (json.dumps(facts, indent=1) + "\n").encode())
    return str(target)


def _shown(facts: Mapping[str, Any]) -> str:
    """An answer as a table."""
    task = facts["task"]
    if task == "depth":
        body = f"depth {facts['least']:.4g} to {facts['most']:.4g}"
    elif task == "detect":
        rows = [
            [o["label"], f"{o['score']:.1%}", " ".join(f"{x:.0f}" for x in o["box"])]
            for o in facts["objects"]
        ]
        body = text.table(["object", "score", "left top right bottom"], rows)
        body = body if rows else "no objects; --threshold shows less likely ones"
    elif task == "segment":
        rows = [[r["label"], f"{r['share']:.1%}"] for r in facts["regions"][:20]]
        body = text.table(["region", "share"], rows)
    else:
        rows = [[x["label"], f"{x['score']:.1%}"] for x in facts["labels"]]
        body = text.table(["label", "score"], rows)
    lines = [f"{facts['image']} ({facts['seconds'] * 1e3:.0f} ms)", body]
    return "\n".join([*lines, *([f"drawn: {facts['drawn']}"] if "drawn" in facts else [])])


def export_net(
    path: str, output: str, sizes: Sequence[str], stretch: bool, quant: str | None
) -> dict[str, Any]:
    """Writes the page of a net in a file; the manifest."""
    from weft.cli.graphs import imported, traced_module
    from weft.core.trees import paths
    from weft.web.nets import export_net as write

    module: Any = imported(path)
    made = traced_module(path, module, functions.sizes_of(sizes), quant)
    if path.endswith(".onnx"):
        names, metadata = [p.name for p in module.outputs], module.metadata
    else:
        names, metadata = [p.rpartition(".")[2].strip("_") for p in paths(made.tree)], {}
    config, processor = _beside(path)
    name, folder = Path(path).stem, Path(path).parent
    return write(made, name, names, Path(output), config, processor, metadata, stretch, folder)
