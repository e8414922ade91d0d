"""`weft tune`: measures the configurations that templates list, and keeps the fastest.

A configuration may be chosen only if its results agree with the default's within the tolerance of
products and if fewer rows give the same bits. The groups of one class (compile.tuning) share one
row of the table, so they are judged together: by the sum of their times, each in units of the
default's.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.bench.roofline import Roofline, shown
from weft.bench.tune_cases import TuneCase
from weft.compile import tuned
from weft.conform.harness import program_of
from weft.core import dtypes as dt
from weft.core.errors import WeftError
from weft.core.tolerance import compare
from weft.graph.ir import Node
from weft.kernel.ir import Kernel
from weft.kernel.printer import content_hash
from weft.kernel.tiles import has_tiles
from weft.program.device import Buffer, Device
from weft.templates import registry
from weft.templates.group import Group

GAIN = 0.97  # another configuration must stay below this share of the default's time to be chosen
_COLD = 256 << 20  # bytes that a timed run walks through, so that no cache holds the operands
_COPIES = 64  # most copies of the operands: small ones may stay in a cache, as they would in a run
_RUN = 2e-3  # least seconds of a timed run

Note = Callable[[str], None]


@dataclass
class Measured:
    """One configuration of one case: best milliseconds of one launch, or why it is out."""

    config: Mapping[str, Any]
    ms: float = math.inf
    roofline: float = 0.0
    why: str = ""


@dataclass
class TunedConfig:
    """The measurements of a class, and its configuration ({}: the default)."""

    kind: str
    shapes: str
    cases: dict[str, list[Measured]] = field(default_factory=dict)  # keyed by the case's label
    config: Mapping[str, Any] = field(default_factory=dict)
    ms: float = 0.0  # all cases together, in this configuration
    default_ms: float = 0.0


# -- measuring ------------------------------------------------------------------------------------


class Bench:
    """The operands of a case on a device, and its kernels timed on them."""

    def __init__(self, device: Device, case: TuneCase, budget: float) -> None:
        self.device, self.case, self.budget = device, case, budget
        rng = np.random.default_rng(0)
        self.arrays = [_values(x, rng) for x in case.group.inputs]
        self.arrays += [np.zeros(x.shape, x.dtype.numpy) for x in case.group.outputs]
        nbytes = max(sum(a.nbytes for a in self.arrays), 1)
        copies = 1 if device.info.software else min(_COPIES, -(-_COLD // nbytes))
        self.sets = [[self._place(a) for a in self.arrays] for _ in range(copies)]
        self.scalars = _scalars(case.group)

    def _place(self, array: np.ndarray) -> Buffer:
        buffer = self.device.alloc(array.nbytes)
        self.device.write(buffer, array)
        return buffer

    def result(self, kernel: Kernel, scalars: Sequence[int]) -> list[np.ndarray]:
        """The outputs of one run on the first set of operands."""
        count = len(self.case.group.outputs)
        mine = self.sets[0]
        for buffer, array in zip(mine[-count:], self.arrays[-count:]):
            self.device.write(buffer, array)
        self.device.submit(self._bind(kernel, 1), scalars)
        outputs = self.case.group.outputs
        return [self.device.read(b, x.shape, x.dtype) for b, x in zip(mine[-count:], outputs)]

    def _bind(self, kernel: Kernel, launches: int) -> Any:
        """Binds a Program of `launches` launches that walks through the sets of operands."""
        slots = tuple(f"s{i}" for i in range(len(self.scalars)))
        program, _ = program_of(kernel, launches, slots, sets=len(self.sets))
        return self.device.bind(program, [b for group in self.sets for b in group])

    def times(self, kernels: Sequence[Kernel]) -> list[float]:
        """Best seconds of one launch of each kernel, measured in turn so that all meet the same
        machine. A software device runs each once."""
        first = [self._once(self._bind(k, 1)) for k in kernels]
        if self.device.info.software:
            return first
        first = [self._once(self._bind(k, 1)) for k in kernels]
        launches = [max(len(self.sets), min(200, int(_RUN / max(s, 1e-6)) + 1)) for s in first]
        bound = [self._bind(k, n) for k, n in zip(kernels, launches)]
        round_ = sum(s * n for s, n in zip(first, launches))
        best = [math.inf] * len(kernels)
        for _ in range(max(3, min(30, int(self.budget / max(round_, 1e-9))))):
            for i, (program, n) in enumerate(zip(bound, launches)):
                best[i] = min(best[i], self._once(program) / n)
        return best

    def _once(self, bound: Any) -> float:
        start = time.perf_counter()
        self.device.submit(bound, self.scalars)
        self.device.sync()
        return time.perf_counter() - start


def _values(node: Node, rng: np.random.Generator) -> np.ndarray:
    if node.op == "const":
        return np.ascontiguousarray(node.attrs["value"])
    if node.dtype.is_float:
        return (rng.random(node.shape, np.float32) - np.float32(0.5)).astype(node.dtype.numpy)
    return rng.integers(0, 2, node.shape).astype(node.dtype.numpy)


def _scalars(group: Group, part: int = 1) -> list[int]:
    """Values of the runtime scalars: all rows of the outputs (or one in `part` of them)."""
    found = [1] * (max(group.slots.values(), default=-1) + 1)
    if group.rows is not None:
        rows = group.outputs[0].shape[0] // group.rows_scale
        found[group.slots[group.rows]] = max(rows // part, 1)
    return found


def measure(device: Device, case: TuneCase, roof: Roofline, budget: float) -> list[Measured]:
    """Every configuration of a case; the default, {}, first."""
    caps, build = device.caps, registry.get(case.group.kind)
    bench = Bench(device, case, budget)
    found, kernels, seen = [], [], set()
    want: list[np.ndarray] = []
    for config in ({}, *registry.candidates(case.group, caps)):
        row = Measured(config)
        try:
            kernel = build(case.group, caps, config)
            same = content_hash(kernel)
            if same in seen:
                continue  # it changes nothing here
            seen.add(same)
            got = bench.result(kernel, bench.scalars)
            want = want or got
            row.why = _disagreement(got, want)
        except WeftError as error:
            if not config:
                raise
            row.why = str(error)
        found.append(row)
        if not row.why:
            kernels.append((row, kernel))
    for (row, kernel), seconds in zip(kernels, bench.times([k for _, k in kernels])):
        row.ms = seconds * 1e3
        share = roof.share(kernel.flops, kernel.bytes, seconds, has_tiles(kernel.body))
        row.roofline = round(share, 3)
    return found


def _disagreement(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    for g, w in zip(got, want):
        outcome = compare(g, w, "dot" if dt.as_dtype(g.dtype).is_float else "exact")
        if not outcome.ok:
            return f"wrong: {outcome.message}"
    return ""


def rows_differ(device: Device, case: TuneCase, config: Mapping[str, Any]) -> bool:
    """True if, in this configuration, a row's bits depend on the number of rows."""
    build, group = registry.get(case.group.kind), case.group
    bench = Bench(device, case, 0.0)
    if case.other is not None:
        more = Bench(device, dataclasses.replace(case, group=case.other), 0.0)
        count = min(len(b.arrays[0]) for b in (bench, more))
        for b in (bench, more):  # the first operand of a product has a row per row of the result
            b.arrays[0][:count] = bench.arrays[0][:count]
            device.write(b.sets[0][0], b.arrays[0])
            for array, mine in zip(bench.arrays[1:-1], b.sets[0][1:-1]):
                device.write(mine, array)
        part = more.result(build(case.other, device.caps, config), more.scalars)
    elif group.rows is not None:
        scalars = _scalars(group, 2)
        part = bench.result(build(group, device.caps, config), scalars)
        count = scalars[group.slots[group.rows]] * group.rows_scale
    else:
        return False
    whole = bench.result(build(group, device.caps, config), bench.scalars)
    return any(p[:count].tobytes() != w[:count].tobytes() for p, w in zip(part, whole))


