"""CLIP and SigLIP as two Programs for a page that finds pictures by texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft import ops
from weft.compile.passes import compile_graph
from weft.core.dtypes import as_dtype, float32, int32
from weft.core.errors import UsageError
from weft.graph.ir import Graph, Node
from weft.models.arch.layers import linear
from weft.models.arch.tower import Patches, forward
from weft.models.run.picture_encoder import PictureEncoder, TextTower
from weft.models.run.tower_runner import Tower
from weft.program.program import Program
from weft.web.folder import TARGETS
from weft.web.nets import fit_of

Arrays = dict[str, np.ndarray]
Bound = Mapping[str, Node]


def album_parts(
    model: PictureEncoder,
) -> tuple[dict[str, dict[str, Program]], Arrays, dict[str, Any]]:
    """Returns the Programs "picture" and "text" by target, their weights, and the manifest's
    numbers. Raises UsageError for a model that reads no texts."""
    tower, text = model.towers
    if text is None:
        raise UsageError(f"{model.folder} reads no texts; a page finds pictures by texts: "
                         "CLIP and SigLIP do")  # fmt: skip
    size = (tower.config.image, tower.config.image)
    steps, arrays = model.steps, _arrays(tower, text)
    graphs = {"picture": picture_graph(tower, arrays, 1), "text": _text(text, arrays)}
    made = {
        caps.name: {name: compile_graph(g, caps, name=name) for name, g in graphs.items()}
        for caps in TARGETS
    }
    about = {
        "family": tower.config.family, "size": list(size), "fit": fit_of(steps, size),
        "scale": steps.scale, "mean": steps.mean, "std": steps.std, "dim": model.dim,
        "vocab": len(text.table), "longest": len(text.places), "pad": text.pad, "end": text.end,
        "padded": text.padded, "logits": list(model.scale),
    }  # fmt: skip
    return made, arrays, about


def _arrays(tower: Tower, text: TextTower) -> Arrays:
    """The weights of both Programs, by names that say whose they are."""
    found = picture_arrays(tower)
    found |= {f"text.{role}": np.asarray(w) for role, w in text.tower.weights.items()}
    found |= {"text.table": text.table, "text.places": text.places, "text.project.w": text.project}
    return found if text.bias is None else found | {"text.project.b": text.bias}


def _graph(
    name: str, shapes: Mapping[str, tuple[tuple[int, ...], Any]], arrays: Arrays,
    body: Callable[[Bound, Bound], Node],
) -> Graph:  # fmt: skip
    """The Graph of `body` over inputs of these shapes and the arrays that begin with the name."""
    with ops.building():
        given = {k: ops.input_node(k, s, d, "input") for k, (s, d) in shapes.items()}
        bound = {
            k.removeprefix(f"{name}."): ops.input_node(k, w.shape, as_dtype(w.dtype), "weight")
            for k, w in arrays.items()
            if k.startswith(f"{name}.")
        }
        out = body(given, bound)
    return Graph((*given.values(), *bound.values()), (out,), name=name, meta={"frozen": True})


def picture_arrays(tower: Tower) -> Arrays:
    """Returns the weights of `picture_graph`."""
    found = {f"picture.{role}": np.asarray(w) for role, w in tower.weights.items()}
    if tower.config.table:
        across = tower.config.across
        found["picture.places"] = tower.table(across, across)
    return found


def picture_graph(tower: Tower, arrays: Arrays, most: int | None = None) -> Graph:
    """pixels float32 [3, H, W] -> the picture's first `most` vectors (None: all), float32 [N,
    dim]."""
    c = tower.config

    def body(given: Bound, w: Bound) -> Node:
        n, p = c.across, c.patch
        x = ops.slice_(given["pixels"], (0, 0, 0), (c.channels, n * p, n * p))
        x = ops.transpose(ops.reshape(x, (c.channels, n, p, n, p)), (1, 3, 0, 2, 4))
        rows = ops.reshape(x, (n * n, c.row))
        lengths = ops.const(np.array([n * n], np.int32))
        vectors: Node = forward(c, w, Patches(rows, lengths, w.get("places")))
        if most is None:
            return vectors
        first: Node = ops.slice_(vectors, (0, 0), (most, ops.aval(vectors).shape[1]))
        return first

    shape = (c.channels, c.image, c.image)
    return _graph("picture", {"pixels": (shape, float32)}, arrays, body)


def _text(text: TextTower, arrays: Arrays) -> Graph:
    """ids int32 [longest], lengths int32 [1] of which count, at int32 [1] where the vector is ->
    the text's vector, float32 [1, dim]."""
    c, longest = text.tower.config, len(text.places)

    def body(given: Bound, w: Bound) -> Node:
        rows = ops.cast(ops.gather(w["table"], given["ids"]), float32)
        rows = ops.add(rows, ops.cast(w["places"], float32))
        vectors = forward(c, w, Patches(rows, given["lengths"]))
        found = ops.gather(vectors, given["at"])
        made: Node = linear(float32, found, w["project.w"], w.get("project.b"))
        return made

    one = ((1,), int32)
    shapes = {"ids": ((longest,), int32), "lengths": one, "at": one}
    return _graph("text", shapes, arrays, body)
