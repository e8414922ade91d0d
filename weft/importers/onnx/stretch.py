"""Nodes of a model that are compiled together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core import dtypes as dt
from weft.importers.onnx.longs import refuse
from weft.importers.onnx.run import Frame, GraphRun
from weft.importers.onnx.table import Value
from weft.tensor.compiled import Compiled
from weft.tensor.core import Tensor

if TYPE_CHECKING:
    from weft.importers.onnx.model import OnnxModel

FLAGS = ""  # among results: which nodes made an int64 that 32 bits do not hold
KEPT = 64  # sets of host values for which compiled functions are kept


class Stretch:
    """Nodes start..stop of a model, compiled: once for each set of host values among their operands
    (a Compiled each), which has a Program for each signature. `instead` are initializers that a
    call gives."""

    def __init__(self, model: OnnxModel, start: int, stop: int, instead: frozenset[str]):
        graph = model.graph
        self.model, self.start = model, start
        self.device = model.device
        self.nodes = graph.nodes[start:stop]
        made = {o for n in self.nodes for o in n.outputs if o}
        later = {r for n in graph.nodes[stop:] for r in n.reads}
        later |= {p.name for p in graph.outputs}
        self.gives = [
            n for n in dict.fromkeys(o for x in self.nodes for o in x.outputs) if n in later
        ]
        reads = dict.fromkeys(r for n in self.nodes for r in n.reads)
        outside = instead.union(reads.keys() - set(model.constants))
        self.reads = [r for r in reads if r not in made and r in outside]
        self.compiled: OrderedDict[Any, Any] = OrderedDict()
        self.static: dict[Any, dict[str, Value]] = {}  # values that are known without running
        self.hollow: set[Any] = set()  # signatures for which all values are known without running
        self.checked: dict[Any, list[str]] = {}  # the nodes that FLAGS are of

    def programs(self) -> int:
        """The number of Programs so far."""
        return sum(len(c.programs()) for c in self.compiled.values())

    def __call__(self, frame: Frame) -> None:
        """Runs the nodes on a frame's values, and adds what they give to it."""
        values = {n: frame.find(n) for n in self.reads}
        names = [n for n, v in values.items() if isinstance(v, Tensor)]
        fixed = {n: v for n, v in values.items() if not isinstance(v, Tensor)}
        key = tuple((n, _hashable(v)) for n, v in fixed.items())
        if key not in self.compiled:
            if len(self.compiled) >= KEPT:
                self.compiled.popitem(last=False)
                self.static = {k: v for k, v in self.static.items() if k[0] in self.compiled}
            fn = self._traced(key, names, fixed)
            self.compiled[key] = Compiled(fn, self.device or "cpu", frozen=True)
        self.compiled.move_to_end(key)
        operands = [values[n] for n in names]
        signature = key, tuple((x.shape, _narrow(x.dtype)) for x in operands)
        if signature not in self.hollow:
            try:
                made = dict(self.compiled[key](*operands))
                flags = made.pop(FLAGS, None)
                if flags is not None:
                    refuse(self.checked[signature], flags)
                frame.values.update(made)
            except _NothingToRun:
                self.hollow.add(signature)
        frame.values.update(self.static[signature])

    def _traced(self, key: Any, names: list[str], fixed: dict[str, Value]) -> Callable[..., Any]:
        model = self.model

        def stretch(*tensors: Tensor) -> dict[str, Any]:
            given = {**fixed, **dict(zip(names, tensors))}
            frame = model.frame(given)
            run = GraphRun(model.functions, self.device, traced_names(given))
            for name in model.longs & given.keys():
                run.longs.mark(given[name])
            run.nodes(self.nodes, frame, self.start)
            made = {n: frame.find(n) for n in self.gives}
            model.longs.update(n for n, v in made.items() if run.longs.holds(v))
            shapes = tuple((t.shape, _narrow(t.dtype)) for t in tensors)
            self.static[key, shapes] = {n: v for n, v in made.items() if not _on_device(v)}
            given = {n: v for n, v in made.items() if _on_device(v)}
            if not given:
                raise _NothingToRun
            flags = run.longs.verdict()
            if flags is not None:
                given[FLAGS] = flags
                self.checked[key, shapes] = [place for place, _ in run.longs.checks]
            return given

        return stretch


def traced_names(values: dict[str, Value]) -> dict[int, str]:
    """The names of traced tensors by their nodes' ids."""
    return {id(v._value): n for n, v in values.items() if isinstance(v, Tensor)}


class _NothingToRun(Exception):
    """A stretch all of whose values are known on the host."""


def _on_device(x: Value) -> bool:
    """True if the Program computes a value (a list counts as a whole)."""
    return isinstance(x, Tensor) or (isinstance(x, list) and any(map(_on_device, x)))


def _narrow(dtype: dt.DType) -> dt.DType:
    return dt.int32 if dtype is dt.int64 else dtype


def _hashable(x: Value) -> Any:
    if isinstance(x, np.ndarray):
        return (x.shape, x.dtype.str, x.tobytes())
    return tuple(map(_hashable, x)) if isinstance(x, list) else None if x is None else id(x)
