"""Nets that see, as files: the steps from a picture to their input, and from their outputs to an
answer. Settings that a file does not have are read from config.json and preprocessor_config.json in
its folder, or from the metadata of ONNX files that YOLO's exporter writes."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, ModelError, ShapeError, UsageError
from weft.core.records import dataclass
from weft.vision import answers
from weft.vision.sizes import RULES, Fitted
from weft.vision.steps import BILINEAR, Steps, floats, steps_of

TASKS = ("classify", "detect", "segment", "depth")
MAX_TEXT = 1 << 20  # bytes of names in a file's metadata
OVERLAP = 0.7  # of boxes of one object, as YOLO's predictor has it
MOST = 300  # objects
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Guide:
    """The use of a net: `labels` names its classes, `task` is what it is for ("": its outputs
    say), `assumed` what no file says."""

    steps: Steps
    labels: Mapping[int, str] = field(default_factory=dict)
    task: str = ""
    several: bool = False  # a picture has several labels
    boxes: str = ""  # how objects are coded: "softmax", "sigmoid", "yolo" ("": outputs say)
    assumed: str = ""


@dataclass(frozen=True)
class Entry:
    """The input of a net that takes pictures: its shape, where None is an open size."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype

    @property
    def last(self) -> bool:
        """True if the channels are the last axis."""
        return self.shape[-1] == 3 and self.shape[1] != 3

    @property
    def size(self) -> tuple[int | None, int | None]:
        """Height and width."""
        at = 1 if self.last else 2
        return self.shape[at], self.shape[at + 1]


def is_entry(shape: Sequence[int | None]) -> bool:
    """True for [N, 3, H, W] and [N, H, W, 3]."""
    return len(shape) == 4 and (shape[1] in (3, None) or shape[3] == 3)


# -- what files say


def guide(
    entry: Entry, config: Mapping[str, Any], processor: Mapping[str, Any],
    metadata: Mapping[str, str], stretch: bool = False,
) -> Guide:  # fmt: skip
    """Returns how to use a net: `config` and `processor` are config.json and
    preprocessor_config.json ({}: there is none), `metadata` what an ONNX file says of itself. With
    `stretch` a picture is resized to the size of the input, whatever its proportion. Raises
    ModelError for steps that weft does not know, UsageError for a net whose input has no size and
    no steps."""
    if "names" in metadata and "task" in metadata:
        return _yolo(entry, metadata)
    labels = _labels(config)
    kinds = " ".join(map(str, config.get("architectures") or [])).lower()
    several = config.get("problem_type") == "multi_label_classification"
    boxes = "sigmoid" if "rtdetr" in kinds or "deformabledetr" in kinds else ""
    if processor:
        steps = steps_of("preprocessor_config.json", processor)
        if steps.kind not in RULES:
            raise ModelError(
                f"preprocessor_config.json: pictures in several parts ({steps.kind}) are for models"
                " that write; this is a function"
            )
        return Guide(_stretched(steps, entry) if stretch else steps, labels, "", several, boxes)
    height, width = _fixed(entry)
    size = {"height": height, "width": width}
    return Guide(
        Steps("plain", size, BILINEAR, None, 1 / 255, _MEAN, _STD, True, {}),
        labels, "", several, boxes,
        f"{width} x {height} pixels, ImageNet's mean and deviation",
    )  # fmt: skip


def _labels(config: Mapping[str, Any]) -> dict[int, str]:
    found = config.get("id2label") or {}
    try:
        return {int(k): str(v)[:200] for k, v in dict(found).items()}
    except (ValueError, TypeError):
        raise FileFormatError(f"config.json: id2label is {str(found)[:80]}") from None


def _fixed(entry: Entry) -> tuple[int, int]:
    height, width = entry.size
    if height is None or width is None:
        raise UsageError(
            f"input {entry.name} has no fixed size; add preprocessor_config.json to its folder"
        )
    return height, width


def _stretched(steps: Steps, entry: Entry) -> Steps:
    height, width = _fixed(entry)
    size = {"height": height, "width": width}
    return Steps("plain", size, steps.filter, None, steps.scale, steps.mean, steps.std, True, {})


