"""A net that sees as a static folder: a page that shows pictures, or the camera, to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.compile.passes import compile_graph
from weft.core.errors import UsageError
from weft.host.files import replacing_folder
from weft.tensor.tracing import Traced
from weft.vision.nets import Entry, guide, is_entry
from weft.vision.sizes import shortest
from weft.vision.steps import Steps
from weft.web.existing import check_page
from weft.web.folder import FORMAT, TARGETS, compact_json, write_body, write_file, write_player
from weft.web.licences import write_model_terms

NAME = "net"  # of the Program


def export_net(
    traced: Traced, name: str, names: Sequence[str], out: Path, config: Mapping[str, Any],
    processor: Mapping[str, Any], metadata: Mapping[str, str], stretch: bool = False,
    licences: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Writes the folder `out` for a traced net with one picture as its input and outputs of these
    `names`, whole or not at all; returns the manifest. `config`, `processor`, `metadata` and
    `stretch` are those of weft.vision.nets.guide; `licences` is the folder whose licences go with
    the weights. Raises UsageError for a net that a page cannot show pictures to."""
    graph = traced.graph
    if graph.assigns:
        raise UsageError(f"{name} changes its own state; a page takes nets without state")
    entry = _entry(name, traced)
    how = guide(entry, config, processor, metadata, stretch)
    frozen = replace(graph, meta={**graph.meta, "frozen": True})
    made = {caps.name: {NAME: compile_graph(frozen, caps, name=NAME)} for caps in TARGETS}
    weights = {
        n.attrs["name"]: traced.captured[n.attrs["name"]].numpy().astype(n.dtype.numpy, copy=False)
        for n in graph.inputs
        if n.attrs["role"] == "weight"
    }
    program = next(iter(made.values()))[NAME]
    outputs = [program.buffers[i] for i in program.outputs]
    if len(outputs) != len(names):
        raise UsageError(f"{name}: two outputs are one; a page takes nets whose outputs differ")
    about = {
        "input": entry.name, "size": list(_size(entry)), "last": entry.last,
        "dtype": entry.dtype.name, "fit": fit_of(how.steps, _size(entry)), "scale": how.steps.scale,
        "mean": how.steps.mean, "std": how.steps.std,
        "outputs": [[n, b.dtype.name, list(b.shape)] for n, b in zip(names, outputs)],
        "labels": {str(k): v for k, v in how.labels.items()}, "task": how.task,
        "several": how.several, "boxes": how.boxes,
    }  # fmt: skip
    check_page(out)
    with replacing_folder(out) as folder:
        body = write_body(folder, made, weights)
        terms = {} if licences is None else write_model_terms(licences, folder)
        head = {"format": FORMAT, "name": name, **terms, "kind": "net", "model": about}
        manifest = {**head, **body}
        write_file(folder, "manifest.json", compact_json(manifest), {})
        write_player(folder, manifest)
        return manifest


def _entry(name: str, traced: Traced) -> Entry:
    """The one input, a picture in float32."""
    given = [n for n in traced.graph.inputs if n.attrs["role"] == "input"]
    if len(given) != 1 or not is_entry(given[0].shape):
        said = ", ".join(f"{n.attrs['name']} {list(n.shape)}" for n in given)
        raise UsageError(f"{name} takes {said}; a page shows one picture [1, 3, H, W]")
    node = given[0]
    if node.dtype.name != "float32" or node.shape[0] != 1:
        raise UsageError(
            f"{name} takes {node.dtype.name}{list(node.shape)}; a page gives one float32 picture"
        )
    return Entry(node.attrs["name"], tuple(node.shape), np.dtype(np.float32))


def _size(entry: Entry) -> tuple[int, int]:
    height, width = entry.size
    assert height is not None and width is not None  # a traced graph has no open sizes
    return height, width


def fit_of(steps: Steps, size: tuple[int, int]) -> list[Any]:
    """Returns how a picture fits an input of this size, height first: ["stretch"], ["boxed"], or
    ["crop", height, width] in which the whole of a square one would be. Raises UsageError for other
    steps."""
    if steps.kind == "boxed":
        return ["boxed"]
    given = steps.size
    whole = (given["height"], given["width"]) if "height" in given else None
    if steps.kind == "margin":
        side = given["shortest_edge"]
        larger = int(side / float(steps.more.get("crop_pct", 224 / 256)))
        whole, crop = ((side, side), None) if side >= 384 else (None, (side, side))
        given = {"shortest_edge": larger}
    else:
        crop = steps.crop
    if crop is None and whole == size:
        return ["stretch"]
    if crop == size and steps.kind in ("plain", "margin"):
        return ["crop", *(whole or shortest(1, 1, given["shortest_edge"]))]
    raise UsageError(
        f"the steps give other sizes than the net's {size[0]} x {size[1]}; pass --stretch"
    )
