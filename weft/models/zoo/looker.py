"""Pictures by transformers' code: prompts and arrays from its processor, and the vectors of its
tower, traced once for each set of shapes and run as weft's own Programs."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, ModelError
from weft.core.versions import stamp
from weft.host import cache
from weft.host.confined import ChildError, Confined, Limits, Stopped
from weft.importers import aten
from weft.importers.aten.table import entry
from weft.importers.ports import Ref
from weft.importers.safetensors import Checkpoint
from weft.importers.steps import filled, keep_results
from weft.importers.torch_export.graph import CallNode
from weft.models.zoo.ask import LIMITS, NEEDS, _versions, refusal
from weft.models.zoo.form import call_of, value_of
from weft.models.zoo.placing import fill, shape_of, tensors_of
from weft.tensor.autograd import no_grad
from weft.tensor.compiling import compile as compile_
from weft.tensor.core import Tensor

LOOK = Limits(seconds=120.0, memory=8 << 30, reply=1 << 30)
Arrays = dict[str, np.ndarray]


class Looker:
    """The pictures of a folder's model. Raises ModelError without transformers."""

    def __init__(self, folder: Path, config: Mapping[str, Any], device: Any) -> None:
        self.folder, self._config, self._device = folder, dict(config), device
        self._kind = str(config.get("model_type"))[:80]
        self._known = _versions(str(folder), self._kind)
        self._made: dict[str, Callable[..., np.ndarray]] = {}

    def mark(self) -> str:
        """Returns the text that a chat template writes for a picture; "" if none is known."""
        given = {"folder": str(self.folder.resolve()), "text": "", "images": []}
        return str(self._asked(given, LOOK)["mark"])

    def prepared(self, text: str, images: Sequence[np.ndarray]) -> tuple[list[int], Arrays]:
        """Returns the ids of a prompt with pictures uint8 [H, W, 3], and the pictures' arrays.
        Raises ModelError for what the processor rejects."""
        given = {"folder": str(self.folder.resolve()), "text": text,
                 "images": [_data(image) for image in images]}  # fmt: skip
        made = self._asked(given, LOOK)
        arrays = {name: _array(data) for name, data in made["arrays"].items()}
        return [int(i) for i in made["ids"]], arrays

    def vectors(self, arrays: Arrays, checkpoint: Checkpoint) -> np.ndarray:
        """Returns the vectors of pictures, float32 [N, hidden], in the order of their places."""
        held = {k: v for k, v in arrays.items() if v.dtype != np.float32}
        shapes = {k: [list(v.shape), v.dtype.name] for k, v in arrays.items()}
        key = json.dumps([shapes, {k: v.tolist() for k, v in held.items()}], sort_keys=True)
        if key not in self._made:
            self._made[key] = self._function(arrays, key, checkpoint)
        return self._made[key](arrays)

    def _function(self, arrays: Arrays, key: str, checkpoint: Checkpoint) -> Any:
        names = {name: list(checkpoint.info(name).shape) for name in checkpoint}
        text = json.dumps([self._config, names, key, self._known, stamp("traces")], sort_keys=True)
        mark = f"looked-{hashlib.sha256(text.encode()).hexdigest()}"
        kept = cache.programs().get(mark)
        if kept is None:
            request = {"config": self._config, "names": names,
                       "arrays": {k: _data(v) for k, v in arrays.items()}}  # fmt: skip
            made = self._asked(request, LIMITS)["traced"]
            cache.programs().put(mark, json.dumps(made).encode())
        else:
            made = json.loads(kept)
        return _ready(made, str(self.folder), checkpoint, self._device)

    def _asked(self, request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        try:
            answer = _child().call(request, limits)
        except (Stopped, ChildError) as error:
            raise ModelError(f"{self.folder}: pictures by transformers: {error}") from None
        if "refused" in answer:
            raise refusal(f"{self.folder}: pictures", self._kind, answer)
        return dict(answer)


@functools.cache
def _child() -> Confined:
    """Returns the process that sees for all models of this one."""
    worker = Path(__file__).with_name("looking.py")
    return Confined(worker, (*NEEDS, "PIL", "weft"), {}, LIMITS)


def _ready(
    form: Mapping[str, Any], where: str, checkpoint: Checkpoint, device: Any
) -> Callable[[Arrays], np.ndarray]:
    """Returns the function of a form. Raises FileFormatError, ModelError."""
    try:
        calls = [call_of(data) for data in form["calls"]]
        inputs, names = list(map(str, form["inputs"])), list(map(str, form["arrays"]))
        constants = {name: _array(data) for name, data in form["constants"].items()}
        result, tensors, places = value_of(form["result"]), form["tensors"], form["places"]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{where}: a traced tower that does not hold: {error!r}") from None
    unknown = {call.target for call in calls if aten.entry(call.target) is None}
    if unknown or not isinstance(result, Ref) or len(inputs) != len(names):
        said = ", ".join(sorted(unknown)) or "its result"
        raise ModelError(f"{where}: its tower has operators that weft does not have: {said}")
    weights = {value: _weight(checkpoint, places[name], where) for value, name in tensors.items()}
    held: dict[str, Any] = {n: Tensor(a) for n, a in {**constants, **weights}.items()}

    def features(*arrays: Tensor) -> Tensor:
        values = {**held, **dict(zip(inputs, arrays))}
        for call in calls:
            _step(call, values)
        out: Tensor = values[result.name]
        return out

    run = features if device is None else compile_(features, device=device, frozen=True)

    def vectors(arrays: Arrays) -> np.ndarray:
        with no_grad():
            out = run(*(Tensor(arrays[name]) for name in names))
        return np.asarray(out.numpy(), np.float32)

    return vectors


def _step(call: CallNode, values: dict[str, Any]) -> None:
    rule = entry(call.target)
    assert rule is not None
    made = rule.run(*filled(call.args, values), **filled(call.kwargs, values))
    keep_results(call.out, made, values)


def _weight(checkpoint: Checkpoint, place: Mapping[str, Any], where: str) -> np.ndarray:
    shapes = {name: tuple(checkpoint.info(name).shape) for name in tensors_of(place)}
    out = np.empty(shape_of(place, shapes, where), np.float32)
    fill(checkpoint, place, out)
    return out


def _data(array: np.ndarray) -> dict[str, Any]:
    held = np.ascontiguousarray(array)
    return {"dtype": held.dtype.name, "shape": list(held.shape),
            "data": base64.b64encode(held.tobytes()).decode()}  # fmt: skip


def _array(data: Mapping[str, Any]) -> np.ndarray:
    raw = base64.b64decode(data["data"], validate=True)
    found = np.frombuffer(raw, np.dtype(str(data["dtype"]))).reshape(data["shape"])
    return found.astype(np.int32) if found.dtype == np.int64 else found
