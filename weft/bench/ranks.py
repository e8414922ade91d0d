"""`weft bench ranks`: training steps by one process and by several, on this machine: time, what the
ranks waited and sent, memory of each. Every case has to end with the same bits of the loss."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import weft
from weft.backends import registry
from weft.bench.timing import peak_rss_mib
from weft.core.errors import DeviceError
from weft.importers.hf_config import Fields
from weft.ranks import join
from weft.ranks.join import mpiexec
from weft.training.model import TrainableDecoder, config_of, fresh_weights
from weft.training.prepare import new_config
from weft.training.settings import TrainingSettings, settings_from
from weft.training.shard import Shard
from weft.training.work import TrainingWork

WARM = 2  # steps before the clock


@dataclass(frozen=True)
class RanksBenchOptions:
    """The options of the measurement: a llama of random weights, `accumulate` batches per step;
    each case runs `rounds` times, in turn."""

    ranks: int = 2
    steps: int = 6
    rounds: int = 3
    layers: int = 4
    width: int = 256
    vocab: int = 4096
    context: int = 128
    batch: int = 4
    accumulate: int = 4


def run(o: RanksBenchOptions, note: Callable[[str], None]) -> dict[str, Any]:
    """One process on 1 thread and on `ranks` threads, then `ranks` processes of 1 thread each.
    Raises DeviceError where a process fails or ends with another loss, UsageError without MPI."""
    cases = {
        "1 process, 1 thread": (1, 1),
        f"1 process, {o.ranks} threads": (1, o.ranks),
        f"{o.ranks} ranks, 1 thread each": (o.ranks, 1),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for i in range(o.rounds):
        for name, (count, threads) in cases.items():
            found[name].append(case(measure, asdict(o), count, threads))
            note(f"round {i + 1} of {o.rounds}: {name}: {found[name][-1]['step_ms']:.1f} ms")
    losses = {r["loss"] for each in found.values() for r in each}
    if len(losses) > 1:
        raise DeviceError(f"the cases end with different losses, {sorted(losses)}: a bug in weft")
    results = {name: middle(each) for name, each in found.items()}
    tokens = o.accumulate * o.batch * o.context
    for r in results.values():
        r["tok_s"] = round(tokens / r["step_ms"] * 1e3, 1)
    first, _, last = results.values()
    return {
        "bench": "ranks", "peer": "weft", "version": weft.__version__, **asdict(o),
        "params_m": first.pop("params_m"), "loss": losses.pop(),
        "speedup": round(first["step_ms"] / last["step_ms"], 3), "results": results,
    }  # fmt: skip


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run whose step took the median, with the least and the most."""
    ordered = sorted(runs, key=lambda r: r["step_ms"])
    ends = {"min_ms": ordered[0]["step_ms"], "max_ms": ordered[-1]["step_ms"]}
    found = {**ordered[len(ordered) // 2], **ends}
    return {k: v for k, v in found.items() if k != "loss"}


def case(measure: Callable[[str], None], options: Any, count: int, threads: int) -> dict[str, Any]:
    """Returns the JSON that `measure`, a function of a module, prints as its last line for the
    options as JSON, run by `count` ranks of `threads` threads each. Raises DeviceError if they
    fail."""
    name = measure.__name__
    code = f"import sys; from {measure.__module__} import {name}; {name}(sys.argv[1])"
    line = [sys.executable, "-c", code, json.dumps(options)]
    if count > 1:
        line = [str(mpiexec()), "-n", str(count), *line]
    env = {**os.environ, "WEFT_NUM_THREADS": str(threads)}
    made = subprocess.run(line, env=env, capture_output=True, text=True)
    if made.returncode:
        raise DeviceError(f"{count} ranks failed: {made.stderr.strip()[-300:]}")
    result: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return result


def measure(options: str) -> None:
    """In a process of its own, a rank or alone: prints the figures as JSON (rank 0)."""
    o, ranks = RanksBenchOptions(**json.loads(options)), join()
    with ranks.leaving():
        ranks.torn = True
        ranks.watch()
        settings, model = _model(o)
        device = registry.get("cpu")
        if ranks.size == 1:
            work: TrainingWork | Shard = TrainingWork(model, settings, device)
        else:
            work = Shard(model, settings, device, ranks)
        rng = np.random.default_rng(0)
        shape = (o.accumulate, o.batch, o.context + 1)
        seconds, waited, moved, loss = [], [], [], 0.0
        for number in range(WARM + o.steps):
            both = rng.integers(0, o.vocab, shape).astype(np.int32)
            ids, targets = both[..., :-1].copy(), both[..., 1:].copy()
            ranks.barrier()
            before = time.perf_counter(), ranks.seconds, ranks.moved
            loss = work.step(ids, targets, np.array([0, number], np.uint32))["loss"]
            seconds.append(time.perf_counter() - before[0])
            waited.append(ranks.seconds - before[1])
            moved.append(ranks.moved - before[2])
        state = sum(v.nbytes for v in work.opt.state_dict().values())
        mine = np.array([
            statistics.median(waited[WARM:]), moved[-1], peak_rss_mib(), state
        ], np.float64)  # fmt: skip
        told = ranks.gather(mine, [len(mine)] * ranks.size).reshape(ranks.size, -1)
        ranks.finish()
    if ranks.rank:
        return
    step = statistics.median(seconds[WARM:])
    print(json.dumps({
        "step_ms": round(step * 1e3, 3), "loss": loss,
        "waiting_share": [round(float(w) / step, 4) for w in told[:, 0]],
        "sent_mb": [round(float(m) / 1e6, 3) for m in told[:, 1]],
        "peak_rss_mib": [round(float(m), 1) for m in told[:, 2]],
        "optimizer_mb": [round(float(m) / 1e6, 3) for m in told[:, 3]],
        "params_m": round(sum(t.size for _, t in model.named_parameters()) / 1e6, 3),
    }))  # fmt: skip


def _model(o: RanksBenchOptions) -> tuple[TrainingSettings, TrainableDecoder]:
    """A new model of the sizes asked for."""
    settings = settings_from({
        "model": {"hidden": o.width, "layers": o.layers, "heads": max(o.width // 64, 1)},
        "data": {"paths": ["none"]},
        "train": {
            "steps": 1000, "batch": o.batch, "accumulate": o.accumulate, "context": o.context,
            "device": "cpu",
        },
    }, "weft bench ranks")  # fmt: skip
    raw = new_config(settings.model, o.vocab, o.context, None)
    config = config_of(Fields(raw, "weft bench ranks"))
    return settings, TrainableDecoder(config, {**fresh_weights(config, 0)}, o.context)
