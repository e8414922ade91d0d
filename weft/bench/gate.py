"""`weft bench gate`: shares of a device's own peaks, compared with committed ones.

Each case is timed in turn with a kernel that reaches one peak of the machine: reading memory, f32
FMAs, dot products of bytes. The median of their ratios hardly depends on what else the machine
does, so a table of them holds for every machine with the same instructions.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import weft
from weft.bench import roofline
from weft.core.caps import Caps
from weft.program.device import Device

COMMITTED = Path(__file__).with_name("gate.json")
LEAST = 0.7  # of a committed share: less is reported
Peak = tuple[Callable[[], float], float]  # plays its kernel for seconds; what one run does
_ISA = ("dot2_bf16", "dot4", "mma_bf16", "mma16_bf16")  # features that move the table


@dataclass(frozen=True)
class Case:
    """One figure: a measured function, the peak that bounds it ("read", "fma" or "dot4"), and the
    least `work` of one call: bytes, or operations."""

    name: str
    peak: str
    work: float
    make: Callable[[Device], Callable[[], object]]


def machine(caps: Caps) -> str:
    """The class of machines that share a table: "cpu, 8 lanes", "cpu, 16 lanes, dot4", ..."""
    return ", ".join([caps.name, f"{caps.lanes} lanes", *(f for f in _ISA if f in caps.features)])


def peaks(device: Device, scale: int = 1) -> dict[str, Peak]:
    """By name: a peak's kernel, and the bytes or operations of one run. `scale` divides sizes."""
    caps = device.caps
    groups = max((64 if caps.is_cpu else 1 << 12) * caps.cores // scale, 1)
    size = (1 << 26) // scale
    fma, flops = roofline.fma_kernel(caps, groups)
    dot4, products = roofline.dot4_kernel(caps, groups)
    kernels = {
        "read": (roofline.read_kernel(caps, size), 4.0 * size),
        "fma": (fma, float(flops)),
        "dot4": (dot4, float(products)),
    }
    return {
        name: (roofline.bound(device, kernel), work) for name, (kernel, work) in kernels.items()
    }


def share(
    case: Case, device: Device, peak: tuple[Callable[[], float], float], rounds: int
) -> float:
    """Returns the median over `rounds` of a call's least time, by the peak, over its own time."""
    play = case.make(device)
    play()
    rate_of, work = peak
    rate_of()
    found = []
    for _ in range(rounds):
        before = rate_of()
        start = time.perf_counter()
        play()
        device.sync()
        seconds = time.perf_counter() - start
        least = case.work / work * (before + rate_of()) / 2
        found.append(least / seconds)
    return median(found)


def run(
    device: Device,
    cases: Sequence[Case],
    rounds: int = 7,
    scale: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The share of each case, keyed as the other benchmarks key theirs."""
    known = peaks(device, scale)
    shares = {}
    for case in cases:
        progress(case.name)
        shares[case.name] = round(share(case, device, known[case.peak], rounds), 3)
    return {
        "bench": "gate",
        "version": weft.__version__,
        "device": device.info.id,
        "machine": machine(device.caps),
        "threads": device.caps.cores,
        "results": shares,
    }


def committed() -> dict[str, dict[str, float]]:
    """Committed shares by class of machines."""
    found: dict[str, dict[str, float]] = json.loads(COMMITTED.read_text(encoding="utf-8"))
    return found


def write(result: Mapping[str, Any]) -> None:
    """Commits a run's shares for its class of machines; cases that it left out keep theirs."""
    from weft.host.files import replacing

    table = committed()
    table[result["machine"]] = table.get(result["machine"], {}) | dict(result["results"])
    with replacing(COMMITTED) as temporary:
        temporary.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def lost(shares: Mapping[str, float], expected: Mapping[str, float]) -> list[str]:
    """A line for each share below LEAST of the committed one."""
    return [
        f"{name}: {value:.2f} of its peak, where {expected[name]:.2f} is committed"
        for name, value in shares.items()
        if name in expected and not value >= LEAST * expected[name]
    ]


def work_of(shape: Sequence[int]) -> float:
    """Bytes of float32 values, each read once and written once."""
    return 8.0 * math.prod(shape)


def random(shape: Sequence[int], device: Device, dtype: str = "float32") -> Any:
    """A tensor of random numbers on the device, the same in every run."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    return weft.tensor(values).astype(dtype).to(device.info.id)
