"""`weft bench model`: prefill, decode at an empty context, decode after a prompt, by the peers'
names and rules (ppN, tgN, tgN@dN; tokens per second, medians)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.bench import profile as steps
from weft.bench.roofline import Roofline
from weft.bench.timing import peak_rss_mib, rates
from weft.core.dtypes import bfloat16
from weft.core.errors import UsageError
from weft.models.arch import inputs
from weft.models.arch.matrices import whole
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.model import KINDS, Decoder
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.placement import ORACLE


@dataclass(frozen=True)
class ModelBenchOptions:
    """The options of the measurement. `prompt` and `gen` are token counts. The default is 512 and
    128, or three quarters and one quarter of the model's positions if it has fewer."""

    path: str
    device: str = "cpu"
    dtype: str | None = None
    act_dtype: str | None = None
    prompt: int | None = None
    gen: int | None = None
    reps: int = 5
    cache: str | None = None
    quant: str | None = None


def _sizes(o: ModelBenchOptions) -> tuple[int, int]:
    """Tokens of the prompt and of what is generated."""
    if o.prompt is not None and o.gen is not None:
        return o.prompt, o.gen
    model = weft.load(o.path, device=ORACLE)  # only maps the file
    room = model.config.max_positions
    gen = o.gen or min(128, max(1, room // 4))
    return o.prompt or min(512, max(1, room - gen)), gen


def _load(o: ModelBenchOptions, context: int) -> Decoder:
    model = weft.load(
        o.path, device=o.device, dtype=o.dtype, context=context, act_dtype=o.act_dtype,
        cache=o.cache, quant=o.quant,
    )  # fmt: skip
    if not isinstance(model, Decoder):
        raise UsageError(f"{o.path} is an encoder; bench model measures decoders")
    return model


def _prompt(model: Decoder, n: int) -> list[int]:
    rng = np.random.default_rng(0)
    return [int(i) for i in rng.integers(0, min(model.config.vocab, 32000), n)]


def _decode(model: Decoder, token: int, start: int, count: int) -> float:
    """Seconds of `count` greedy steps from position `start`."""
    runner = model.runner()
    begin = time.perf_counter()
    for i in range(count):
        token = int(runner.rows([token], [0], [start + i])[0].argmax())
    return time.perf_counter() - begin


def run(
    o: ModelBenchOptions, measure: Callable[[], Roofline], note: Callable[[str], None]
) -> dict[str, Any]:
    """Times the model, then measures the roofline (last: its buffers are not the model's memory).
    `roofline` of a decode figure: bytes that one step must read (weights once, the cache up to its
    middle position) over the measured bandwidth."""
    prompt, gen = _sizes(o)
    start = time.perf_counter()
    model = _load(o, prompt + gen)
    loaded = time.perf_counter()
    runner, ids = model.runner(), _prompt(model, prompt)
    runner.prefill(0, ids)
    _decode(model, ids[0], 0, 1)
    first = time.perf_counter() - loaded
    times: dict[str, list[float]] = {}
    for rep in range(o.reps):
        begin = time.perf_counter()
        runner.prefill(0, ids)
        times.setdefault(f"pp{prompt}", []).append(time.perf_counter() - begin)
        times.setdefault(f"tg{gen}@d{prompt}", []).append(_decode(model, 1, prompt, gen))
        times.setdefault(f"tg{gen}", []).append(_decode(model, 1, 0, gen))
        note(f"repeat {rep + 1} of {o.reps}")
    flops, stream, per_position = work(model)
    peak, roof = peak_rss_mib(), measure()
    results = {}
    for name, seconds in times.items():
        tokens = prompt if name.startswith("pp") else gen
        results[name] = rates([tokens / s for s in seconds])
        each = float(np.median(seconds))
        if name.startswith("pp"):
            narrow = model.config.act_dtype is bfloat16
            share = roof.share(flops * prompt, stream, each, tiles=narrow)
        else:
            middle = gen / 2 + (prompt if "@" in name else 0)
            share = roof.share(0, (stream + middle * per_position) * gen, each)
        results[name]["roofline"] = round(share, 3)
    return {
        "bench": "decode", "peer": "weft", "version": weft.__version__, "model": o.path,
        "device": model.device.info.id if model.device else "oracle",
        "precision": model.precision, "cache": model.config.kv_dtype.name,
        "load_s": round(loaded - start, 3),
        "first_pass_s": round(first, 3), "peak_gflops": round(roof.gflops, 1),
        "peak_tile_gflops": round(roof.tile_gflops, 1),
        "read_gbs": round(roof.read_gbs, 1), "peak_rss_mib": peak, "results": results,
    }  # fmt: skip


def work(model: Decoder) -> tuple[float, float, float]:
    """(matmul FLOPs per prompt token, bytes a decode step reads of weights, cache bytes it reads
    per position). The embedding counts only where it is also the head, experts as far as a token
    uses them."""
    c = model.config
    head = "embed" if c.tied else "head"
    layout = decoder_layout(c).weights
    body = stream = 0.0
    for role, w in whole(c.forms, model.weights.outlines).items():
        kind = layout[role].kind if role in layout else "matrix"
        looked_up = kind in ("embed", "table") and role != head
        if len(w.shape) < 2 or looked_up:
            continue
        used = c.experts_used / c.experts if kind == "experts" else 1.0
        stream += used * w.nbytes
        body += 0.0 if role == head else used * math.prod(w.shape)
    return 2.0 * body, stream, float(inputs.position_bytes(c))


def profile(
    o: ModelBenchOptions, roof: Roofline, trace: Path | None
) -> dict[str, list[dict[str, Any]]]:
    """Times each kernel of the prefill and decode Programs; writes a Chrome trace if asked to."""
    prompt, gen = _sizes(o)
    model = _load(o, prompt + gen)
    runner, ids = model.runner(), _prompt(model, prompt)
    assert isinstance(runner, CompiledRunner)
    runner.prefill(0, ids)
    _decode(model, 1, prompt, 1)
    found = {}
    for kind in KINDS:
        session, n = runner.session(kind), min(prompt, runner.room(kind))
        scalars = [n] * len(session.program.scalars)
        found[kind] = steps.profile(session, scalars)
    if trace is not None:
        steps.write_trace(trace, found)
    return {kind: steps.totals(times, roof) for kind, times in found.items()}


def profile_rows(profiles: dict[str, list[dict[str, Any]]]) -> list[list[Any]]:
    """The rows of the printed table."""
    return [row for kind, rows in profiles.items() for row in steps.rows(rows, f"{kind}: ")]
