"""`weft bench divided`: a prompt and tokens of one sequence by one process and by ranks that divide
a model, on this machine: time, what rank 0 waited and sent, its memory. Every case has to write the
same."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import weft
from weft.bench.ranks import case, middle
from weft.bench.timing import peak_rss_mib
from weft.core.errors import DeviceError
from weft.machines.load import Way, follow, leading
from weft.models.weights.random_weights import random_folder
from weft.ranks import join

WARM = 4  # tokens before the clock of a token starts


@dataclass(frozen=True)
class DividedBenchOptions:
    """The options of the measurement: a llama of random weights; each case runs `rounds` times, in
    turn."""

    ranks: int = 2
    tokens: int = 32
    prompt: int = 384
    rounds: int = 3
    layers: int = 8
    width: int = 1024
    dtype: str = "bfloat16"


def run(o: DividedBenchOptions, note: Callable[[str], None]) -> dict[str, Any]:
    """One process on 1 thread and on `ranks` threads, then `ranks` processes of 1 thread each, by
    layers and by columns. Raises DeviceError where a process fails or writes something else,
    UsageError without MPI."""
    by = [(False, [o.layers * (r + 1) // o.ranks - o.layers * r // o.ranks
                   for r in range(o.ranks)]), (True, [])]  # fmt: skip
    cases: dict[str, tuple[int, int, Any]] = {
        "1 process, 1 thread": (1, 1, by[0]),
        f"1 process, {o.ranks} threads": (1, o.ranks, by[0]),
        f"{o.ranks} ranks by layers": (o.ranks, 1, by[0]),
        f"{o.ranks} ranks by columns": (o.ranks, 1, by[1]),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        random_folder(folder, _config(o))
        for i in range(o.rounds):
            for name, (count, threads, way) in cases.items():
                given = {"folder": folder, "tokens": o.tokens, "prompt": o.prompt, "way": way}
                found[name].append(case(measure, given, count, threads))
                note(f"round {i + 1} of {o.rounds}: {name}: {found[name][-1]['step_ms']:.2f} ms")
    written = {tuple(r.pop("ids")) for each in found.values() for r in each}
    if len(written) > 1:
        raise DeviceError("the cases write different tokens: a bug in weft")
    results = {name: middle(each) for name, each in found.items()}
    return {
        "bench": "divided", "peer": "weft", "version": weft.__version__, **asdict(o),
        "results": results,
    }  # fmt: skip


def _config(o: DividedBenchOptions) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": o.width, "intermediate_size": 4 * o.width,
        "num_hidden_layers": o.layers, "num_attention_heads": o.width // 32,
        "num_key_value_heads": o.width // 64, "vocab_size": 32_000, "rms_norm_eps": 1e-5,
        "max_position_embeddings": o.prompt + WARM + o.tokens + 1, "tie_word_embeddings": True,
        "dtype": o.dtype,
    }  # fmt: skip


def measure(options: str) -> None:
    """In a process of its own, a rank or alone: prints the figures as JSON (rank 0)."""
    o, ranks = json.loads(options), join()
    with ranks.leaving():
        if ranks.rank:
            sys.exit(follow(ranks, lambda: str(o["folder"]), "cpu"))
        with leading(ranks, Way(*o["way"])) if ranks.size > 1 else nullcontext(weft.load) as load:
            prompt, tokens = list(range(1, o["prompt"] + 1)), WARM + o["tokens"]
            model = load(o["folder"], device="cpu", context=len(prompt) + tokens + 1)
            model.generate([len(prompt) + 1, *prompt[1:]], max_new_tokens=1)  # compiles
            began = time.perf_counter()
            pieces = model.generate(prompt, max_new_tokens=tokens, stream=True)
            first, seconds, waited, sent = 0.0, 0.0, 0.0, 0
            for i, _ in enumerate(pieces):
                if i == 0:
                    first = time.perf_counter() - began
                if i == WARM - 1:
                    seconds, waited, sent = time.perf_counter(), ranks.seconds, ranks.moved
            seconds = time.perf_counter() - seconds
            waited, sent = ranks.seconds - waited, ranks.moved - sent
    each = o["tokens"]
    print(json.dumps({
        "prompt_ms": round(first * 1e3, 1), "step_ms": round(seconds / each * 1e3, 3),
        "tok_s": round(each / seconds, 2),
        "waiting_share": round(waited / seconds, 4), "sent_kb": round(sent / each / 1e3, 2),
        "peak_rss_mib": round(peak_rss_mib(), 1), "ids": pieces.results[0].ids,
    }))  # fmt: skip