def _yolo(entry: Entry, metadata: Mapping[str, str]) -> Guide:
    """The metadata of YOLO's exporter: names as the text of a dict, imgsz as that of a list."""
    text, task = metadata["names"], metadata["task"]
    if task not in ("classify", "detect"):
        raise ModelError(
            f"task {task[:40]!r} of YOLO is not supported; weft reads classify, detect"
        )
    if len(text) > MAX_TEXT:
        raise FileFormatError(f"names in the metadata: {len(text)} bytes; {MAX_TEXT} are read")
    try:
        names = ast.literal_eval(text)
        labels = {int(k): str(v)[:200] for k, v in dict(names).items()}
        sizes = json.loads(metadata.get("imgsz", "[]"))
        sizes = [int(n) for n in (sizes if isinstance(sizes, list) else [sizes, sizes])]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise FileFormatError(f"names or imgsz in the metadata: {text[:80]}") from None
    height, width = (a or b for a, b in zip(entry.size, [*sizes, None, None]))
    if not height or not width or not 1 <= height * width <= 1 << 26:
        raise FileFormatError(f"imgsz in the metadata: {metadata.get('imgsz', '')[:40]!r}")
    size = {"height": height, "width": width}
    if task == "classify":
        steps = Steps("plain", {"shortest_edge": min(height, width)}, BILINEAR, (height, width))
        return Guide(steps, labels, task)
    return Guide(Steps("boxed", size, BILINEAR), labels, task, boxes="yolo")


# -- a picture in, an answer out


def fitted(guide: Guide, entry: Entry, image: np.ndarray) -> tuple[np.ndarray, Fitted]:
    """The net's input for a decoded picture, uint8 [H, W, 3], and how the picture lies in it.
    Raises UsageError for a size that the net does not take."""
    made = RULES[guide.steps.kind](guide.steps, image)
    height, width = made.image.shape[:2]
    wanted = entry.size
    if any(w not in (None, n) for w, n in zip(wanted, (height, width))):
        raise UsageError(
            f"the steps give {height} x {width} pixels (height first), input {entry.name} takes "
            f"{wanted[0]} x {wanted[1]}; pass --stretch, or export the net with open sizes"
        )
    if entry.dtype == np.uint8:  # the net has the other steps in itself
        pixels = made.image.transpose(2, 0, 1)
    else:
        pixels = floats(guide.steps, made.image).astype(entry.dtype)
    return (pixels.transpose(1, 2, 0) if entry.last else pixels)[None], made


def shown(made: Fitted, size: tuple[int, int]) -> answers.Box:
    """Returns the part that the net's input shows, in pixels of a picture of this size (height
    first): left, top, right, bottom, which may lie outside."""
    (height, width), (top, left) = made.inner, made.origin
    by = size[1] / width, size[0] / height
    tall, wide = made.image.shape[:2]
    return -left * by[0], -top * by[1], (wide - left) * by[0], (tall - top) * by[1]


def answer(
    guide: Guide, outputs: Mapping[str, np.ndarray], made: Fitted, size: tuple[int, int],
    task: str = "", threshold: float = 0.5, top: int = 5,
) -> answers.Answer:  # fmt: skip
    """Returns the answer of a net's outputs about a picture of `size` (height first). Raises
    UsageError for outputs of a kind that weft does not know, naming them."""
    given = {name.rpartition(".")[2]: x for name, x in outputs.items()}
    task = task or guide.task or _task(given)
    view = shown(made, size)
    if task == "classify":
        return answers.classes(_one(given, ("logits",), 2), guide.labels, top, guide.several)
    if task == "segment":
        scores = answers.cut_out(_one(given, ("logits",), 4), view, size)
        return answers.regions(scores, guide.labels, size)
    if task == "depth":
        plane = _one(given, ("predicted_depth",), (3, 4))
        plane = plane[0] if plane.ndim == 3 and plane.shape[0] == 1 else plane
        if plane.ndim != 2:
            raise ShapeError(f"depth: an output {list(plane.shape)}; expected one plane [H, W]")
        values = answers.resampled(answers.cut_out(plane, view, size).astype(np.float32), size)
        return answers.Depths(values)
    if task == "detect":
        return _things(guide, given, view, made, threshold)
    raise UsageError(
        f"outputs {_said(given)} are of no kind that weft knows; pass --task {', '.join(TASKS)}"
    )


def _task(given: Mapping[str, np.ndarray]) -> str:
    """The task that the names and shapes of outputs say."""
    if "pred_boxes" in given or {"boxes", "scores"} <= set(given):
        return "detect"
    if "predicted_depth" in given:
        return "depth"
    first = next(iter(given.values()), np.zeros(()))
    if ("logits" in given or len(given) == 1) and first.ndim in (2, 4):
        wide = given.get("logits", first)
        if wide.ndim == 2:
            return "classify"
        return "segment" if wide.shape[1] > 1 else ""
    return ""


