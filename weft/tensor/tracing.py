"""Tracing: running a function of Tensors on graph Nodes, which yields its Graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, ShapeError, TraceError, UsageError
from weft.core.lines import line_of
from weft.core.trees import Tree, flatten, values
from weft.graph.ir import Graph, Node
from weft.ops.primitive import is_wrapper
from weft.ops.tape import plain, recording
from weft.tensor.base import CURRENT, TensorBase
from weft.tensor.core import Tensor
from weft.tensor.guards import TraceReads
from weft.tensor.operands import program_dtype
from weft.transform.rebuild import over

Role = Literal["input", "scalar", "state", "weight"]


@dataclass(frozen=True)
class Spec:
    """One parameter of a traced function. `role` as in graph.ir.Node; `rows` names the runtime
    scalar that bounds axis 0; without a `name` it takes that of the function's parameter.

    >>> weft.Spec((4, 8), "float16").shape
    (4, 8)
    """

    shape: tuple[int, ...]
    dtype: DType | str = dt.float32
    name: str | None = None
    role: Role = "input"
    rows: str | None = None


@dataclass(frozen=True)
class Traced:
    """A Graph, how its outputs nest in what the function returned, and the captured tensors: the
    weights and states that it read without being passed them, by name."""

    graph: Graph
    tree: Tree
    captured: dict[str, Tensor]
    fed: tuple[tuple[str, TensorBase], ...] = ()  # inputs that take the .grad of a tensor
    grads: tuple[tuple[TensorBase, TensorBase | None], ...] = ()  # tensors and .grad after a run
    guards: tuple[Callable[[], bool], ...] = ()  # further conditions of the trace
    facts: TraceReads | None = None  # the first guard
    # functions that receive the flags that the graph also returns
    checks: tuple[Callable[[Any], None], ...] = ()


class Trace:
    """The Graph under construction: its inputs, captured tensors and assignments."""

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.names: set[str] = set()
        self.copies: dict[str, int] = {}  # a name that several want -> how many have had it
        self.captured: dict[int, tuple[TensorBase, Node]] = {}
        self.current: dict[int, Node] = {}  # id of a captured tensor -> its value by now
        self.assigned: dict[int, tuple[Node, Node]] = {}  # id of a state node -> (state, new)
        self.passed: dict[int, Node] = {}  # id of a passed tensor -> its state input
        self.facts = TraceReads()
        self.guards: list[Callable[[], bool]] = [self.facts.holds]
        # tensors whose .grad was met, and that .grad
        self.grads: dict[int, tuple[TensorBase, Any]] = {}
        self.met: dict[int, Node] = {}  # the node for each .grad that existed before
        self.fed: list[tuple[str, TensorBase]] = []  # inputs that take the .grad of a tensor
        self.checks: list[tuple[TensorBase, Callable[[Any], None]]] = []

    def unique(self, name: str) -> str:
        candidate, n = name, self.copies.get(name, 0)
        while candidate in self.names:
            n += 1
            candidate = f"{name}_{n}"
        self.names.add(candidate)
        self.copies[name] = n
        return candidate

    def add(self, spec: Spec, name: str) -> Tensor:
        """A traced tensor for one parameter."""
        if name in self.names:
            raise UsageError(f"two inputs are named {name!r}; give each Spec its own name")
        self.names.add(name)
        dtype = as_dtype(spec.dtype)
        if spec.role == "scalar" and (spec.shape or dtype is not dt.int32):
            raise ShapeError(f"scalar {name!r} is {dtype.name}{list(spec.shape)}; expected int32[]")
        node = ops.input_node(name, tuple(spec.shape), dtype, spec.role, rows=spec.rows)
        self.inputs.append(node)
        tensor = Tensor(node, name)
        self.passed[id(tensor)] = node
        return tensor

    def capture(self, tensor: TensorBase) -> Node:
        """The Node that represents an outside tensor: one input per tensor."""
        key = id(tensor)
        if key not in self.captured:
            self.facts.tensor(tensor)
            name = self.unique(tensor.name or f"t{len(self.captured)}")
            node = ops.input_node(name, tensor.shape, program_dtype(tensor), "weight")
            self.captured[key] = (tensor, node)
            self.current[key] = node
            self.inputs.append(node)
        return self.current[key]

    def assign(self, tensor: TensorBase, value: Node) -> None:
        """Records that a state tensor has a new value from here on."""
        if tensor._in_trace():
            tensor._value = value  # a local tensor, or a parameter of role "state"
            state = self.passed.get(id(tensor))
            if state is None:
                return
            if state.attrs["role"] != "state":
                raise TraceError(
                    f"input {state.attrs['name']!r} is assigned to; only a state can be: give its "
                    'Spec role="state", or make a new tensor with weft.where or update'
                )
        else:
            if is_wrapper(value):
                raise TraceError(
                    f"assign: a mapped function (vmap) writes a value of its own to "
                    f"{tensor.name or tensor._known()} from outside; return the value instead"
                )
            self.capture(tensor)
            state = self.captured[id(tensor)][1]
            self.current[id(tensor)] = value
        self.assigned[id(state)] = (state, value)

    # -- .grad of tensors from outside, and other facts that the trace depends on

    def guard(self, check: Callable[[], bool]) -> None:
        """Notes a condition under which the trace is valid."""
        self.guards.append(check)

    def check(self, flags: TensorBase, refuse: Callable[[Any], None]) -> None:
        """Has each run of a compiled function pass what it computes for `flags` to `refuse`."""
        self.checks.append((flags, refuse))

    def reads_grad(self, tensor: TensorBase) -> None:
        """Notes that the trace depends on a .grad: on there being none; on the state that compiled
        functions keep it in; or on another's content, which each call passes as an input."""
        if id(tensor) in self.grads or tensor.is_traced:
            return
        before, store = tensor._grad, tensor._store
        self.grads[id(tensor)] = (tensor, before)
        if before is None or before is store:
            self.guard(lambda: tensor._grad is before)
        else:
            self.guard(lambda: tensor._grad is not None and tensor._grad is not store)
        if before is not None:
            node = self.capture(before) if before is store else self.feed(tensor, before)
            self.met[id(tensor)] = node
            tensor._grad = Tensor(node)

    def feed(self, tensor: TensorBase, gradient: TensorBase) -> Node:
        """The input that takes the .grad of `tensor` at each call."""
        name = self.unique(f"{tensor.name or f't{len(self.fed)}'}.grad")
        node = ops.input_node(name, gradient.shape, gradient.dtype, "input")
        self.inputs.append(node)
        self.fed.append((name, tensor))
        return node

    def writes_grad(self, tensor: TensorBase) -> None:
        """Notes that a .grad is about to change, whatever it was."""
        if not tensor.is_traced:
            self.grads.setdefault(id(tensor), (tensor, tensor._grad))

    def settle_grads(self) -> list[tuple[TensorBase, TensorBase | None]]:
        """Restores every .grad, and returns the tensors to which a run gives another one.

        A gradient that a run computes goes to a state of its own, the same at every run. Later
        traces that add to the gradient find it there.
        """
        changed: list[tuple[TensorBase, TensorBase | None]] = []
        for tensor, before in self.grads.values():
            after, tensor._grad = tensor._grad, before
            if after is None and before is not None:
                changed.append((tensor, None))
            elif after is not None and after is not before:
                value = plain(after.value)
                if value is not self.met.get(id(tensor)):  # else it was only read
                    store = _gradient_store(tensor)
                    self.assign(store, value)
                    changed.append((tensor, store))
        self.grads.clear()
        return changed

    def restore_grads(self) -> None:
        """Puts every .grad back as it was (after a trace that failed)."""
        for tensor, before in self.grads.values():
            tensor._grad = before

    def finish(self, outputs: Sequence[Node], name: str) -> Graph:
        """The Graph; parameters stay even when unused, as the caller passes them anyway."""
        graph = Graph(tuple(self.inputs), tuple(outputs), tuple(self.assigned.values()), name)
        mine = {id(n) for n in self.inputs}
        for node in graph.nodes():
            if node.op == "input" and id(node) not in mine:
                raise TraceError(f"{name}: uses a tensor that was left over from another trace")
        assigned = [n for n, _ in graph.assigns if n.attrs["role"] != "state"]
        states = {id(n): replace(n, attrs={**n.attrs, "role": "state"}) for n in assigned}
        return over(graph, states) if states else graph


