"""Figures of every case's kernels for one architecture, and the tables that docs show of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from gpu_kernels.cases import graphs
from gpu_kernels.mix import mix
from gpu_kernels.traffic import Traffic, traffic
from weft.backends.llvm import occupancy, offline
from weft.backends.llvm.gpu_target import GpuTarget, gpu_target
from weft.backends.llvm.resources import Resources
from weft.compile.passes import compile_graph
from weft.core.text import markdown
from weft.kernel.ir import Kernel
from weft.kernel.printer import kernel_hash
from weft.kernel.tiles import has_tiles
from weft.models.run.compiled_runner import model_caps

# Operations in the time in which a GPU's second cache gives a byte: of threads, of matrix units.
PER_BYTE = (16, 64)
# What a kernel should keep: the least share of waves, the most bytes by the floor, the least share
# of what is asked for that is used, the most time of shared memory by that without conflicts.
OCCUPANCY, TRAFFIC, USED, TURNS = 0.25, 2.0, 0.5, 2.0
GRID = 32  # groups that a launch should have; its work is not judged below `TINY` bytes of floor
TINY = 1 << 20


@dataclass
class Figures:
    """One kernel on one architecture: what it takes, what a core holds of it, its bytes by the
    floor of its work, the used share of what it asks for, the turns of shared memory, the mean
    bytes of an access, and the shares of its kinds of instructions. `grid` is the groups of a
    launch, `groups` those that a core holds at a time."""

    kind: str
    case: str
    kernel: str
    arch: str
    grid: int
    threads: int
    registers: int
    shared: int
    spills: int
    stack: int
    groups: int
    occupancy: float
    floor: int
    traffic: float
    used: float
    turns: float
    width: float
    mix: dict[str, float]

    def faults(self) -> list[tuple[float, str]]:
        """What is beyond a bound, and by what factor."""
        found = [
            (OCCUPANCY / max(self.occupancy, 0.01), f"occupancy {self.occupancy:.2f}"),
            (USED / max(self.used, 0.01), f"{self.used:.0%} of what is read or written is used"),
            (self.turns / TURNS, f"bank conflicts: {self.turns:.1f} x"),
        ]
        if self.spills or self.stack:
            found.append((2.0, f"{self.spills} spills, {self.stack} bytes of stack"))
        if self.floor >= TINY:
            found.append((self.traffic / TRAFFIC, f"{self.traffic:.1f} x the floor's bytes"))
            found.append((GRID / max(self.grid, 1), f"{self.grid} groups"))
        return sorted((f for f in found if f[0] > 1.05), reverse=True)


def figures(arch: str, only: str = "") -> list[Figures]:
    """Those of all cases whose kind and name hold `only`, each kernel once."""
    found: dict[str, Figures] = {}
    target = gpu_target(arch)
    for kind, case, make in graphs():
        if only in f"{kind} {case}":
            kernels = compile_graph(make(), model_caps(target.caps)).kernels
            new = [k for k in kernels if k.name not in found]
            taken = offline.resources(new, target)
            found |= {k.name: _figures(kind, case, k, target, taken[k.name]) for k in new}
    return list(found.values())


def _figures(kind: str, case: str, k: Kernel, target: GpuTarget, r: Resources) -> Figures:
    (kinds, width), t = mix(offline.source(k, target)), _traffic(k, target.wave)
    floor = max(k.bytes, k.flops // PER_BYTE[has_tiles(k.body)])
    return Figures(
        kind, case, k.name, target.arch, t.grid, r.threads, r.registers, r.shared + r.dynamic,
        r.spills, r.stack, occupancy.groups(r, target.arch),
        round(occupancy.occupancy(r, target.arch), 3), floor, round(t.fetched / max(floor, 1), 2),
        round(t.used / t.asked, 2) if t.asked else 1.0,
        round(t.turns / t.shared, 2) if t.shared else 1.0, width, kinds,
    )  # fmt: skip


_KNOWN: dict[tuple[str, int], Traffic] = {}  # targets share kernels


def _traffic(kernel: Kernel, wave: int) -> Traffic:
    key = kernel_hash(kernel), wave
    if key not in _KNOWN:
        _KNOWN[key] = traffic(kernel, wave)
    return _KNOWN[key]


# -- tables


def summary(found: Iterable[Figures]) -> str:
    """A table of one row per kind of kernel: the worst of each figure, NVIDIA's and AMD's."""
    kinds: dict[str, list[Figures]] = defaultdict(list)
    for f in found:
        kinds[f.kind].append(f)
    head = ["kind", "kernels", "registers", "shared KiB", "spill", "least occupancy",
            "bytes / floor", "used", "conflicts", "bytes an access",
            "matrix, dots, floats, memory, shared, others in %"]  # fmt: skip
    return markdown(head, [_row(kind, some) for kind, some in kinds.items()])


def _row(kind: str, some: list[Figures]) -> list[str]:
    def both(name: str, worst: str = "max", form: str = "{}") -> str:
        sides = [[getattr(f, name) for f in some if f.arch.startswith(v)] for v in ("sm", "gfx")]
        pick = max if worst == "max" else min
        return " : ".join(form.format(pick(side)) if side else "-" for side in sides)

    shared = [max((f.shared for f in some if f.arch.startswith(v)), default=0) >> 10
              for v in ("sm", "gfx")]  # fmt: skip
    names = ("matrix", "dots", "floats", "memory", "shared", "others")
    mean = [round(100 * sum(f.mix[n] for f in some) / len(some)) for n in names]
    return [
        kind, str(len({f.kernel for f in some})), both("registers"), " : ".join(map(str, shared)),
        str(sum(f.spills > 0 or f.stack > 0 for f in some)), both("occupancy", "min", "{:.2f}"),
        both("traffic", "max", "{:.1f}"), both("used", "min", "{:.2f}"),
        both("turns", "max", "{:.1f}"), both("width", "min", "{:.0f}"), ", ".join(map(str, mean)),
    ]  # fmt: skip


def worst(found: Iterable[Figures], count: int = 10) -> str:
    """A table of the kernels farthest beyond a bound: of each kind and template the worst one."""
    rows: dict[tuple[str, str], list[str]] = {}
    for _, f, why in sorted(_bad(found), key=lambda x: -x[0]):
        kernel = f.kernel.rpartition("_")[0]
        rows.setdefault((f.kind, kernel), [f.kind, f.case, kernel, f.arch, why])
    head = ["kind", "case", "kernel", "GPU", "beyond its bound"]
    return markdown(head, [*rows.values()][:count])


def _bad(found: Iterable[Figures]) -> Iterator[tuple[float, Figures, str]]:
    for f in found:
        if faults := f.faults():
            yield faults[0][0], f, "; ".join(why for _, why in faults)


def data(found: Iterable[Figures]) -> list[dict[str, object]]:
    """The same as plain JSON-ready data."""
    return [asdict(f) for f in found]
