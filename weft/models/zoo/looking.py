"""The process that sees for families without eyes of their own: transformers' processor prepares
prompts and pictures, and its tower is traced for the shapes that come.

It runs by `weft.host.confined`, without a network and without code from the checkpoint. The tower
is traced on tensors whose pages nobody touches, so it costs no memory.
"""

from __future__ import annotations

import base64
import inspect
import os
import socket
import sys
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoProcessor, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from weft.core.errors import WeftError
from weft.models.zoo import operators, places
from weft.models.zoo.exported import form_of
from weft.models.zoo.worker import EAGER, _no_network, _outline

_processors: dict[str, Any] = {}


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Returns an answer, or {"refused": the reason}. {"folder", "text", "images"} asks for the ids
    of a prompt and the arrays of its pictures, {"config", "arrays", "names"} for the form of what
    turns those arrays to vectors. The first request, {}, cuts the process off the network."""
    if not request:
        socket.socket = _no_network  # type: ignore[assignment, misc]
        os.environ["HF_HUB_OFFLINE"] = "1"
        sys.setrecursionlimit(10_000)  # graphs are deep
        return {}
    try:
        if "folder" in request:
            return _prepared(request)
        with operators.registered():
            return {"traced": _traced(request)}
    except (operators.Refused, places.Unplaced, WeftError) as error:
        return {"refused": str(error)}
    except Exception as error:  # of transformers' and PyTorch's code
        said = (str(error).strip() or "no reason given").splitlines()[0][:300]
        return {"refused": f"transformers {transformers.__version__}: "
                f"{type(error).__name__}: {said}"}  # fmt: skip


def _prepared(request: dict[str, Any]) -> dict[str, Any]:
    folder = request["folder"]
    if folder not in _processors:
        make: Any = AutoProcessor.from_pretrained
        _processors[folder] = make(folder, local_files_only=True)
    processor = _processors[folder]
    images = [Image.fromarray(_array(image)) for image in request["images"]]
    if not images:
        return {"mark": str(getattr(processor, "image_token", None) or "")}
    given = {"text": [request["text"]], "return_tensors": "pt", "add_special_tokens": False}
    try:
        made = processor(images=images, **given)
    except (ValueError, TypeError, IndexError):  # some take a list of pictures for each text
        made = processor(images=[images], **given)
    ids = made.pop("input_ids")[0].tolist()
    found = {k: v for k, v in made.items() if isinstance(v, torch.Tensor)}
    return {"ids": ids, "arrays": {k: _data(v.numpy()) for k, v in found.items()}}


def _array(data: dict[str, Any]) -> np.ndarray:
    raw = base64.b64decode(data["data"])
    return np.frombuffer(raw, np.dtype(data["dtype"])).reshape(data["shape"]).copy()


def _data(array: np.ndarray) -> dict[str, Any]:
    held = np.ascontiguousarray(array)
    return {"dtype": held.dtype.name, "shape": list(held.shape),
            "data": base64.b64encode(held.tobytes()).decode()}  # fmt: skip


class _Features(torch.nn.Module):
    """A model's vectors of pictures, [N, hidden], from those arrays that are floats; `fixed` are
    the others, by name."""

    def __init__(
        self, model: Any, look: Any, names: list[str], fixed: dict[str, torch.Tensor], plain: bool
    ) -> None:
        super().__init__()
        self.model, self.names, self.look = model, names, look
        self.plain = {k: v.tolist() for k, v in fixed.items()} if plain else {}
        self.fixed = [] if plain else list(fixed)
        for name in self.fixed:
            self.register_buffer(f"fixed_{name}", fixed[name])

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        fixed = {name: getattr(self, f"fixed_{name}") for name in self.fixed} | self.plain
        out = self.look(**dict(zip(self.names, arrays)), **fixed)
        out = getattr(out, "pooler_output", out)
        if isinstance(out, list | tuple):
            out = torch.cat([part.reshape(-1, part.shape[-1]) for part in out])
        rows: torch.Tensor = out.reshape(-1, out.shape[-1])
        return rows


def _traced(request: dict[str, Any]) -> dict[str, Any]:
    config = {k: v for k, v in request["config"].items() if k != "auto_map"}
    settings = CONFIG_MAPPING[str(config.get("model_type"))].from_dict(
        PreTrainedConfig._decode_special_floats(config)
    )
    model = _outline(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(settings)], settings, EAGER).eval()
    look = getattr(model, "get_image_features", None) or getattr(
        getattr(model, "model", None), "get_image_features", None)  # fmt: skip
    if look is None:
        raise operators.Refused("transformers' model has no vectors of pictures apart")
    small = {n: b for n, b in model.named_buffers() if b.device.type != "meta"}
    _untouched(model)
    taken = inspect.signature(look).parameters
    arrays = {k: torch.from_numpy(_array(v)) for k, v in request["arrays"].items() if k in taken}
    floats = {k: v for k, v in arrays.items() if v.dtype.is_floating_point}
    fixed = {k: v for k, v in arrays.items() if k not in floats}
    for plain in (False, True):  # code that asks for numbers may take lists, not tensors
        features = _Features(model, look, list(floats), fixed, plain)
        try:
            with torch.no_grad():
                program = torch.export.export(features, tuple(floats.values()), strict=False)
            break
        except GuardOnDataDependentSymNode:
            if plain or not fixed:
                raise
    small |= {f"fixed_{k}": v for k, v in fixed.items()}
    made = form_of(program, model, small, request["names"])
    return {**made, "arrays": list(floats)}


def _untouched(model: Any) -> None:
    """Gives parameters without content memory that is never touched."""
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            if value is not None and value.device.type == "meta":
                empty = torch.empty(value.shape, dtype=value.dtype)
                module._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
