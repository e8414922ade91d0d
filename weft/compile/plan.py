"""From groups to a Program: kernels built and shared, buffers numbered, memory planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.compile import arena, library, limits, tuning
from weft.compile.analysis import scalar_names
from weft.compile.placement import PlacedValue, Task, TaskLayout, lay_out
from weft.compile.report import CompileReport, GroupLine
from weft.compile.schedule import schedule
from weft.compile.signature import described
from weft.compile.weights import weight_lines
from weft.core.caps import Caps
from weft.core.dtypes import uint8 as _UINT8
from weft.core.errors import CompileError, LimitError
from weft.graph.ir import Graph, Node
from weft.kernel.grid import check_groups
from weft.kernel.ir import Kernel
from weft.kernel.printer import named_by_content
from weft.kernel.turns import within_turns
from weft.program.formula import Formula
from weft.program.program import (
    BufferRef,
    BufferRole,
    BufferSpec,
    Copy,
    Dispatch,
    Library,
    Program,
    Step,
)
from weft.program.recipe import Recipe
from weft.templates import registry
from weft.templates.group import Group
from weft.transform.rebuild import kind_of, shown

Ready = Callable[[Kernel], None]  # what Device.prepare is


class UnwritableError(Exception):
    """A template refused `group`; the error that it raised, with the group's name, is the cause."""

    def __init__(self, group: Group, error: CompileError | LimitError):
        super().__init__(str(error))
        self.group, self.error = group, error


class KernelTable:
    """Kernels of one Program: equal groups build once, equal kernels are kept once. `ready` hears
    of each new one."""

    def __init__(self, caps: Caps, ready: Ready | None = None):
        self.caps = caps
        self._ready = ready
        self.kernels: list[Kernel] = []
        self._by_signature: dict[tuple[Any, ...], tuple[int, str, str]] = {}
        self._by_hash: dict[str, int] = {}

    def add(self, group: Group) -> tuple[int, str, str]:
        """(kernel number, configuration, why) for a group. Raises UnwritableError."""
        key = described(group)
        if key not in self._by_signature:
            config, why = tuning.config_for(group, self.caps)
            try:
                kernel = registry.get(group.kind)(group, self.caps, config)
                kernel = within_turns(kernel, self.caps.max_turns)
                if not self.caps.is_cpu:
                    check_groups(kernel, self.caps.max_groups)
            except (CompileError, LimitError) as error:
                named = f"{group.name} {_shape(group.outputs[0])}: {error}"
                raise UnwritableError(group, type(error)(named)) from error
            text = ", ".join(f"{k}={v}" for k, v in config.items()) or "default"
            self._by_signature[key] = self._share(kernel, group.kind), text, why
        return self._by_signature[key]

    def _share(self, kernel: Kernel, kind: str) -> int:
        named, digest = named_by_content(kernel, kind)
        if digest not in self._by_hash:
            self._by_hash[digest] = len(self.kernels)
            self.kernels.append(named)
            if self._ready is not None:
                self._ready(named)
        return self._by_hash[digest]


def build_program(
    graph: Graph,
    groups: list[Group],
    caps: Caps,
    report: CompileReport,
    ready: Ready | None = None,
) -> Program:
    """The Program that runs `groups`; `report` gains its lines, and `ready` hears of each kernel.
    Raises UnwritableError."""
    return _Planner(graph, groups, caps, report, ready).program()