def _one(
    given: Mapping[str, np.ndarray], names: Sequence[str], ranks: int | tuple[int, ...]
) -> np.ndarray:
    """The output of one of these names, or the first of fitting rank, without the batch."""
    ranks = (ranks,) if isinstance(ranks, int) else ranks
    named = [given[n] for n in names if n in given] or list(given.values())
    for x in named:
        if x.ndim in ranks and x.shape[0] == 1 and x.size:
            found: np.ndarray = x[0]
            return found
    raise UsageError(
        f"outputs {_said(given)}: none fits the task; expected {ranks} axes, one picture"
    )


def _said(given: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{n[:40]} {list(x.shape)}" for n, x in list(given.items())[:8])


# -- objects


def _things(
    guide: Guide, given: Mapping[str, np.ndarray], view: answers.Box, made: Fitted,
    threshold: float,
) -> answers.Things:  # fmt: skip
    if "pred_boxes" in given and "logits" in given:
        boxes, scores, numbers = _queries(guide, given)
        boxes = _placed(answers.corners(boxes), view)
    elif {"boxes", "scores", "labels"} <= set(given):
        boxes, scores, numbers = (given[n] for n in ("boxes", "scores", "labels"))
        if boxes.ndim == 3:
            boxes, scores, numbers = boxes[0], scores[0], numbers[0]
        boxes = _placed(boxes / _extent(made), view)
    elif guide.boxes == "yolo":
        boxes, scores, numbers = _yolo_boxes(_one(given, (), 3), len(guide.labels), threshold)
        boxes = _placed(boxes / _extent(made), view)
    else:
        raise UsageError(
            f"outputs {_said(given)}: objects are logits with pred_boxes, or boxes with scores and "
            "labels, or YOLO's with its metadata"
        )
    return answers.things(boxes, scores, numbers, guide.labels, threshold)


def _extent(made: Fitted) -> np.ndarray:
    height, width = made.image.shape[:2]
    return np.array([width, height, width, height], np.float32)


def _placed(boxes: np.ndarray, view: answers.Box) -> np.ndarray:
    """Boxes in shares of the net's input as pixels of the picture."""
    left, top, right, bottom = view
    by = np.array([right - left, bottom - top] * 2)
    made: np.ndarray = boxes * by + np.array([left, top] * 2)
    return made


def _queries(
    guide: Guide, given: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """DETR's: a class for each query, or none, the last; or the likeliest pairs of query and class
    where each class has a probability of its own."""
    logits, boxes = given["logits"], given["pred_boxes"]
    if logits.ndim != 3 or boxes.shape != (*logits.shape[:2], 4) or logits.shape[0] != 1:
        raise UsageError(f"outputs {_said(given)}: expected logits [1, Q, C], pred_boxes [1, Q, 4]")
    x = logits[0].astype(np.float64)
    if (guide.boxes or ("softmax" if x.shape[1] != len(guide.labels) else "sigmoid")) == "sigmoid":
        p = answers.sigmoid(x).reshape(-1)
        order = np.argsort(-p, kind="stable")[: len(x)]
        return boxes[0][order // x.shape[1]], p[order], order % x.shape[1]
    p = answers.softmax(x)[:, :-1]
    return boxes[0], p.max(-1), p.argmax(-1)


def _yolo_boxes(
    out: np.ndarray, classes: int, threshold: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """YOLO's: [4 + C, A] centres, sizes and probabilities in pixels of the input; or [N, 6] with
    corners, score and class, which has been suppressed already."""
    if out.shape[-1] == 6 and out.shape[0] != 4 + classes:
        return out[:, :4], out[:, 4], out[:, 5].astype(np.int64)
    if out.shape[0] != 4 + classes:
        raise UsageError(f"output {list(out.shape)}: expected 4 + {classes} rows")
    scores, numbers = out[4:].max(0), out[4:].argmax(0)
    likely = np.flatnonzero(scores > threshold)
    likely = likely[np.argsort(-scores[likely], kind="stable")][:30000]
    boxes = answers.corners(out[:4, likely].T)
    keep = likely[answers.kept(boxes, scores[likely], numbers[likely], OVERLAP, MOST)]
    return answers.corners(out[:4, keep].T), scores[keep], numbers[keep]
