"""Many clients for minutes, each answer held to what it was alone: python scripts/soak.py

Starts `weft serve` with the model in the box (or MODEL, which has to have a chat template) twice.
The first is asked every request by itself, one after the other; then --clients ask the second at
once, for --minutes: whole answers and streams, chats and completions, several choices, stop
strings, seeds, logprobs, schemas and patterns, clients that leave in the middle. Prints a line of
JSON: how many answers, how many of them differed, how memory grew after the first fifth of the
time (medians of the fifths that follow). Exit status 1 where one differed, or memory grew by 1%.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving import Request, ask, chatting_box, connect, events, joined, served, told

SOURCE = Path(random.__file__).read_text().splitlines()
SYSTEM = "\n".join(SOURCE[60:72])  # the prefix that all chats share
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["name", "size"],
    "properties": {
        "name": {"enum": ["red", "green", "blue"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
    },
}  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
SAMPLE_SECONDS = 2.0  # between two looks at the memory


def requests(count: int, seed: int) -> list[Request]:
    """Requests of every kind."""
    draw = random.Random(seed)
    return [_request(draw) for _ in range(count)]


def _request(draw: random.Random) -> Request:
    at = draw.randrange(100, len(SOURCE) - 20)
    text = "\n".join(SOURCE[at : at + draw.choice([1, 2, 5, 12])]) or "def"
    body: dict[str, Any] = {
        "max_tokens": draw.randint(1, 48), "seed": draw.randrange(1 << 60),
        "temperature": draw.choice([0, 0.7, 1, 1.5]), "top_p": draw.choice([1, 0.9]),
        "n": draw.choice([1, 1, 1, 2, 4]),
    }  # fmt: skip
    if draw.random() < 0.3:
        body["stop"] = draw.choice([["\n"], ["def", "):"], ["e"]])
    if draw.random() < 0.2:
        body["logit_bias"] = {str(draw.randrange(2000)): draw.choice([-100, 5])}
    if draw.random() < 0.2:
        body["frequency_penalty"] = 0.5
    if draw.random() < 0.5:
        if draw.random() < 0.3:
            body["logprobs"] = draw.randint(0, 3)
        if draw.random() < 0.2:
            body["guided_regex"] = "[a-z]{2,8}( [a-z]{2,8}){1,4}"
        elif draw.random() < 0.2:
            body["echo"] = True
        return Request("/v1/completions", {**body, "prompt": text})
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    if draw.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": draw.randint(0, 3)}
    if draw.random() < 0.2:
        body["response_format"] = FORM
    return Request("/v1/chat/completions", {**body, "messages": messages})


def alone(url: str, asked: Sequence[Request]) -> list[list[dict[str, Any]]]:
    """The answers to each request when nothing else runs."""
    connection = connect(url)
    made = []
    for request in asked:
        status, answer = ask(connection, request)
        if status != 200:
            raise SystemExit(f"status {status} for {request}: {answer}")
        made.append(told(answer["choices"]))
    return made


@dataclass
class Tally:
    """The results of the clients: answers by kind, and those that differed from the answer of an
    idle server."""

    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[Any] = field(default_factory=list)


def clients(
    url: str, count: int, seconds: float, asked: Sequence[Request], expected: Sequence[Any]
) -> Tally:
    """`count` clients ask at once until the time is over."""
    tally, end = Tally(), time.monotonic() + seconds

    def play(number: int) -> None:
        draw, connection = random.Random(number), connect(url)
        while time.monotonic() < end:
            i = draw.randrange(len(asked))
            kind = draw.choice(["whole", "whole", "stream", "stream", "left"])
            try:
                differs = _differs(connection, kind, asked[i], expected[i], draw)
            except Exception as e:  # a client's failure is a finding too
                connection.close()
                differs = f"{type(e).__name__}: {e}"
            tally.seen[kind] += 1
            if differs is not None:
                tally.wrong.append({"kind": kind, "request": asked[i].body, "found": differs})

    threads = [threading.Thread(target=play, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def _differs(
    connection: Any, kind: str, request: Request, expected: Any, draw: random.Random
) -> Any:
    """The received answer if it differs from the expected one, else None."""
    if kind == "whole":
        status, answer = ask(connection, request)
        found = told(answer["choices"]) if status == 200 else answer
        return None if found == expected else found
    if kind == "stream":
        found = joined(list(events(connection, request)))
        return None if found == expected else found
    found = joined(list(events(connection, request, draw.randint(1, 12))))
    began = all(e["text"].startswith(f["text"]) for e, f in zip(expected, found))
    return None if began else found


@contextmanager
def watched(process: int, samples: list[tuple[float, int]]) -> Iterator[None]:
    """Notes seconds and KiB of memory of a process while the block runs."""
    over, begun = threading.Event(), time.monotonic()

    def look() -> None:
        while not over.wait(SAMPLE_SECONDS):
            status = Path(f"/proc/{process}/status").read_text()
            kib = int(status.split("VmRSS:")[1].split()[0])
            samples.append((time.monotonic() - begun, kib))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def growth(samples: Sequence[tuple[float, int]]) -> tuple[float, list[int]]:
    """By which share memory grew from the second fifth of the time to the last, and the medians of
    all five in KiB."""
    last = max(at for at, _ in samples)
    fifths: list[list[int]] = [[] for _ in range(5)]
    for at, kib in samples:
        fifths[min(int(5 * at / last), 4)].append(kib)
    medians = [int(statistics.median(part)) for part in fifths]
    return medians[4] / medians[1] - 1, medians


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", type=Path, help="default: the model in the box")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=400, help="different ones")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with chatting_box() as box:
        model, asked = given.model or box, requests(given.requests, given.seed)
        with served(model, "--max-batch", "1", "--device", "cpu") as (url, _):
            expected = alone(url, asked)
        samples: list[tuple[float, int]] = []
        with served(model, "--device", "cpu") as (url, process), watched(process, samples):
            tally = clients(url, given.clients, given.minutes * 60, asked, expected)
    grown, medians = growth(samples)
    report: dict[str, Any] = {
        "answers": tally.seen.total(),
        **tally.seen,
        "different": len(tally.wrong),
    }
    report |= {"growth": round(grown, 5), "rss_mib_by_fifths": [kib >> 10 for kib in medians]}
    for wrong in tally.wrong[:5]:
        print(json.dumps(wrong)[:2000], file=sys.stderr)
    print(json.dumps(report))
    return 1 if tally.wrong or grown >= 0.01 else 0


if __name__ == "__main__":
    sys.exit(main())
