"""A graph from another framework as a Module: its steps in order, each a function of tensors.

This module is shared by importers. A format's own file maps each of its ops to a function. Here
values are bound to names, run one step after the other (eagerly, or traced by `weft.compile`) and
released after their last use.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.core.dtypes import as_dtype
from weft.core.errors import (
    DTypeError,
    ModelError,
    TraceError,
    WeftError,
)
from weft.core.packed import Form
from weft.importers.foreign import CompiledFunctions, Foreign, LinearWeight, dequantized
from weft.importers.ports import Bounds, DerivedSize, Port, Ref, bound
from weft.importers.steps import filled, keep_results, last_uses, refs
from weft.ops.tape import recording
from weft.program.device import Device
from weft.tensor.autograd import no_grad
from weft.tensor.base import place
from weft.tensor.core import Tensor
from weft.tensor.tracing import Spec, Traced, trace_call

LINEAR = "aten.linear.default"
# errors that steps raise for unforeseen arguments
_FOREIGN = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, AssertionError)


class _Here(threading.local):
    device: Device | None = None


_HERE = _Here()


def here() -> Device | None:
    """The device of the call in progress (None: the host): where steps put what they make."""
    return _HERE.device


@dataclass(frozen=True, slots=True)
class ImportedStep:
    """`run(*args, **kwargs)` with values instead of Refs (in lists and tuples too). `out` names the
    result; if that is a tuple, it names each element ("": it is not read). Errors name the foreign
    op by `op` and its place in the foreign source by `where`."""

    op: str
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: str | tuple[str, ...]
    where: str = ""


@dataclass(frozen=True)
class ForeignGraph:
    """The content of a foreign graph.

    - `tensors`: (value, dotted name of the parameter or buffer).
    - `writes`: (dotted name of a buffer, its value after the call).
    - `result`: Refs and constants nested in tuples, lists and dicts.
    - `bounds`: the least and most of sizes by name.
    - `arguments`: the arguments of calls, by name and in order, if some nest: each a Ref to an
      input, or nested Refs (empty: the inputs themselves).
    """

    inputs: tuple[Port, ...]
    steps: tuple[ImportedStep, ...]
    result: Any
    tensors: tuple[tuple[str, str], ...] = ()
    writes: tuple[tuple[str, Ref], ...] = ()
    bounds: Bounds = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Imported(Foreign):
    """A foreign graph whose steps are known beforehand.

    Called with tensors or arrays in the order of `plan.inputs` or by their names; 64-bit integers
    count as 32-bit ones (beyond their range: DTypeError). Raises CallError for missing or unknown
    inputs, ShapeError and DTypeError for those that do not fit; errors of a step name it."""

    def __init__(
        self, name: str, plan: ForeignGraph, tensors: Mapping[str, Tensor], kept: Iterable[str]
    ):
        """`tensors` are the parameters and buffers by dotted name (a tensor with two names is under
        both), `kept` the buffers that the state dict holds."""
        super().__init__(name, plan.inputs)
        self._plan, self._drops = plan, _last_uses(plan)
        persistent = set(kept)
        for dotted, value in tensors.items():
            self.hold(dotted, value, dotted in persistent)

    @property
    def plan(self) -> ForeignGraph:
        """Inputs, steps and results."""
        return self._plan

    def replan(self, **changes: Any) -> None:
        """Another plan for the same module: fields of `plan` that change."""
        self._plan = replace(self._plan, **changes)
        self._drops, self._kept = _last_uses(self._plan), CompiledFunctions()

    @property
    def __signature__(self) -> inspect.Signature:
        """The arguments of calls, by name: `help` shows it, and compiled Programs use these names
        for their inputs."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = self._plan.arguments or [p.name for p in self._plan.inputs]
        return inspect.Signature([inspect.Parameter(n, kind) for n in names if n.isidentifier()])

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, from the values of the inputs by name."""
        plan = self._plan
        values = {p.name: p.value for p in plan.inputs if p.constant} | dict(values)
        nested = plan.arguments or {p.name: Ref(p.name) for p in plan.inputs}
        return {name: filled(nest, values) for name, nest in nested.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self._bound(args, kwargs)
        # Buffers are written once, so there must be no second run.
        writes = bool(self._plan.writes) and recording()
        if self._kept.whole or writes or self.records(inputs.values()):
            return self._stepped(inputs)
        try:
            with no_grad():
                made = self.compiled(self._stepped)(inputs)
        except (TraceError, DTypeError) as error:  # needs values, or types that devices lack
            made = self._stepped(inputs)
            self._kept.whole = str(error)
            return made
        return self.evaluated(made, lambda: self._stepped(inputs))

    def _stepped(self, inputs: dict[str, Any]) -> Any:
        values = self._started(inputs)
        outer, _HERE.device = _HERE.device, _device(values.values())
        try:
            return self._run(values)
        finally:
            _HERE.device = outer

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        plan = self._plan
        return bound(self._name, plan.inputs, plan.arguments, plan.bounds, args, kwargs)

    def _started(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The values at the start: inputs, parameters and buffers."""
        return inputs | {value: self.tensor(dotted) for value, dotted in self._plan.tensors}

    def _run(self, values: dict[str, Any]) -> Any:
        plan = self._plan
        for step, drops in zip(plan.steps, self._drops):
            try:
                made = step.run(*filled(step.args, values), **filled(step.kwargs, values))
                keep_results(step.out, made, values)
            except WeftError as error:
                at = f", {step.where}" if step.where else ""
                raise type(error)(f"{step.op}{at}: {error}") from error
            except _FOREIGN as error:
                at = f", {step.where}" if step.where else ""
                raise ModelError(f"{step.op}{at}: {type(error).__name__}: {error}") from error
            for name in drops:
                del values[name]
        if plan.writes:
            with no_grad():
                for dotted, ref in plan.writes:
                    self.tensor(dotted).assign(values[ref.name].detach())
        return filled(plan.result, values)

    def traced(self, sizes: Mapping[str, int] | None = None) -> Traced:
        """Its trace for these sizes by name; others are the least that is allowed, 2 at least.
        Raises UsageError for a name that no open size has."""
        self.want_open(sizes or {})
        known = {name: max(low, 2) for name, (low, _) in self._plan.bounds.items()} | dict(
            sizes or {}
        )
        ports = [p for p in self._plan.inputs if not p.constant and p.dtype is not None]
        specs = [Spec(_shape(p, known), as_dtype(p.dtype), p.name) for p in ports]
        fixed = {p.name: p.value if p.constant else 2 for p in self._plan.inputs if p not in ports}

        def run(*tensors: Tensor) -> Any:
            given = fixed | {p.name: t for p, t in zip(ports, tensors)}
            return self._run(self._started(given))

        return trace_call(run, specs, self._name)

    def linear_weights(self) -> list[LinearWeight]:
        plan = self._plan
        times = Counter(id(self.tensor(dotted)) for _, dotted in plan.tensors)
        reads = Counter(refs((plan.result, [ref for _, ref in plan.writes])))
        linear: Counter[str] = Counter()
        for step in plan.steps:
            reads.update(refs((step.args, step.kwargs)))
            if step.op == LINEAR and isinstance(step.args[1], Ref):
                linear[step.args[1].name] += 1
        return [
            LinearWeight(value, dotted, False)
            for value, dotted in plan.tensors
            if linear[value] and reads[value] == linear[value]
            and times[id(self.tensor(dotted))] == 1
        ]  # fmt: skip

    def reads_packed(self, forms: Mapping[str, tuple[LinearWeight, Form]]) -> None:
        """A dequantize before each step that reads a packed weight: a product looks through it, and
        nothing holds the whole matrix for long."""
        steps: list[ImportedStep] = []
        for step in self._plan.steps:
            weight = step.args[1] if step.op == LINEAR else None
            if not isinstance(weight, Ref) or weight.name not in forms:
                steps.append(step)
                continue
            _, form = forms[weight.name]
            name = f"{weight.name}@{len(steps)}"
            parts = tuple(Ref(f"{weight.name}.{part}") for part in form.parts)
            run = functools.partial(dequantized, form)
            steps.append(ImportedStep("dequantize", run, parts, {}, name, step.where))
            steps.append(replace(step, args=(step.args[0], Ref(name), *step.args[2:])))
        tensors = []
        for value, dotted in self._plan.tensors:
            parts_ = forms[value][1].parts if value in forms else ()
            tensors += [(f"{value}.{p}", f"{dotted}.{p}") for p in parts_] or [(value, dotted)]
        self.replan(tensors=tuple(tensors), steps=tuple(steps))

    def summary(self) -> dict[str, Any]:
        """The facts of `Foreign.facts`."""
        ops = Counter(step.op for step in self._plan.steps)
        writes = [dotted for dotted, _ in self._plan.writes]
        return self.facts(_shown(self._plan.result), dict(ops.most_common()), writes)

    def extra_repr(self) -> str:
        ports = ", ".join(p.text() for p in self._plan.inputs)
        return f"{self._name}({ports}), {len(self._plan.steps)} steps"


