"""Placement: where each stored value lives, which kernels write a state's buffer in place, which
copies a run needs, and the order that this demands.

A state's new value is computed straight into the state's buffer when everything that reads the
old value can run first; otherwise it is computed elsewhere and copied at the end.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from weft.compile.analysis import bent, carried, is_buffer
from weft.compile.precedence import Precedence
from weft.core.errors import CompileError
from weft.graph.ir import Graph, Node, Shape, toposort
from weft.templates.group import Group


@dataclass(eq=False)
class PlacedValue:
    """Content in memory: the result of a node, or a buffer's first content. `home` is the state,
    output or source that lends its buffer (None: the arena)."""

    node: Node
    home: PlacedValue | str | None = None
    name: str = ""
    _nearer: PlacedValue | None = None

    def place(self) -> PlacedValue:
        """The value whose buffer this one uses (the way there is remembered, as it may be long)."""
        at, passed = self, []
        while isinstance(at.home, PlacedValue):
            passed.append(at)
            at = at._nearer or at.home
        for value in passed:
            value._nearer = at
        return at


@dataclass(eq=False)
class Task:
    """A kernel (`group`) or a copy, with what it reads and writes and which tasks go first."""

    reads: list[PlacedValue]
    writes: list[PlacedValue]
    group: Group | None = None
    label: str = ""
    after: set[int] = field(default_factory=set)  # indices of tasks


@dataclass(eq=False)
class _Link:
    """A task that writes `written` into the buffer of `before`, which it reads as its input
    number `position` (None: it does not read it)."""

    task: int
    written: PlacedValue
    before: PlacedValue
    position: int | None


@dataclass(eq=False)
class TaskLayout:
    """Tasks in a valid data order, and the value that each graph output is read from."""

    tasks: list[Task]
    outputs: list[PlacedValue]
    sources: dict[int, PlacedValue]


def lay_out(graph: Graph, groups: list[Group]) -> TaskLayout:
    """Gives every stored value a home and lists the tasks of a run."""
    return _Layouter(graph, groups).result()


class _Layouter:
    def __init__(self, graph: Graph, groups: list[Group]):
        self.graph = graph
        self.values: dict[int, PlacedValue] = {}  # id(node) -> value, for stored nodes
        self.sources: dict[int, PlacedValue] = {}
        consts = (x for g in groups for x in g.inputs if x.op == "const")
        for node in (*filter(is_buffer, toposort((*graph.roots(), *graph.inputs))), *consts):
            if id(node) not in self.values:
                self.values[id(node)] = self.sources[id(node)] = PlacedValue(node, "source")
        for group in groups:
            for node in group.outputs:
                self.values[id(node)] = PlacedValue(node)
        self.tasks = [self._task(group) for group in groups]
        self.writer = {id(v): i for i, t in enumerate(self.tasks) for v in t.writes}
        self.precedence = Precedence()
        self._readers: dict[int, list[int]] = {}
        self._bent: dict[tuple[int, Shape], set[int]] = {}  # (task, shape): see `analysis.bent`
        self._overwriters: dict[int, list[int]] = {}  # id(value) -> tasks that reuse its buffer
        for i, task in enumerate(self.tasks):
            self._note_reads(i, task)
        self._roots = {id(r) for r in graph.outputs}
        self._outputs = {id(self.value_of(r)) for r in graph.outputs if r.size}

    def value_of(self, node: Node) -> PlacedValue:
        """The stored value behind `node` and the reshapes above it."""
        while id(node) not in self.values:
            assert node.op == "reshape", f"{node} is not in memory"
            node = node.inputs[0]
        return self.values[id(node)]

    def _task(self, group: Group) -> Task:
        reads = [self.value_of(x) for x in group.inputs]
        return Task(reads, [self.values[id(x)] for x in group.outputs], group, group.name)

    def result(self) -> TaskLayout:
        for i, task in enumerate(self.tasks):
            task.after = self.precedence.add(self._needs(task) - {i})
        copies: list[tuple[PlacedValue, PlacedValue, str]] = []  # at the end: (from, state, label)
        for state, new in self.graph.assigns:
            if new.size and not self._in_place(state, new):
                target = self.values[id(state)]
                copies.append((self.value_of(new), target, f"assign {state.attrs['name']}"))
        outputs = [self._output(i, root) for i, root in enumerate(self.graph.outputs)]
        self._assign_by_copy(copies)
        return TaskLayout(self.tasks, outputs, self.sources)

    # -- order ------------------------------------------------------------------------------------

    def _note_reads(self, index: int, task: Task) -> None:
        for v in {id(v) for v in task.reads}:
            self._readers.setdefault(v, []).append(index)

    def readers(self, value: PlacedValue) -> list[int]:
        return self._readers.get(id(value), [])

    def _needs(self, task: Task) -> set[int]:
        return {self.writer[id(v)] for v in task.reads if id(v) in self.writer}

    def _add(self, task: Task) -> int:
        index = len(self.tasks)
        task.after = self.precedence.add(task.after | self._needs(task))
        self.tasks.append(task)
        self._note_reads(index, task)
        self.writer |= {id(v): index for v in task.writes}
        return index

    def _overwrite(self, before: PlacedValue, written: PlacedValue, task: int) -> None:
        """Notes that `written`, which `task` makes, takes over the buffer of `before`."""
        written.home = before
        self._overwriters.setdefault(id(before), []).append(task)

    # -- states -----------------------------------------------------------------------------------

    def _in_place(self, state: Node, new: Node) -> bool:
        """Lets the state's buffer hold `new`, if a chain of kernels can write it there."""
        old, value = self.values[id(state)], self.value_of(new)
        if value.home is not None:
            return False
        links = self._links(old, value)
        if links is None:
            return False
        edges = []
        for link in links:
            edges += [(reader, link.task) for reader in self.readers(link.before)]
        if not self.precedence.order(edges):
            return False
        for link in links:
            task = self.tasks[link.task]
            self._overwrite(link.before, link.written, link.task)
            if link.position is not None:
                assert task.group is not None
                output = [id(w) for w in task.writes].index(id(link.written))
                places = {**task.group.in_place, output: link.position}
                task.group = dataclasses.replace(task.group, in_place=places)
        return True

    def _links(self, old: PlacedValue, value: PlacedValue) -> list[_Link] | None:
        """The kernels that turn the content of `old` into `value`, last first."""
        links: list[_Link] = []
        while value is not old:
            index = self.writer.get(id(value))
            if index is None or value.home is not None or (links and id(value) in self._outputs):
                return None
            group = self.tasks[index].group
            assert group is not None
            position = self._overwrites(group, value)
            if position is None:
                break
            before = self.value_of(group.inputs[position])
            if sum(v is before for v in self.tasks[index].reads) != 1:
                return None
            links.append(_Link(index, value, before, position))
            value = before
        if value is old:
            return links
        return None if links else self._direct(old, value)

    def _overwrites(self, group: Group, value: PlacedValue) -> int | None:
        """The input of an update, or of a call that carries it over, that `value`, which the group
        writes, can share a buffer with."""
        anchor = group.anchor
        if anchor is None:
            return None
        operand, output = carried(anchor) if anchor.op == "call" else (0, 0)
        fits = anchor.op in ("call", "update") and output >= 0
        if not fits or value.node is not group.outputs[output] or group.outputs[0] is not anchor:
            return None
        target = self.value_of(anchor.inputs[operand])
        for i, x in enumerate(group.inputs):
            if self.value_of(x) is target:
                others = (y for k, y in enumerate(anchor.inputs) if k != operand)
                inside = toposort(others, {id(y) for y in group.inputs})
                return i if all(n is not x for n in inside) else None
        return None

    def _direct(self, old: PlacedValue, value: PlacedValue) -> list[_Link] | None:
        """An elementwise kernel over the state, or one that does not read the state at all. Each
        element is loaded once, for the output that then replaces it."""
        index = self.writer[id(value)]
        group = self.tasks[index].group
        assert group is not None
        mine = [i for i, v in enumerate(self.tasks[index].reads) if v is old]
        if not mine:
            return [_Link(index, value, old, None)]
        target, root = group.inputs[mine[0]], value.node
        fits = len(mine) == 1 and group.kind in ("map", "pointwise") and root.dtype is target.dtype
        if (
            not fits
            or id(target) in self._bent_of(index, target.shape)
            or not _computes_from(root, target, group)
        ):
            return None
        return [_Link(index, value, old, mine[0])]

    def _bent_of(self, index: int, shape: Shape) -> set[int]:
        """The inputs of a task's group that its kernel reads elsewhere than it writes outputs of
        `shape`; found once for all states that the kernel writes."""
        if (index, shape) not in self._bent:
            group = self.tasks[index].group
            assert group is not None
            self._bent[index, shape] = bent(group, {id(x) for x in group.inputs}, shape)
        return self._bent[index, shape]

    def _assign_by_copy(self, copies: list[tuple[PlacedValue, PlacedValue, str]]) -> None:
        changed = {id(self.values[id(state)]) for state, _ in self.graph.assigns}
        staged = []
        for source, target, label in copies:
            if id(source) in changed:  # such as two states that swap their content
                temporary = PlacedValue(source.node, name=f"{label} (staged)")
                self._add(Task([source], [temporary], label=temporary.name))
                self._guard_overwrites(source)
                source = temporary
            staged.append((source, target, label))
        for source, target, label in staged:
            before = set(self.readers(target))
            made = PlacedValue(source.node)
            task = self._add(Task([source], [made], label=label, after=before))
            self._overwrite(target, made, task)
            self._guard_overwrites(source)

    # -- outputs ----------------------------------------------------------------------------------

    def _output(self, position: int, root: Node) -> PlacedValue:
        """Returns the place of output number `position`: its own kernel's buffer, or a copy."""
        name = f"out{position}"
        if not root.size:
            return PlacedValue(root, "output", name)
        value = self.value_of(root)
        if value.home == "output" and value.node.shape == root.shape:
            return value
        if value.home is None and id(value) in self.writer and value.node.shape == root.shape:
            value.home, value.name = "output", name
            return value
        if value.home is None and id(value) in self.writer and not self._is_output(value.node):
            value.home, value.name, value.node = "output", name, root
            return value
        copy = PlacedValue(root, "output", name)
        self._add(Task([value], [copy], label=f"copy to {name}"))
        self._guard_overwrites(value)
        return copy

    def _is_output(self, node: Node) -> bool:
        return id(node) in self._roots

    def _guard_overwrites(self, value: PlacedValue) -> None:
        """Orders a new reader of `value` (the last task) before the tasks that overwrite its
        buffer."""
        reader = len(self.tasks) - 1
        for i in self._overwriters.get(id(value), ()):
            if i != reader and not self.precedence.order([(reader, i)]):
                copy, label = self.tasks[-1].label, self.tasks[i].label
                raise CompileError(f"{label} overwrites what {copy!r} still has to read")


def _computes_from(root: Node, target: Node, group: Group) -> bool:
    """True if the kernel reads `target` on its way to output `root`."""
    inside = {id(x) for x in group.inputs}
    stack, seen = [root], {id(root)}
    while stack:
        at = stack.pop()
        if at is target:
            return True
        fresh = [] if id(at) in inside else [x for x in at.inputs if id(x) not in seen]
        seen.update(map(id, fresh))
        stack += fresh
    return False