# -- choosing -------------------------------------------------------------------------------------


def run(
    device: Device, cases: Sequence[TuneCase], roof: Roofline, budget: float, note: Note
) -> Iterator[TunedConfig]:
    """Measures class by class, and chooses."""
    members: dict[tuple[str, str], list[TuneCase]] = {}
    for case in cases:
        members.setdefault((case.group.kind, case.shapes), []).append(case)
    for key, group in members.items():
        choice = TunedConfig(*key)
        for case in group:
            note(f"{case.group.kind} {case.label}")
            choice.cases[case.label] = measure(device, case, roof, budget)
        _choose(choice, lambda c, group=group: any(rows_differ(device, case, c) for case in group))  # type: ignore[misc]
        yield choice


def _choose(choice: TunedConfig, differs: Callable[[Mapping[str, Any]], bool]) -> None:
    """The configuration with the least time over all cases, in units of the default's."""
    tables = [{_key(m.config): m for m in rows} for rows in choice.cases.values()]
    configs = {_key(m.config): m.config for rows in choice.cases.values() for m in rows}

    def total(key: str) -> float:  # a missing configuration changes nothing in that case
        return sum(t.get(key, t["{}"]).ms / t["{}"].ms for t in tables) / len(tables)

    def ms(key: str) -> float:
        return round(sum(t.get(key, t["{}"]).ms for t in tables), 6)

    best = "{}"
    for key in sorted((k for k in configs if total(k) < GAIN), key=total):
        if not differs(configs[key]):
            best = key
            break
        for table in tables:
            table.get(key, Measured({})).why = "a row's bits depend on the number of rows"
    choice.config, choice.ms, choice.default_ms = configs[best], ms(best), ms("{}")


def _key(config: Mapping[str, Any]) -> str:
    return repr(dict(sorted(config.items())))


def into(table: tuned.TunedTable, choices: Sequence[TunedConfig]) -> tuned.TunedTable:
    """The table with a row per class that was measured, in place of what it said of it."""
    rows = dict(table.rows)
    for c in choices:
        rows[c.kind, c.shapes] = tuned.TunedRow(c.config, c.ms, c.default_ms)
    return dataclasses.replace(table, rows=rows)


HEADER = ("kind", "class", "shape", "config", "ms", "of default", "roofline", "")


def table_rows(choices: Sequence[TunedConfig]) -> list[list[Any]]:
    """The rows of the printed table: the default and the chosen configuration are marked."""
    out: list[list[Any]] = []
    for c in choices:
        for label, measured in c.cases.items():
            for m in sorted(measured, key=lambda m: m.ms):
                marks = [] if m.config else ["default"]
                marks += ["chosen"] if m.config == c.config else []
                name = ", ".join(f"{k}={v}" for k, v in m.config.items()) or "default"
                base = next(r.ms for r in measured if not r.config)
                figures = ["", "", ""]
                if m.ms < math.inf:
                    figures = [f"{m.ms:.4f}", f"{m.ms / base:.3f}", shown(m.roofline)]
                out.append([c.kind, c.shapes, label, name, *figures, m.why or " ".join(marks)])
    return out