def _shape(port: Port, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input for sizes by name."""
    found = []
    for size in port.shape or ():
        value = size.of(sizes) if isinstance(size, DerivedSize) else size
        value = sizes.get(value, 2) if isinstance(value, str) else value
        found.append(2 if value is None else value)
    return tuple(found)


def _shown(result: Any) -> Any:
    """A result as it nests, values by name."""
    if isinstance(result, dict):
        return {k: _shown(x) for k, x in result.items()}
    if isinstance(result, list | tuple):
        return [_shown(x) for x in result]
    return result.name if isinstance(result, Ref) else result


def _device(values: Iterable[Any]) -> Device | None:
    """The device of the first tensor on a device."""
    places = (place(v) for v in values if isinstance(v, Tensor) and not v.is_traced)
    return next((p for p in places if p is not None), None)


def _last_uses(plan: ForeignGraph) -> list[list[str]]:
    """The values that no later step reads, for each step. Raises FileFormatError for a step that
    reads a value which no input, tensor or earlier step made, and for a name made twice."""
    given = [*(p.name for p in plan.inputs), *(value for value, _ in plan.tensors)]
    named = [(step.op, refs((step.args, step.kwargs)), step.out) for step in plan.steps]
    return last_uses(given, named, refs((plan.result, [ref for _, ref in plan.writes])))
