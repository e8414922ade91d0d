"""Hashes of what one graph becomes: after each pass, as a plan, as kernels, as rendered text."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fingerprints.targets import CAPS, renderers
from weft.compile import passes
from weft.core.caps import Caps
from weft.core.errors import WeftError
from weft.graph.digest import plain
from weft.graph.ir import Graph, Node, toposort
from weft.kernel.printer import text
from weft.program import serial
from weft.program.kernel_json import kernel_body
from weft.program.program import Program

Record = dict[str, Any]
"""Of one case for one target: "graph", "passes" [[name, hash], ...], "plan", "kernels" [[kind,
hash], ...], "program", "texts" {target: hashes in the order of kernels}; or "error"."""
LAST = ("graph", "passes", "kernels", "text")  # the stages that a run may end with
Item = Graph | Callable[[Caps], Program]

_PLACE = re.compile(r"[^\s(\[]*/[^\s:]*(:\d+)?|\b\w+\.py:\d+")  # places of files, in messages


class Texts:
    """Hashes of texts, which are kept in `folder` where there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def put(self, content: str) -> str:
        """The hash of `content`: 16 hexadecimal digits."""
        key = hashlib.sha256(content.encode()).hexdigest()[:16]
        if self.folder is not None and not self._path(key).exists():
            self._path(key).parent.mkdir(parents=True, exist_ok=True)
            self._path(key).write_bytes(gzip.compress(content.encode(), 1, mtime=0))
        return key

    def get(self, key: str) -> str | None:
        """The text of a hash; None where it was not kept."""
        if self.folder is None or not self._path(key).exists():
            return None
        return gzip.decompress(self._path(key).read_bytes()).decode()

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.gz"


class Fingerprints:
    """Records of graphs and Programs. Equal work is done once: a graph for a target, a kernel's
    text."""

    def __init__(self, texts: Texts, last: str = "text") -> None:
        self._texts, self._last = texts, LAST.index(last)
        self._lines: dict[int, tuple[Node, str]] = {}
        self._records: dict[tuple[str, str], Record] = {}
        self._rendered: dict[tuple[str, ...], str] = {}
        self._bodies: dict[str, bytes] = {}  # kernels in saved form, by their texts

    def of(self, item: Item, target: str) -> Record:
        """The Record of a graph, or of a function from Caps to a Program, for CAPS[target]."""
        if not isinstance(item, Graph):
            try:
                return self._program(item(CAPS[target]), target)
            except WeftError as error:
                return {"error": said(error)}
        key = self._graph(item)
        if (key, target) not in self._records:
            self._records[key, target] = {"graph": key} | self._compiled(item, target)
        return self._records[key, target]

    def traced(self, graph: Graph) -> Record:
        """The Record of a graph that is compiled for no target."""
        return {"graph": self._graph(graph)}

    def forget(self) -> None:
        """Lets the nodes of former graphs go."""
        self._lines.clear()

    def _graph(self, graph: Graph) -> str:
        return self._texts.put(graph_text(graph, self._lines))

    def _compiled(self, graph: Graph, target: str) -> Record:
        if not self._last:
            return {}
        found: list[list[str]] = []
        try:
            with _watched(lambda name, made: found.append([name, self._graph(made)])):
                if LAST[self._last] == "passes":
                    passes.simplify_graph(graph, CAPS[target])
                    return {"passes": found}
                program = passes.compile_graph(graph, CAPS[target])
        except WeftError as error:
            return {"passes": found, "error": said(error)}
        return {"passes": found} | self._program(program, target)

    def _program(self, program: Program, target: str) -> Record:
        """The Record of a Program: its plan is the saved form without what names kernels."""
        plan = serial.head(program)
        del plan["kernels"]
        printed = [text(kernel) for kernel in program.kernels]
        kinds = [kernel.name.rpartition("_")[0] or kernel.name for kernel in program.kernels]
        hashes = [self._texts.put(x) for x in printed]
        found: Record = {
            "plan": self._texts.put(json.dumps(plan, indent=1)),
            "kernels": [list(pair) for pair in zip(kinds, hashes)],
            "program": self._saved(program, hashes),
        }
        if LAST[self._last] == "text":
            found["texts"] = {
                name: [
                    self._text((target, name, hashed), render, kernel)
                    for kernel, (_, hashed) in zip(program.kernels, found["kernels"])
                ]
                for name, render in renderers(target).items()
            }
        return found

    def _saved(self, program: Program, hashes: list[str]) -> str:
        """The hash of the Program as it is saved, without the report: equal kernels are written
        once for all Programs."""
        total = hashlib.sha256(json.dumps(serial.head(program)).encode())
        for kernel, hashed in zip(program.kernels, hashes):
            if hashed not in self._bodies:
                body = json.dumps(kernel_body(kernel)).encode()
                self._bodies[hashed] = hashlib.sha256(body).digest()
            total.update(self._bodies[hashed])
        for buffer in program.buffers:
            if buffer.value is not None:
                total.update(np.ascontiguousarray(buffer.value).tobytes())
        return total.hexdigest()[:16]

    def _text(self, key: tuple[str, ...], render: Callable[..., str], kernel: Any) -> str:
        """`key`: the name of Caps, for renderers look at them too, of the renderer, the kernel's
        hash."""
        if key not in self._rendered:
            try:
                made = render(kernel)
            except WeftError as error:
                made = f"error: {said(error)}"
            self._rendered[key] = self._texts.put(made)
        return self._rendered[key]


def graph_text(graph: Graph, known: dict[int, tuple[Node, str]] | None = None) -> str:
    """Everything that the graph computes, a node per line: what `weft.graph.digest` hashes, in an
    order of attributes that does not depend on who built it. `known` keeps nodes' own parts."""
    known = {} if known is None else known
    order = list(toposort((*graph.inputs, *graph.roots())))
    number = {id(n): i for i, n in enumerate(order)}
    lines = [f"graph {graph.name} {sorted(graph.meta.items())}"]
    for i, node in enumerate(order):
        if id(node) not in known:
            known[id(node)] = node, _own(node)
        operands = " ".join(f"%{number[id(x)]}" for x in node.inputs)
        lines.append(f"%{i} = {known[id(node)][1]} <- {operands}")
    lines.append(f"inputs {[number[id(n)] for n in graph.inputs]}")
    lines.append(f"assigns {[(number[id(a)], number[id(b)]) for a, b in graph.assigns]}")
    lines.append(f"outputs {[number[id(n)] for n in graph.outputs]}")
    return "\n".join(lines) + "\n"


def _own(node: Node) -> str:
    attrs = " ".join(f"{k}={plain(v)!r}" for k, v in sorted(node.attrs.items()))
    if " at 0x" in attrs:
        raise ValueError(f"an attribute of {node.op} has no text of its own: {attrs[:200]}")
    return f"{node.dtype.name}{list(node.shape)} {node.op} {attrs}"


@contextmanager
def _watched(note: Callable[[str, Graph], None]) -> Iterator[None]:
    """Calls `note` with each pass's name and the graph that it gave."""

    def noted(name: str, run: passes.Pass) -> passes.Pass:
        def inner(graph: Graph, caps: Caps) -> Graph:
            made = run(graph, caps)
            note(name, made)
            return made

        return inner

    with patch.object(passes, "PASSES", tuple((n, noted(n, run)) for n, run in passes.PASSES)):
        yield


def said(error: Exception) -> str:
    """The text of an error, without the places of files."""
    return f"{type(error).__name__}: {_PLACE.sub('FILE', str(error))}"
