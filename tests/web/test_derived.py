"""Weights that a Program works out from others are tensors of a page, which works nothing out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends.interp import InterpDevice
from weft.compile import compile_graph
from weft.core.errors import CompileError
from weft.program.formula import Formula, FormulaStep
from weft.program.session import Session
from weft.tensor.tracing import Spec, trace_call
from weft.web import folder, targets

X = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)


def compiled() -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]:
    """A convolution and its norm for both targets, and the weights."""
    conv, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    norm.eval()
    norm.running_mean.assign(weft.tensor(np.float32([1, 2, 3, 4])))
    traced = trace_call(lambda x: norm(conv(x)).relu(), [Spec(X.shape, name="x")], "net")
    graph = replace(traced.graph, meta={"frozen": True})
    made = {caps.name: {"net": compile_graph(graph, caps)} for caps in folder.TARGETS}
    return made, {name: t.numpy() for name, t in traced.captured.items()}


def test_they_are_tensors(tmp_path: Path) -> None:
    made, weights = compiled()
    assert all(p["net"].formulas for p in made.values())
    body = folder.write_body(tmp_path, made, weights)
    data = b"".join((tmp_path / name).read_bytes() for name, _, _ in body["shards"])
    tensors = {
        name: np.frombuffer(data, np.float32, nbytes // 4, at).reshape(shape)
        for name, (_, shape, at, nbytes) in body["tensors"].items()
    }
    for name in ("webgpu.json", "wasm.json"):
        (head,) = json.loads((tmp_path / name).read_text())["programs"].values()
        assert "formulas" not in head
    for caps in folder.TARGETS:
        program = made[caps.name]["net"]
        device = InterpDevice(caps)
        want = Session(program, device, weights).run([X])[0]
        bare = replace(program, meta={k: v for k, v in program.meta.items() if k != "formulas"})
        read = {b.name for b in bare.buffers if b.role == "weight"} - set(bare.recipes)
        assert read <= set(tensors)  # what the player looks for
        np.testing.assert_array_equal(Session(bare, device, tensors).run([X])[0], want)


def test_one_name_means_one_thing(tmp_path: Path) -> None:
    made, weights = compiled()
    program = made[targets.WASM.name]["net"]
    name, formula = next(iter(program.formulas.items()))
    other = Formula(formula.sources, (*formula.steps, FormulaStep("neg", (_last(formula),), {})))
    changed = replace(program, meta={**program.meta, "formulas": {**program.formulas, name: other}})
    with pytest.raises(CompileError, match="unlike the other steps"):
        folder.write_body(tmp_path, {**made, targets.WASM.name: {"net": changed}}, weights)


def _last(formula: Formula) -> int:
    return len(formula.sources) + len(formula.steps) - 1
