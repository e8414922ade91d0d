"""`weft bench serve`: servers that speak OpenAI's protocol under the same load, in turn.

Each case is measured once a round on every server; figures are medians over the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import weft
from weft.bench.load import FIRST_ID, RequestLoad, body, decoding, figures, play
from weft.bench.load_client import RequestTrace, complete, place_of
from weft.bench.load_target import Target, started
from weft.core.errors import DeviceError, UsageError

Figures = dict[str, Any]
_WARM = RequestLoad(2, 0, 8, 4, 0.0)
_SHORT = 16  # tokens of a prompt whose reading time is negligible
_OPENED = 100  # connections at a time
_OPEN_SECONDS = 20.0


@dataclass(frozen=True)
class ServeBenchOptions:
    """The options of the measurement. `commands` and `urls` are servers by name, to be started or
    already running. `cases` are some of CASES; `load` is the open loop's load; `at_once` the
    numbers of concurrent answers; `turn` the tokens that a second turn shares with the first;
    `idle` the idle connections."""

    commands: Mapping[str, str] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)
    cases: Sequence[str] = ()
    load: RequestLoad = field(default_factory=RequestLoad)
    at_once: Sequence[int] = (1, 8, 32)
    turn: int = 2000
    idle: int = 1000
    rounds: int = 3
    key: str = ""


def run(o: ServeBenchOptions, note: Callable[[str], None]) -> Figures:
    """Measures. Raises DeviceError where a server does not start or answer, UsageError for a case
    that is none."""
    wrong = [c for c in o.cases if c not in CASES]
    if wrong or not (o.commands or o.urls):
        raise UsageError(f"no case is called {wrong}; there are {', '.join(CASES)}")
    cases = [c for c in CASES if c in (o.cases or CASES)]
    found: dict[str, dict[str, list[Figures]]] = {}

    def take(case: str, name: str, made: Figures) -> None:
        found.setdefault(case, {}).setdefault(name, []).append(made)
        note(f"{case}, {name}: {made}")

    if "cold" in cases:
        for number in range(o.rounds):
            for name, command in o.commands.items():
                take("cold", name, _cold(o, name, command, number))
    with _all(o) as targets:
        for target in targets:
            _answered(asyncio.run(play(target.url, replace(_WARM, vocab=o.load.vocab), o.key)))
        for number in range(o.rounds):
            for case in cases:
                for target in targets if case != "cold" else ():
                    for name, made in CASES[case](o, target, number).items():
                        take(name, target.name, made)
        peaks = {t.name: t.rss_mib(peak=True) for t in targets}
    return _result(o, found, {name: mib for name, mib in peaks.items() if mib is not None})


@contextlib.contextmanager
def _all(o: ServeBenchOptions) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(started(n, command)) for n, command in o.commands.items()]
        yield [*made, *(Target(name, url) for name, url in o.urls.items())]


def _answered(traces: Sequence[RequestTrace]) -> Sequence[RequestTrace]:
    """Raises DeviceError where a request of a closed case was not answered."""
    for trace in traces:
        if trace.error is not None:
            raise DeviceError(f"a request was not answered: {trace.error}")
    return traces


# -- cases, each by name what one round on one server gives ---------------------------------------


def _load(o: ServeBenchOptions, target: Target, number: int) -> dict[str, Figures]:
    traces = asyncio.run(play(target.url, replace(o.load, seed=o.load.seed + number), o.key))
    return {"load": figures(traces)}


def _at_once(o: ServeBenchOptions, target: Target, number: int) -> dict[str, Figures]:
    made = {}
    for count in o.at_once:
        load = replace(
            o.load,
            requests=count,
            rate=0,
            prompt=_SHORT,
            shared=0.0,
            seed=1000 * (number + 1) + count,
        )
        traces = _answered(asyncio.run(play(target.url, load, o.key)))
        rate = decoding(traces)
        made[f"at_once_{count}"] = {
            "tok_s": round(rate, 2),
            "step_ms": round(1e3 * count / rate, 3),
        }
    return made


def _turn(o: ServeBenchOptions, target: Target, number: int) -> dict[str, Figures]:
    """Two turns: the second asks for the first one's tokens and 32 more."""
    load = replace(o.load, requests=1, prompt=o.turn + 32, seed=2000 + number)
    ids = load.prompts()[0]

    async def both() -> list[RequestTrace]:
        made = []
        for asked in (ids[: o.turn], ids):
            request = body(asked, 4, o.load.temperature, 0)
            made.append(await complete(target.url, request, time.perf_counter(), o.key))
        return made

    first, second = _answered(asyncio.run(both()))
    return {"turn": {
        "first_ms": round(first.first * 1e3, 3), "second_ms": round(second.first * 1e3, 3),
        "share": round(second.first / first.first, 4), "cached_tokens": second.cached,
    }}  # fmt: skip