class _Planner:
    def __init__(
        self,
        graph: Graph,
        groups: list[Group],
        caps: Caps,
        report: CompileReport,
        ready: Ready | None,
    ):
        self.graph, self.caps, self.report = graph, caps, report
        self.layout: TaskLayout = lay_out(graph, groups)
        self.order: list[Task] = schedule(self.layout.tasks)
        self.table = KernelTable(caps, ready)
        self.buffers: list[BufferSpec] = []
        self.refs: dict[int, BufferRef] = {}  # id(Value) -> where it lives
        self.recipes: dict[str, Recipe] = {}
        self.formulas: dict[str, Formula] = {}

    def program(self) -> Program:
        values = (value.node for task in self.order for value in (*task.reads, *task.writes))
        limits.check_elements(values, self.caps)
        inputs = [x for x in self.graph.inputs if x.attrs["role"] == "input"]
        numbers = [self._source(x) for x in inputs]
        outputs = [self._output(value) for value in self.layout.outputs]
        for node in self._other_sources():
            self._source(node)
        self._arena()
        steps = tuple(self._step(task) for task in self.order)
        self._measure()
        written = {id(v.node) for task in self.order for v in task.writes}
        self.report.weights = weight_lines(self.graph, written)
        scalars = scalar_names(self.graph)
        meta: dict[str, Any] = {"report": self.report}
        rows = {x.attrs["name"]: x.attrs["rows"] for x in inputs if x.attrs.get("rows")}
        if rows:
            meta["rows"] = rows
        if self.recipes:
            meta["recipes"] = self.recipes
        if self.formulas:
            meta["formulas"] = self.formulas
        return Program(
            self.graph.name,
            tuple(self.buffers),
            tuple(self.table.kernels),
            steps,
            scalars,
            tuple(numbers),
            tuple(outputs),
            meta,
        )

    # -- buffers ----------------------------------------------------------------------------------

    def _buffer(
        self, name: str, role: BufferRole, node: Node, value: np.ndarray | None = None
    ) -> int:
        if node.nbytes > self.caps.max_buffer_bytes:
            where = f" ({node.where})" if node.where else ""
            raise LimitError(
                f"{role} {name!r} {_shape(node)}{where} takes {node.nbytes:,} bytes, "
                f"{self.caps.name} allows {self.caps.max_buffer_bytes:,} per buffer"
            )
        self.buffers.append(BufferSpec(name, role, node.dtype, node.shape, node.nbytes, value))
        return len(self.buffers) - 1

    def _source(self, node: Node) -> int:
        if "part" in node.attrs:
            return self._range(node)
        if node.op == "const":
            value = np.asarray(node.attrs["value"], order="C")
            number = self._buffer(f"const{len(self.buffers)}", "const", node, value)
        else:
            number = self._buffer(node.attrs["name"], node.attrs["role"], node)
            if "formula" in node.attrs:
                self.formulas[node.attrs["name"]] = node.attrs["formula"]
        if id(node) in self.layout.sources:
            self.refs[id(self.layout.sources[id(node)])] = BufferRef(number, 0, node.nbytes)
        return number

    def _range(self, node: Node) -> int:
        """A row range of a weight: its place in the whole weight's buffer, or its own buffer."""
        whole = Node("input", (), {}, node.attrs["whole"], node.dtype)
        name = node.attrs["name"]
        if "interleave" in node.attrs:
            return self._interleaved(node)
        if whole.nbytes > self.caps.max_buffer_bytes:
            return self._cut(node, whole)
        number = next((i for i, b in enumerate(self.buffers) if b.name == name), None)
        if number is None:
            number = self._buffer(name, "weight", whole)
        offset = node.attrs["part"][0] * (whole.nbytes // whole.shape[0])
        self.refs[id(self.layout.sources[id(node)])] = BufferRef(number, offset, node.nbytes)
        return number

    def _cut(self, node: Node, whole: Node) -> int:
        """A buffer for a row range of a weight that no buffer of the target holds whole."""
        name, (start, stop) = node.attrs["name"], node.attrs["part"]
        label = f"{name}[{start}:{stop}]"
        number = self._buffer(label, "weight", node)
        self.recipes[label] = Recipe(name, start, whole.shape[0])
        self.refs[id(self.layout.sources[id(node)])] = BufferRef(number, 0, node.nbytes)
        return number

    def _interleaved(self, node: Node) -> int:
        """A buffer for a weight in another order than the checkpoint's."""
        name, lanes, (rows, depth) = node.attrs["name"], node.attrs["interleave"], node.shape
        stored = node.attrs["part"][1]
        item = node.attrs.get("item", 1)
        label = f"{name}@{lanes}" if item == 1 else f"{name}@{lanes}x{item}"
        kept = Node("input", (), {}, (rows // lanes, depth // item, lanes * item), node.dtype)
        number = self._buffer(label, "weight", kept)
        self.recipes[label] = Recipe(name, 0, stored, lanes, item)
        self.refs[id(self.layout.sources[id(node)])] = BufferRef(number, 0, node.nbytes)
        return number

    def _other_sources(self) -> list[Node]:
        found = {id(v.node): v.node for v in self.layout.sources.values()}
        found |= {id(x): x for x in self.graph.inputs}
        rank = {"state": 0, "weight": 1}
        kept = [x for x in found.values() if x.attrs.get("role") not in ("input", "scalar")]
        return sorted(kept, key=lambda x: rank.get(str(x.attrs.get("role")), 2))

    def _output(self, value: PlacedValue) -> int:
        ref = self.refs.get(id(value))
        if ref is None:
            number = self._buffer(value.name, "output", value.node)
            ref = self.refs[id(value)] = BufferRef(number, 0, value.node.nbytes)
        return ref.buffer

    def _arena(self) -> None:
        spans: dict[int, arena.Span] = {}
        for step, task in enumerate(self.order):
            for value in (*task.writes, *task.reads):
                if value.place().home:
                    continue
                span = spans.setdefault(
                    id(value), arena.Span(value.node.nbytes, step, step, shown(value.node))
                )
                span.end = step
        if self.caps.exclusive_buffers:
            self._keep_apart(spans)
        sizes = arena.place(list(spans.values()), self.caps.max_buffer_bytes)
        first = len(self.buffers)
        for i, nbytes in enumerate(sizes):
            node = Node("arena", (), {}, (nbytes,), _UINT8)
            self._buffer(f"arena{i}" if i else "arena", "arena", node)
        for key, span in spans.items():
            self.refs[key] = BufferRef(first + span.buffer, span.offset, span.nbytes)
        self.report.unshared = sum(s.nbytes for s in spans.values())

    def _keep_apart(self, spans: Mapping[int, arena.Span]) -> None:
        for task in self.order:
            written = [spans[id(v)] for v in task.writes if id(v) in spans]
            read = [spans[id(v)] for v in task.reads if id(v) in spans]
            for out in written:
                out.apart |= {id(other) for other in read}
            for other in read:
                other.apart |= {id(out) for out in written}

    def _ref(self, value: PlacedValue) -> BufferRef:
        return self.refs[id(value.place())]

    # -- steps ------------------------------------------------------------------------------------

    def _step(self, task: Task) -> Step:
        if task.group is None:
            self.report.copies.append(task.label)
            return Copy(self._ref(task.reads[0]), self._ref(task.writes[0]), task.label)
        group = task.group
        number, config, why = self.table.add(group)
        kernel = self.table.kernels[number]
        args = [self._ref(v) for v in task.reads]
        args += [self._ref(v) for i, v in enumerate(task.writes) if i not in group.in_place]
        self._check(group, kernel, args)
        gemm, reason = library.offered(group, self.caps)
        bound = f"{group.rows}*{group.rows_scale}" if group.rows_scale != 1 else group.rows or ""
        self.report.groups.append(
            GroupLine(
                group.name,
                group.kind,
                kernel.name,
                _computed(group),
                " ".join(_shape(x) for x in group.outputs),
                kernel.flops,
                kernel.bytes,
                config,
                why,
                bound,
                "yes" if gemm is not None else reason and f"no: {reason}",
            )
        )
        if gemm is None:
            return Dispatch(number, tuple(args), group.name)
        return Library(number, tuple(args), group.name, gemm=gemm)

    def _check(self, group: Group, kernel: Kernel, args: list[BufferRef]) -> None:
        """The template kept its contract, and every binding fits the device."""
        sizes = [b.size * b.dtype.itemsize for b in kernel.buffers]
        if sizes != [a.nbytes for a in args]:
            raise CompileError(
                f"template {group.kind!r} made buffers of {sizes} bytes for {group.name}, "
                f"which has values of {[a.nbytes for a in args]}"
            )
        largest = max(sizes, default=0)
        if largest > self.caps.max_binding_bytes:  # dialects split it, if bindings suffice
            taken = sum(map(self.caps.bindings, sizes))
            if taken > self.caps.max_bindings:
                raise LimitError(
                    f"{group.name} {_shape(group.outputs[0])} binds {largest} bytes, "
                    f"{self.caps.name} allows {self.caps.max_binding_bytes} per binding and "
                    f"{self.caps.max_bindings} bindings"
                )

    def _measure(self) -> None:
        for spec in self.buffers:
            memory = self.report.memory
            kept = spec.name in self.recipes and self.recipes[spec.name].lanes > 1
            role = f"{spec.role}, interleaved" if kept else spec.role
            memory[role] = memory.get(role, 0) + spec.nbytes


def _shape(node: Node) -> str:
    return f"{node.dtype.name}{list(node.shape)}"


def _computed(group: Group) -> list[str]:
    """The ops a group computes, operands first (reports and tests of fusion read this)."""
    inside = reversed(group.inside())
    computed = (n for n in inside if kind_of(n) not in ("source", "result"))
    return [str(n.attrs["name"]) if n.op == "call" else n.op for n in computed]
