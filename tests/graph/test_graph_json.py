"""Graphs as JSON: what is read back computes the same, and lies are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import ops
from weft.compile.passes import compile_graph
from weft.core.caps import PRESETS
from weft.core.errors import FileFormatError
from weft.graph import serial
from weft.graph.digest import digest
from weft.graph.ir import Graph
from weft.models import random_folder
from weft.program import serial as programs

CONFIG = {
    "model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = random_folder(tmp_path_factory.mktemp("llama"), CONFIG)
    return weft.load(folder, device="cpu", max_batch=1).graphs()["decode"]


def again(graph: Graph) -> Graph:
    text = json.dumps(serial.to_data(graph), allow_nan=False)
    return serial.from_data(json.loads(text), ops.make_node)


def test_a_decoder_step(graph: Graph) -> None:
    read = again(graph)
    assert digest(read) == digest(graph)
    made = [programs.dumps(compile_graph(g, PRESETS["cpu-avx2"], g.name)) for g in (graph, read)]
    assert made[0] == made[1]


def test_constants_and_odd_numbers() -> None:
    table = np.array([[1, -2], [3, 4]], np.int8)
    x = ops.input_node("x", (2, 2), weft.float32)
    low = ops.as_node(np.full((2, 2), -np.inf, np.float32))
    shifted = ops.where(ops.less(x, ops.as_node(np.zeros((2, 2), np.float32))), low, x)
    out = ops.add(shifted, ops.cast(ops.as_node(table), weft.float32))
    graph = Graph((x,), (out,), name="odd", meta={"frozen": True})
    read = again(graph)
    assert digest(read) == digest(graph) and read.meta == graph.meta


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format=7), "format '7'"),
        (lambda d: d["nodes"][-1].__setitem__(1, [10**6]), "before it is there"),
        (lambda d: d["nodes"][-1].__setitem__(0, "explode"), "explode"),
        (lambda d: d["nodes"][-1].__setitem__(2, {"axis": {"pickle": 1}}), "pickle"),
        (lambda d: d.update(outputs=[-1]), "not a list of nodes"),
        (lambda d: d.update(nodes=None), "not a graph"),
        (lambda d: d["nodes"].insert(0, ["const", [], {"value": 3}]), "node 0"),
        (lambda d: d["nodes"].append(["cast", [0], {"dtype": 1e308}]), "its dtype is 1e"),
        (
            lambda d: d["nodes"].insert(
                0, ["const", [], {"value": {"array": ["float32", [9], "AAAA"]}}]
            ),
            "3 bytes",
        ),
    ],
)
def test_lies(graph: Graph, change: Any, words: str) -> None:
    data = json.loads(json.dumps(serial.to_data(graph)))
    change(data)
    with pytest.raises(FileFormatError, match=words):
        serial.from_data(data, ops.make_node)


def test_the_command(graph: Graph, tmp_path: Path) -> None:
    """A graph from a file is explained and compiled as a model's own is."""
    from weft.cli.main import invoke

    file = tmp_path / "graph.json"
    file.write_text(json.dumps(serial.to_data(graph)))
    assert invoke(["explain", str(file)]) == 0
    assert invoke(["compile", str(file), "-o", str(tmp_path / "g.weft"), "--device", "sm_90"]) == 0
    program = weft.Program.load(tmp_path / "g.weft")
    assert program.name == graph.name and program.scalars == ("n",)