def _gradient_store(tensor: TensorBase) -> TensorBase:
    """The state that holds the gradient of `tensor` from one run to the next."""
    if tensor._store is None:
        outer, CURRENT.trace = CURRENT.trace, None  # not a constant of the Graph
        zeros = np.zeros(tensor.shape, tensor.dtype.numpy)
        tensor._store = type(tensor)(zeros, f"{tensor.name or 't'}.grad")
        CURRENT.trace = outer
    return tensor._store


def trace(fn: Callable[..., Any], specs: Sequence[Spec], name: str | None = None) -> Graph:
    """Returns the Graph of fn(*tensors), one tensor per Spec. fn returns a Tensor, or a tuple,
    list, dict or dataclass of them (flattened in order). Raises TraceError if fn needs a value.

    >>> graph = weft.trace(lambda x: x @ x, [weft.Spec((2, 2))])
    >>> graph.outputs[0].shape
    (2, 2)
    """
    return trace_call(fn, specs, name).graph


def trace_call(
    fn: Callable[..., Any],
    specs: Sequence[Spec],
    name: str | None = None,
    call: Callable[[list[Tensor]], Any] | None = None,
    checked: bool = False,
) -> Traced:
    """Traces as `trace` does, and also returns the output's nesting and the captured tensors.
    `call`, if given, calls fn with its arguments arranged differently. `checked`: if the trace has
    checks, the graph returns (the results of fn, the flags)."""
    if CURRENT.trace is not None:
        raise TraceError("a function is being traced already; traces do not nest")
    build = Trace()
    tensors = [build.add(s, n) for s, n in zip(specs, _names(fn, specs))]
    CURRENT.trace = build
    on = recording()
    build.guard(lambda: recording() is on)
    try:
        with ops.building():
            result = fn(*tensors) if call is None else call(tensors)
            checks = build.checks if checked else []
            if checks:
                result = result, [flags for flags, _ in checks]
            outputs, tree = _nodes(result, name or "a traced function")
            grads = build.settle_grads()
            build.facts.check_written()
    except (ShapeError, DTypeError) as error:
        where = line_of(error)
        raise type(error)(f"{where}: {error}") if where else error from None
    finally:
        build.restore_grads()
        CURRENT.trace = None
    graph = build.finish(outputs, name or getattr(fn, "__name__", "graph").strip("<>"))
    captured = {n.attrs["name"]: t for t, n in build.captured.values() if isinstance(t, Tensor)}
    return Traced(
        graph, tree, captured, tuple(build.fed), tuple(grads), tuple(build.guards), build.facts,
        tuple(refuse for _, refuse in checks),
    )  # fmt: skip


def _names(fn: Callable[..., Any], specs: Sequence[Spec]) -> list[str]:
    try:
        parameters = [
            p.name
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        parameters = []
    parameters += [f"x{i}" for i in range(len(parameters), len(specs))]
    return [s.name or p for s, p in zip(specs, parameters)]


def _nodes(result: Any, name: str) -> tuple[list[Node], Tree]:
    """The values that a traced function returned, and how they nest."""
    leaves, tree = flatten(result, _is_value, f"{name} returned a cycle")
    kinds = (bool, int, float, type(None)) if leaves else (type(None),)  # numbers follow of shapes
    for other in values(tree):
        if not isinstance(other, kinds):
            raise DTypeError(
                f"a traced function returned {type(other).__name__}; return tensors, or a tuple, "
                "list, dict or dataclass of them (and of numbers)"
            )
    return [plain(x.value) if isinstance(x, TensorBase) else ops.as_node(x) for x in leaves], tree


def _is_value(x: Any) -> bool:
    return isinstance(x, TensorBase | np.ndarray | Node)
