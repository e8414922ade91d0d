"""What a device's records say: a table, and each layer under the roofs of the machine."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.training.report import new_figure, save_figure
from weft_npu.device import NpuDevice, Record
from weft_npu.machine import Machine

_COLORS = {"array": "C0", "vector": "C1", "scalar": "C2", "dma": "C3"}
_HEAD = ("layer", "runs", "cycles", "bytes", "ops/byte", "array", "vector", "scalar", "dma")


def ranked(device: NpuDevice, each: bool = False) -> list[tuple[Record, int]]:
    """The records, those with the most cycles first. Layers that differ in numbers only, as those
    of a transformer do, are one record with a * for each number, and how many they are; not with
    `each`."""
    found: dict[tuple[str, str, str], tuple[Record, int]] = {}
    for r in device.records.values():
        key = r.program, r.place if each else re.sub(r"\d+", "*", r.place), r.label
        record, count = found.get(key, (Record(*key), 0))
        found[key] = record + r, count + 1
    return sorted(found.values(), key=lambda pair: -pair[0].cycles)


def table(device: NpuDevice, most: int = 20, each: bool = False) -> str:
    """A line for each of the `most` costly layers (see `ranked`) and one for all: runs, cycles and
    bytes of these together, operations per byte moved, and of the cycles the share in which each
    engine is busy."""
    found = ranked(device, each)
    if not found:
        return "npu: nothing has run"
    total = Record("", "", "all")
    for r, _ in found:
        total += r
    rows = [_HEAD, *(_row(r) for r, _ in found[:most]), _row(total)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return "\n".join(
        "  ".join(x.rjust(w) if i else x.ljust(w) for i, (x, w) in enumerate(zip(row, widths)))
        for row in rows
    )


def name_of(r: Record) -> str:
    """The program, where in it, and what."""
    return " ".join(x for x in (r.program.split(".")[-1], r.place[:24], r.label[:24]) if x)


def _row(r: Record) -> Sequence[str]:
    cost = r.cost
    busy = [f"{100 * getattr(cost, name) / r.cycles:.0f} %" for name in _COLORS]
    per_byte = f"{cost.flops / max(cost.nbytes, 1):.2f}"
    return [name_of(r), str(r.runs), f"{r.cycles:,}", f"{cost.nbytes:,}", per_byte, *busy]


def draw(device: NpuDevice, path: Path) -> None:
    """The roofline: operations a cycle over operations per byte moved, a point per layer (see
    `ranked`), its area its share of all cycles, its colour the engine that is busiest. PNG or SVG,
    by the ending of `path`. Raises UsageError when matplotlib is missing, StorageError."""
    figure = new_figure("the picture", "bench")
    machine, axes = device.machine, figure.subplots()
    shown = [r for r, _ in ranked(device) if r.cost.flops and r.cost.nbytes]
    total = sum(r.cycles for r in shown)
    x = [r.cost.flops / r.cost.nbytes for r in shown]
    y = [r.cost.flops / r.cycles for r in shown]
    for name, color in _COLORS.items():
        own = [i for i, r in enumerate(shown) if r.cost.busiest == name]
        areas = [20 + 1200 * shown[i].cycles / total for i in own]
        axes.scatter([x[i] for i in own], [y[i] for i in own], areas, color, alpha=0.5, label=name)
    together: dict[tuple[float, float], list[int]] = {}  # points that coincide have one text
    for i in range(min(len(shown), 6)):
        near = round(math.log10(x[i]), 1), round(math.log10(y[i]), 1)
        together.setdefault(near, []).append(i)
    for found in together.values():
        text, (i, *_) = ", ".join(str(i + 1) for i in found), found
        axes.annotate(text, (x[i], y[i]), ha="center", va="center", fontsize=8)
    _roofs(axes, machine, x)
    names = "\n".join(f"{i + 1}  {name_of(r)}" for i, r in enumerate(shown[:6]))
    axes.text(0.02, 0.98, names, transform=axes.transAxes, va="top", fontsize=7)
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="operations per byte moved", ylabel="operations per cycle")
    legend = axes.legend(title="busiest engine", loc="lower right", fontsize=8)
    for handle in legend.legend_handles:
        handle.set_sizes([40])
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def _roofs(axes: Any, machine: Machine, x: Sequence[float]) -> None:
    """The DMA's slope, and the peaks of the array and of the vector unit."""
    low, high = min([*x, 0.1]) / 2, max([*x, machine.array_peak / machine.dma_bytes]) * 2
    at = np.geomspace(low, high, 200)
    for name, peak in (("array, bf16", machine.array_peak), ("vector unit", machine.vector_peak)):
        axes.plot(at, np.minimum(at * machine.dma_bytes, peak), color="0.4", lw=1)
        axes.annotate(f"{name}: {peak}", (high, peak * 1.1), ha="right", fontsize=8)