def _idle(o: ServeBenchOptions, target: Target, number: int) -> dict[str, Figures]:
    """Memory that `idle` connections add, each of which has asked once and stays open. In the
    first round only: what a process has once taken it may keep."""
    before = target.rss_mib()
    if number or before is None:
        return {}

    async def held() -> tuple[int, float | None]:
        writers: list[asyncio.StreamWriter] = []
        try:
            for begin in range(0, o.idle, _OPENED):
                some = range(begin, min(begin + _OPENED, o.idle))
                made = await asyncio.gather(*(_opened(target.url, o.key) for _ in some))
                writers += [writer for writer in made if writer is not None]
            return len(writers), target.rss_mib()
        finally:
            for writer in writers:
                writer.close()

    count, after = asyncio.run(held())
    return {"idle": {"connections": count, "mib": round((after or 0) - before, 2)}}


async def _opened(url: str, key: str) -> asyncio.StreamWriter | None:
    """A connection on which /health was answered, which stays open; None where it was not."""
    host, port = place_of(url)
    reader, writer = await asyncio.open_connection(host, port)
    bearer = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\n{bearer}\r\n".encode())
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            status = await reader.readuntil(b"\r\n")
    except (TimeoutError, EOFError, OSError):
        status = b"HTTP/1.1 000"
    if status.split()[1] == b"200":
        return writer
    writer.close()
    return None


def _cold(o: ServeBenchOptions, name: str, command: str, number: int) -> Figures:
    """A server from its start to the first answer of one token."""
    begun = time.perf_counter()
    ids = list(range(FIRST_ID, min(o.load.vocab, FIRST_ID + 32)))
    with started(name, command) as target:
        asked = body(ids, 1, o.load.temperature, number)
        _answered([asyncio.run(complete(target.url, asked, begun, o.key))])
        whole = time.perf_counter() - begun
        return {
            "ready_s": target.start_s, "answer_s": round(whole, 3),
            "rss_mib": target.rss_mib(peak=True),
        }  # fmt: skip


CASES: dict[str, Callable[[ServeBenchOptions, Target, int], dict[str, Figures]]] = {
    "cold": lambda o, target, number: {}, "load": _load, "at_once": _at_once, "turn": _turn,
    "idle": _idle,
}  # fmt: skip


# -- results --------------------------------------------------------------------------------------


def _result(
    o: ServeBenchOptions,
    found: Mapping[str, Mapping[str, list[Figures]]],
    peaks: Mapping[str, float],
) -> Figures:
    return {
        "bench": "serve", "peer": "weft", "version": weft.__version__, "load": asdict(o.load),
        "rounds": o.rounds, "peak_rss_mib": dict(peaks),
        "results": {
            case: {name: middle(rounds) for name, rounds in by.items()}
            for case, by in found.items()
        },
    }  # fmt: skip


def middle(rounds: Sequence[Figures]) -> Figures:
    """Returns the median of each figure, and its least and most under `range`. For texts it returns
    the last one."""
    made: Figures = {}
    for key in dict.fromkeys(k for r in rounds for k in r):
        values = [r[key] for r in rounds if key in r]
        if isinstance(values[0], str):
            made[key] = values[-1]
            continue
        made[key] = round(statistics.median(values), 4)
        if len(values) > 1 and min(values) != max(values):
            made.setdefault("range", {})[key] = [min(values), max(values)]
    return made
