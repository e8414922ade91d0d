"""Tools for kernels of one's own: checks, texts, the fastest numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.backends import presets
from weft.core.caps import PRESETS, Caps
from weft.core.errors import KernelError, UsageError
from weft.core.tolerance import compare
from weft.kernel import interp, printer
from weft.kernel.ir import Kernel
from weft.kernel.one_thread import one_thread
from weft.program.device import Device
from weft.templates.own import OwnKernel, WrittenKernel, at_line, beyond, for_caps

GAIN = 0.97  # other numbers must stay below this share of the default's time to be chosen
ROUNDS = 7
_RUN = 2e-3  # least seconds of a timed run


def targets(name: str | None) -> list[Caps]:
    """The Caps meant by a name: a preset, an architecture or a device; all presets for None."""
    if name is None:
        return list(PRESETS.values())
    return [presets.caps_of(name)]


def check(own: OwnKernel, arrays: Sequence[np.ndarray], target: str | None) -> None:
    """Runs a kernel in the interpreter, as the targets would. Raises KernelError with the user's
    line."""
    ran: set[int] = set()
    for caps in targets(target):
        written = own.suited(caps)
        problem = beyond(written.kernel, caps)
        if problem:
            raise KernelError(f"kernel {own.name}: {problem}")
        if id(written) not in ran:  # a GPU's form, which says what a mistake is
            _interpret(own, written, written.kernel, arrays)
            ran.add(id(written))
        if caps.is_cpu and -id(written) not in ran:
            _interpret(own, written, one_thread(written.kernel, caps.lanes), arrays)
            ran.add(-id(written))


def _interpret(
    own: OwnKernel, written: WrittenKernel, kernel: Kernel, arrays: Sequence[np.ndarray]
) -> None:
    given = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    made = [np.zeros(b.size, b.dtype.numpy) for b in kernel.buffers[len(given) :]]
    unset = [*(None for _ in given), *(np.ones(a.size, bool) for a in made)]
    try:
        interp.run(kernel, [*given, *made], undefined=unset)
    except KernelError as error:
        raise at_line(error, own.name, written.lines) from None
    for number, mask in enumerate(unset[len(given) :]):
        if mask is not None and mask.any():
            first = np.unravel_index(int(mask.argmax()), own.outputs[number].shape)
            raise KernelError(
                f"kernel {own.name}: out{number} is not written whole: {int(mask.sum()):,} of "
                f"{mask.size:,} elements are missing, the first at {list(map(int, first))}"
            )


def source(own: OwnKernel, target: str) -> str:
    """The text of a kernel for a target (see Kernel.source)."""
    if target == "ir":
        return printer.text(own.written().kernel)
    caps, render = presets.renderer(target)
    return render(_for(own, caps))


def _for(own: OwnKernel, caps: Caps) -> Kernel:
    kernel = for_caps(own.suited(caps).kernel, caps)
    return replace(kernel, name=own.name)


def tune(
    device: Device, runs: Sequence[tuple[Mapping[str, Any], Callable[[], list[np.ndarray]]]]
) -> list[tuple[Mapping[str, Any], float]]:
    """The numbers of each run (the default's first) with its milliseconds, the best first. Runs
    take turns. Raises KernelError for results that differ."""
    results = [run() for _, run in runs]
    for (numbers, _), found in zip(runs, results):
        for got, want in zip(found, results[0]):
            agreed = compare(got, want, "dot")
            if not agreed.ok:
                raise KernelError(f"tune: {dict(numbers)} gives other results: {agreed.message}")
    times = [float("inf")] * len(runs)
    count = max(1, int(_RUN / max(_timed(device, runs[0][1], 3), 1e-7)))
    for _ in range(ROUNDS):
        for i, (_, run) in enumerate(runs):
            times[i] = min(times[i], _timed(device, run, count))
    default = times[0]
    order = sorted(range(len(runs)), key=lambda i: times[i] if times[i] < GAIN * default else (
        default if i == 0 else default + times[i]))  # fmt: skip
    return [(runs[i][0], 1e3 * times[i]) for i in order]


def _timed(device: Device, run: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    device.sync()
    return (time.perf_counter() - start) / count


def keep(own: OwnKernel, caps: Caps, numbers: Mapping[str, Any], ms: float, default: float) -> None:
    """Writes the numbers to the tuning table of the Caps, where compiling finds them."""
    from weft.compile import tuned

    path = tuned.default_path(caps)
    table = tuned.active(caps) or tuned.new(caps.model or caps.name, caps)
    if path is None or not tuned.writable():
        raise UsageError(
            "tune: WEFT_TUNING turns tuning tables off or names one; unset it to keep what was "
            "measured"
        )
    rows = {**table.rows, ("own", own.digest): tuned.TunedRow(numbers, ms, default)}
    tuned.write(path, replace(table, rows=rows))
