"""The vision tower of a language model as a Program for its page, which shows it one picture in one
tile of a fixed size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from weft.compile.passes import compile_graph
from weft.core.errors import UsageError
from weft.core.notices import say
from weft.models.run.compiled_runner import model_caps
from weft.models.run.eyes import Eyes
from weft.models.run.model import Decoder
from weft.models.text.placeholders import Shown, spread
from weft.ops import aval
from weft.program.program import Program
from weft.vision.steps import Steps
from weft.web.albums import picture_arrays, picture_graph
from weft.web.folder import TARGETS
from weft.web.nets import fit_of

_CUTS = ("do_image_splitting", "do_pan_and_scan", "crop_to_patches")  # more tiles than one


class PageSight(NamedTuple):
    """The Program "picture" by target, its weights, and the manifest's numbers."""

    made: dict[str, Program]
    arrays: dict[str, np.ndarray]
    about: dict[str, Any]


def page_sight(model: Decoder, room: int) -> PageSight | None:
    """Returns how a page shows pictures to a model whose steps hold `room` rows; None if the model
    reads text alone, or if pages cannot show it pictures, which weft then says."""
    if (eyes := model.eyes) is None:
        return None
    try:
        return _sight(model, eyes, room)
    except UsageError as error:
        say(f"the page reads text alone: {error}")
        return None


def _sight(model: Decoder, eyes: Eyes, room: int) -> PageSight:
    tower, steps, sight = eyes.tower, eyes.steps, eyes.sight
    c, family = tower.config, tower.config.family
    if c.ropes or c.axes or c.frames > 1 or not c.image or c.projector.newline or c.masked:
        raise UsageError(f"{family} takes pictures of many sizes; a page shows pictures of one")
    size = (c.image, c.image)
    fit = _fit(steps, size)
    if any(steps.more.get(name) for name in _CUTS):
        say("the page shows each picture whole, not in tiles as well")
    arrays = picture_arrays(tower)
    graph = picture_graph(tower, arrays)
    count, width = aval(graph.outputs[0]).shape
    if sight.whole and count > room:
        raise UsageError(f"a picture has {count} tokens; a step of the page holds {room}")
    made = {t.name: compile_graph(graph, model_caps(t), name="picture") for t in TARGETS}
    given = sight.marks.given
    about = {
        "size": list(size), "fit": fit, "scale": steps.scale, "mean": steps.mean,
        "std": steps.std, "given": given, "spelled": spread(sight.marks, given, [Shown(count)]),
        "token": sight.token, "count": count, "width": width, "whole": sight.whole,
        "parts": model.need_tokenizer("a page cannot run without one").takes_parts,
    }  # fmt: skip
    return PageSight(made, arrays, about)


def _fit(steps: Steps, size: tuple[int, int]) -> list[Any]:
    """Returns how a picture fits the tower (`fit_of`), if it is shown in one tile."""
    if steps.kind in ("crops", "tiles", "mosaic"):
        return ["stretch"]
    if steps.kind == "squared" and not steps.more["do_pad"]:
        steps = replace(steps, kind="plain")
    return fit_of(steps, size)
