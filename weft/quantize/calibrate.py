"""Measures the inputs of each linear layer: their second moments, layer by layer.

The device holds one layer's weights at a time, and the residual stream of the calibration text
before that layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import float32
from weft.models.arch.config import DecoderConfig
from weft.models.arch.decoder import embed_forward, layer_forward
from weft.models.arch.hooks import TrainingHooks
from weft.models.arch.inputs import tables
from weft.models.arch.layers import Value
from weft.models.arch.places import linear_layer
from weft.tensor.compiling import compile as compile_
from weft.tensor.core import Tensor, tensor

ROWS = 1024  # tokens that pass through a layer together
Arrays = Mapping[str, np.ndarray]


class Calibration:
    """The residual stream of a text, moved through a decoder one layer at a time.

    ids: int32 [windows, length], each window from position 0. `weights` holds the weights before
    the first layer ("embed", "pos").
    """

    def __init__(
        self, config: DecoderConfig, weights: Arrays, ids: np.ndarray, device: Any = None
    ) -> None:
        self.config = replace(config, act_dtype=float32, act_by_form=False, kv_dtype=float32)
        self.device, self.length = device, ids.shape[1]
        self.tables = tables(config, self.length)
        count = max(1, ROWS // self.length)
        self.first: dict[Any, int] = {}  # key of equal layers -> the first of them
        self.programs: dict[Any, Any] = {}
        self.stream = []
        for start in range(0, len(ids), count):
            piece = np.ascontiguousarray(ids[start : start + count], np.int32)
            self.stream.append(np.asarray(embed_forward(self.config, weights, piece), np.float32))

    def stages(self, i: int, roles: Arrays) -> list[list[str]]:
        """Returns the linear layers of layer i in the order of use, grouped by shared input."""
        found: dict[int, list[str]] = {}
        kept: list[Value] = []  # an id identifies a value only while the value lives

        def place(name: str, x: Value) -> Value:
            if (role := linear_layer(name)) is not None:
                kept.append(x)
                found.setdefault(id(x), []).append(role)
            return x

        layer_forward(
            self.config, self._with_tables(roles), i, self.stream[0][: self.length],
            self.length, TrainingHooks(place=place),
        )  # fmt: skip
        return list(found.values())

    def moments(self, i: int, weights: Arrays, role: str) -> np.ndarray:
        """Returns X^T X float64 [K, K] of the inputs X to `role` of layer i, over the whole
        text."""
        run, weights = self._compiled(_moments, i, role.split(".", 1)[1], weights)
        total: Any = 0.0
        for found in self._through(run, weights):
            total = total + found.numpy().astype(np.float64)
        return np.asarray(total)

    def advance(self, i: int, weights: Arrays) -> dict[str, np.ndarray]:
        """Moves the text through layer i. Returns the mean squares float32 [K] of the inputs of
        each of its linear layers."""
        run, weights = self._compiled(_layer, i, "", weights)
        total: dict[str, np.ndarray] = {}
        for at, (out, squares) in enumerate(self._through(run, weights)):
            self.stream[at] = np.array(out.numpy())
            for role, value in squares.items():
                role = f"{i}.{role.split('.', 1)[1]}"
                total[role] = total.get(role, 0.0) + value.numpy().astype(np.float64)
        rows = sum(len(piece) for piece in self.stream)
        return {role: (value / rows).astype(np.float32) for role, value in total.items()}

    def _compiled(
        self, fn: Callable[..., Any], i: int, part: str, weights: Arrays
    ) -> tuple[Any, Arrays]:
        """Compiles `fn` for layer i; equal layers share the result. Returns it with the weights
        under the names that it uses."""
        c = self.config
        shapes = tuple(sorted((r.split(".", 1)[1], v.shape) for r, v in weights.items()))
        key = c.mixer(i), c.feed_forward(i), c.window(i), c.rope(i), shapes
        j = self.first.setdefault(key, i)
        if (fn, j, part) not in self.programs:
            given = partial(fn, c, j, self.length, *([f"{j}.{part}"] if part else []))
            self.programs[fn, j, part] = compile_(given, device=self.device)
        renamed = {f"{j}.{r.split('.', 1)[1]}": v for r, v in weights.items()}
        return self.programs[fn, j, part], renamed

    def _through(self, run: Any, weights: Arrays) -> Iterator[Any]:
        held = {role: tensor(value) for role, value in self._with_tables(weights).items()}
        return (run(tensor(piece), held) for piece in self.stream)

    def _with_tables(self, weights: Arrays) -> dict[str, np.ndarray]:
        return {**{r: np.asarray(v, np.float32) for r, v in weights.items()}, **self.tables}


def _moments(
    config: DecoderConfig, i: int, length: int, role: str, x: Tensor, weights: Mapping[str, Tensor]
) -> Tensor:
    """Returns X^T X of the inputs to `role`."""
    given = _inputs(config, i, length, x, weights)[1][role]
    return Tensor(ops.dot(ops.transpose(given), given, float32))


def _layer(
    config: DecoderConfig, i: int, length: int, x: Tensor, weights: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the layer's result, and the sums of squares of its linear layers' inputs."""
    out, seen = _inputs(config, i, length, x, weights)
    return Tensor(out), {r: Tensor(ops.sum_(ops.mul(v, v), 0)) for r, v in seen.items()}


def _inputs(
    config: DecoderConfig, i: int, length: int, x: Tensor, weights: Mapping[str, Tensor]
) -> tuple[Value, dict[str, Value]]:
    seen: dict[str, Value] = {}
    values = {name: t.value for name, t in weights.items()}

    def place(name: str, x: Value) -> Value:
        if (role := linear_layer(name)) is not None:
            seen[role] = ops.cast(x, float32)
        return x

    out = layer_forward(config, values, i, x.value, length, TrainingHooks(place=place))
    return out, seen
