"""`weft bench ops --sizes 128..1024`: the CPU against every GPU device that is present, op by op
and size by size: speed, with and without transfers, and the error against the CPU's result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.backends import registry
from weft.bench.timing import peak_rss_mib, summary, time_calls
from weft.core import dtypes as dt
from weft.core.errors import LimitError, UsageError
from weft.core.tolerance import compare, tolerance
from weft.program.device import Device
from weft.tensor import functional as F

_NOT_GPUS = ("cpu", "interp", "null")


@dataclass(frozen=True)
class MatrixOp:
    """An operation on n x n float32 matrices (or rows, where a shape says so).

    `shapes` are those of its operands at size n. `work` is its work at size n, in FLOPs ("gflops")
    or in bytes read and written once ("gbs"). `kind` is the kind of tolerance for its result.
    """

    name: str
    fn: Callable[..., Any]
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]
    unit: str
    work: Callable[[int], float]
    kind: str


def _chain(x: Any, y: Any) -> Any:
    return (x * 1.5 + y).tanh() * x - y


def _square(operands: int, rows: int = 0) -> Callable[[int], tuple[tuple[int, ...], ...]]:
    """Returns the shapes of `operands` n x n matrices, then `rows` rows of n."""
    return lambda n: (*((n, n),) * operands, *((n,),) * rows)


def _traffic(arrays: int) -> Callable[[int], float]:
    """Returns the bytes of `arrays` n x n float32 arrays."""
    return lambda n: 4.0 * arrays * n * n


OPS = (
    MatrixOp("matmul", lambda x, y: x @ y, _square(2), "gflops", lambda n: 2.0 * n**3, "dot"),
    MatrixOp("softmax", F.softmax, _square(1), "gbs", _traffic(2), "reduce"),
    MatrixOp("layer_norm", F.layer_norm, _square(1, rows=2), "gbs", _traffic(2), "reduce"),
    MatrixOp("gelu", F.gelu, _square(1), "gbs", _traffic(2), "elementwise"),
    MatrixOp("elementwise", _chain, _square(2), "gbs", _traffic(3), "elementwise"),
)
RATES = {"gflops": "GFLOP/s", "gbs": "GB/s"}


def parse_sizes(text: str) -> list[int]:
    """ "128..1024" (powers of two from the first to the last) or "100,200" as numbers. Raises
    UsageError for anything else, or for numbers outside 1..16384."""
    try:
        if ".." in text:
            first, last = (int(part) for part in text.split(".."))
            sizes = [first << i for i in range(16) if first << i <= last and first > 0]
        else:
            sizes = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        sizes = []
    if not sizes or any(n < 1 or n > 16384 for n in sizes):
        raise UsageError(f"--sizes takes 128..1024 or 128,256 (from 1 to 16384), not {text!r}")
    return sizes


def present() -> list[str]:
    """The ids of the GPU devices that are there, one per adapter: the native interface of each."""
    seen, found = set(), []
    for info in registry.devices():
        if info.available and info.kind not in _NOT_GPUS and info.name not in seen:
            seen.add(info.name)
            found.append(info.id)
    return found


def _measure(
    op: MatrixOp, n: int, device: Device, arrays: Sequence[np.ndarray], repeats: int, budget: float
) -> tuple[dict[str, Any], np.ndarray]:
    """One row: times and rate of an op on a device; and its result."""
    compiled = weft.compile(op.fn, device=device)
    inputs = [weft.tensor(a, device=device.info.id) for a in arrays]
    slow = device.info.software
    least, warm = (2, 1) if slow else (5, 3)
    result = np.array(compiled(*inputs).numpy())
    wait = None if device.synchronous else compiled.sync
    row = summary(time_calls(lambda: compiled(*inputs), repeats, budget, warm, least, wait))
    moved = time_calls(lambda: compiled(*arrays).numpy(), repeats, budget, 1, least)
    row["with_transfers_ms"] = summary(moved)["median_ms"]
    row[op.unit] = round(op.work(n) / (row["median_ms"] * 1e6), 2)
    return row, result


def _parity(got: np.ndarray, want: np.ndarray, kind: str) -> dict[str, Any]:
    """The largest error, its share of what the table allows there, and whether all is within."""
    tol = tolerance(kind, dt.float32)
    allowed = tol.atol + tol.rtol * np.abs(want)
    share = float(np.max(np.abs(got - want) / allowed)) if want.size else 0.0
    outcome = compare(got, want, kind)
    return {"max_abs": outcome.max_abs, "of_tolerance": round(share, 3), "ok": outcome.ok}


def rows(
    devices: Sequence[Device],
    sizes: Sequence[int],
    only: Sequence[str] = (),
    repeats: int = 30,
    budget: float = 0.3,
    note: Callable[[str], None] = lambda line: None,
) -> Iterator[list[dict[str, Any]]]:
    """Per op and size the rows of all devices; the first device is the one that others are held
    against. The least median time wins."""
    chosen = [op for op in OPS if not only or any(o in op.name for o in only)]
    for op in chosen:
        for n in sizes:
            rng = np.random.default_rng(n)
            arrays = [rng.standard_normal(s, dtype=np.float32) for s in op.shapes(n)]
            group: list[dict[str, Any]] = []
            want = None
            for device in devices:
                note(f"{op.name} {n} on {device.info.id}")
                row = {"op": op.name, "size": n, "device": device.info.id}
                group.append(row)
                try:
                    times, got = _measure(op, n, device, arrays, repeats, budget)
                except LimitError as error:  # too large for this device; the others continue
                    row["refused"] = str(error)
                    continue
                row |= times
                if want is None:
                    want = got
                else:
                    row |= _parity(got, want, op.kind)
            _judge(group)
            yield group


def _judge(group: list[dict[str, Any]]) -> None:
    """Marks the fastest row of one op and size, without and with transfers."""
    timed = [row for row in group if "refused" not in row]
    for key, mark in (("median_ms", "winner"), ("with_transfers_ms", "winner_moved")):
        best = min(timed, key=lambda r: r[key], default=None)
        for row in group:
            row[mark] = row is best


def run(devices: Sequence[str], sizes: Sequence[int], **options: Any) -> dict[str, Any]:
    """Every op and size on every device; `devices[0]` is the reference. Options as in `rows`."""
    opened = [registry.get(d) for d in devices]
    found = [row for group in rows(opened, sizes, **options) for row in group]
    if not found:
        raise UsageError(f"no op matches; there are {', '.join(op.name for op in OPS)}")
    infos = [d.info for d in opened]
    return {
        "bench": "ops", "peer": "weft", "version": weft.__version__, "sizes": list(sizes),
        "devices": [{"id": i.id, "name": i.name, "software": i.software} for i in infos],
        "peak_rss_mib": peak_rss_mib(), "results": found,
    }  # fmt: skip


HEADER = ("op", "size", "device", "ms", "rate", "", "with transfers, ms", "error", "of tolerance",
          "parity", "winner")  # fmt: skip


def table_rows(result: dict[str, Any]) -> list[list[Any]]:
    """The rows of the printed table under HEADER."""
    labels = _labels(result)
    out: list[list[Any]] = []
    for r in result["results"]:
        label = [r["op"], r["size"], labels[r["device"]]]
        if "refused" in r:
            out.append([*label, *[""] * 6, "too large", ""])
            continue
        unit = "gflops" if "gflops" in r else "gbs"
        if "ok" in r:
            share, verdict = f"{r['of_tolerance']:.2f}", "ok" if r["ok"] else "FAIL"
            parity = [f"{r['max_abs']:.1e}", share, verdict]
        else:
            parity = ["", "", "reference"]
        wins = [w for w, k in (("compute", "winner"), ("with transfers", "winner_moved")) if r[k]]
        out.append([
            *label, f"{r['median_ms']:.3f}", f"{r[unit]:.1f}", RATES[unit],
            f"{r['with_transfers_ms']:.3f}", *parity,
            "yes" if len(wins) == 2 else "".join(wins),
        ])  # fmt: skip
    return out


def _labels(result: dict[str, Any]) -> dict[str, str]:
    return {d["id"]: d["id"] + " (software)" * d["software"] for d in result["devices"]}


def new_figure(width: float = 8.0, height: float = 4.5) -> Any:
    """An empty picture, inches. Raises UsageError when matplotlib is missing."""
    from weft.training.report import new_figure

    return new_figure("the picture", "bench", width, height)


def draw(result: dict[str, Any], path: Path) -> None:
    """A PNG of speed by size, one panel per op and a line per device, both axes logarithmic.
    Raises UsageError when matplotlib is missing."""
    from weft.training.report import save_figure

    names = list(dict.fromkeys(r["op"] for r in result["results"]))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = new_figure(4.2 * columns, 3.4 * lines + 0.9)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, name in zip(panels, names):
        _panel(axes, name, result)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle("Speed by size, float32 (without transfers; higher is faster)")
    save_figure(figure, path)


def _panel(axes: Any, op: str, result: dict[str, Any]) -> None:
    from matplotlib.ticker import LogLocator

    found = [r for r in result["results"] if r["op"] == op and "refused" not in r]
    unit = "gflops" if any("gflops" in r for r in found) else "gbs"
    names = {d["id"]: d["name"] for d in result["devices"]}
    for k, (device, label) in enumerate(_labels(result).items()):
        points = [(r["size"], r[unit]) for r in found if r["device"] == device] or [(1, np.nan)]
        title = f"{label}: {names[device]}"
        axes.plot(*zip(*points), marker="os^Dv"[k % 5], ms=5, lw=1.8, label=title)
    sizes = sorted({r["size"] for r in found})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(xlabel="size n of n x n", ylabel=RATES[unit], title=op)
    axes.grid(alpha=0.3)
