"""`weft bench nets`: nets with random weights, or an ONNX file, compared with the roofline and, on
request, with PyTorch and ONNX Runtime. Each side is a process of its own, in turn by rounds."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weft
from weft.bench.net_sides import SIDES, Wanted
from weft.bench.roofline import Roofline
from weft.bench.timing import summary
from weft.core.errors import DeviceError, UsageError

BATCHES = {
    "resnet50": (1, 8), "mobilenet_v3": (1,), "yolo": (1,), "vit_b16": (1,), "bert_base": (1,),
}  # fmt: skip
PEERS = tuple(s for s in SIDES if s != "weft")
ROUNDS = 5
REST = 0.05  # seconds between turns: threads of the last side spin no longer


@dataclass(frozen=True)
class NetsBenchOptions:
    """The options of the measurement. `peers` (of PEERS) run as well as weft. Each side makes
    `repeats` calls in ROUNDS turns, or as many as fit into `budget` seconds. `model` is a further
    ONNX file to measure."""

    device: str
    threads: int
    peers: Sequence[str] = ()
    repeats: int = 20
    budget: float = 5.0
    model: str = ""


class _Side:
    """A process that runs one side; see net_sides."""

    def __init__(self, want: Wanted) -> None:
        threads = str(want.threads)
        env = {**os.environ, "OMP_NUM_THREADS": threads, "WEFT_NUM_THREADS": threads}
        self.name = want.side
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weft.bench.net_sides", json.dumps(want._asdict())], env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.times: list[float] = []
        self.busy: list[float] = []  # seconds of all threads together
        self.facts = self._line()

    def _line(self) -> Any:
        assert self._process.stdout and self._process.stderr
        line = self._process.stdout.readline()
        if not line:
            said = self._process.stderr.read().strip().splitlines() or ["it ended"]
            raise DeviceError(f"{self.name}: {said[-1][:300]}")
        return json.loads(line)

    def turn(self, calls: int) -> None:
        """Makes `calls` timed calls after an untimed one, which brings its weights back into the
        caches."""
        assert self._process.stdin
        print(1 + calls, file=self._process.stdin, flush=True)
        for seconds, busy in self._line()[1:]:
            self.times.append(seconds)
            self.busy.append(busy)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def cases(model: str = "") -> dict[str, tuple[str, int]]:
    """Name of a case -> net and batch; an ONNX file is a case of its own."""
    found = {
        net if n == 1 else f"{net}_b{n}": (net, n) for net, many in BATCHES.items() for n in many
    }
    return found | ({Path(model).stem: (Path(model).stem, 1)} if model else {})


def run_case(net: str, batch: int, roofline: Roofline, o: NetsBenchOptions) -> dict[str, Any]:
    """Times a net on every side.

    Returns, for weft: the keys of `summary`; "cpu_ms" and "cpu_min_ms" of all threads together;
    "gflops" of its products; "roofline", their share of the peak; and "launches". "peers" has the
    same for each peer, and the ratios of its figures to weft's: "times_ratio", "least_ratio" (of
    least times) and "cpu_ratio" (of least processor time).
    """
    path = o.model if net not in BATCHES else ""
    wanted = ["weft", *(p for p in o.peers if not path or p == "ort")]
    sides: list[_Side] = []
    try:
        for name in wanted:
            sides.append(_Side(Wanted(name, net, batch, o.threads, o.device, path)))
        _take_turns(sides, o)
    finally:
        for one in sides:
            one.end()
    ours, *others = sides
    flops = ours.facts["flops"]
    result = _figures(ours, flops, roofline)
    result["gflops"] = round(flops / (result["median_ms"] * 1e6), 2)
    result["launches"] = ours.facts["launches"]
    for side in others:
        found = _figures(side, flops, roofline)
        for key, of in (("times", "median_ms"), ("least", "min_ms"), ("cpu", "cpu_min_ms")):
            found[f"{key}_ratio"] = round(found[of] / result[of], 3)
        result.setdefault("peers", {})[side.name] = {**found, "version": side.facts["version"]}
    return result


def _figures(side: _Side, flops: float, roofline: Roofline) -> dict[str, Any]:
    found = summary(side.times)
    found["cpu_ms"] = round(statistics.median(side.busy) * 1e3, 4)
    found["cpu_min_ms"] = round(min(side.busy) * 1e3, 4)
    found["roofline"] = round(roofline.share(flops, 0.0, found["median_ms"] / 1e3), 3)
    return found | {k: round(side.facts[k], 2) for k in ("first_s", "first_cpu_s")}


def _take_turns(sides: Sequence[_Side], o: NetsBenchOptions) -> None:
    each = max(1, o.repeats // ROUNDS)
    end = time.perf_counter() + o.budget * len(sides)
    for number in range(ROUNDS):
        if number and time.perf_counter() > end:
            break
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            time.sleep(REST)
            side.turn(each)


def run(
    o: NetsBenchOptions, roofline: Roofline, only: Sequence[str] = (),
    progress: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Every case whose name contains one of `only` (all when empty). Raises DeviceError where a
    side ends, with its last line."""
    unknown = [p for p in o.peers if p not in PEERS]
    if unknown:
        raise UsageError(f"--peers takes {', '.join(PEERS)}; not {unknown[0]!r}")
    if o.model and not Path(o.model).is_file():
        raise UsageError(f"--model {o.model}: there is no such file")
    results = {}
    for name, (net, batch) in cases(o.model).items():
        if only and not any(x in name for x in only):
            continue
        results[name] = run_case(net, batch, roofline, o)
        if progress:
            progress(name, results[name])
    return {
        "bench": "nets", "peer": "weft", "version": weft.__version__, "device": o.device,
        "threads": o.threads, "peak_gflops": round(roofline.gflops, 1),
        "read_gbs": round(roofline.read_gbs, 1), "results": results,
    }  # fmt: skip
