"""`weft bench serve`: loads that repeat, figures that add up, servers that start or say why not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

from weft.bench import serve as bench_serve
from weft.bench.load import FIRST_ID, RequestLoad, body, decoding, figures, percentiles, play
from weft.bench.load_client import RequestTrace, complete, place_of
from weft.bench.load_target import started, well
from weft.cli.bench import bench
from weft.cli.bench_serve import command_of as served
from weft.core.errors import DeviceError, UsageError
from weft.hub.box import box_folder


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.floats(0.1, 100))
def test_a_load_repeats(seed: int, requests: int, rate: float) -> None:
    load = RequestLoad(requests, rate, prompt=10, shared=0.4, vocab=50, seed=seed)
    again, other = load.arrivals(), RequestLoad(requests, rate, seed=seed + 1).arrivals()
    assert np.array_equal(load.arrivals(), again) and again[0] == 0
    assert np.all(np.diff(again) >= 0) and (requests == 1 or not np.array_equal(again, other))
    prompts = load.prompts()
    assert prompts == load.prompts() and [len(p) for p in prompts] == [10] * requests
    assert {tuple(p[:4]) for p in prompts} == {tuple(prompts[0][:4])}
    assert all(FIRST_ID <= i < 50 for p in prompts for i in p)
    assert load.bodies()[0]["prompt"] == prompts[0]


def test_arrivals_are_a_poisson_process() -> None:
    gaps = np.diff(RequestLoad(20_000, rate=4.0).arrivals())
    assert abs(gaps.mean() - 0.25) < 0.01 and abs(gaps.std() - 0.25) < 0.01
    assert RequestLoad(5, rate=0).arrivals().tolist() == [0.0] * 5


@pytest.mark.parametrize("wrong", [{"requests": 0}, {"vocab": 3}, {"shared": 1.5}])
def test_loads_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected 1 or more"):
        RequestLoad(**wrong)


def test_percentiles() -> None:
    assert percentiles("first", [i / 1000 for i in range(101)]) == {
        "first_p50_ms": 50.0,
        "first_p99_ms": 99.0,
    }
    assert percentiles("next", []) == {}


def test_figures() -> None:
    one = RequestTrace(1.0, [1.5, 1.6, 1.9], prompt=4, cached=2, new=3)
    two = RequestTrace(2.0, [2.1, 3.0], prompt=4, new=4)
    found = figures([one, RequestTrace(0.0, error="refused"), two])
    assert found == {
        "requests": 3, "errors": 1, "error": "refused", "tok_s": 3.5, "requests_s": 1.0,
        "first_p50_ms": 300.0, "first_p99_ms": 496.0, "next_p50_ms": 300.0, "next_p99_ms": 888.0,
        "prompt_tokens": 8, "cached_tokens": 2, "new_tokens": 7,
    }  # fmt: skip
    assert figures([RequestTrace(0.0, error="refused")]) == {
        "requests": 1,
        "errors": 1,
        "error": "refused",
    }


def test_decoding_counts_what_came_while_all_were_written() -> None:
    one = RequestTrace(0.0, [1.0, 2.0, 3.0, 4.0], new=4)
    two = RequestTrace(0.0, [2.0, 3.0, 5.0], new=6)  # two tokens an event
    assert decoding([one, two]) == (2 + 2) / 2
    with pytest.raises(UsageError, match="never ran at once"):
        decoding([one, RequestTrace(0.0, [4.0, 5.0], new=2)])


def test_the_middle_of_rounds() -> None:
    rounds = [{"a": 1, "b": 2.0}, {"a": 5, "b": 2.0, "error": "x"}, {"a": 3, "b": 2.0}]
    assert bench_serve.middle(rounds) == {
        "a": 3, "range": {"a": [1, 5]}, "b": 2.0, "error": "x"
    }  # fmt: skip


@pytest.mark.parametrize("url", ["", "localhost:80", "https://a:1", "http://", "http://a:b"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="expected http://HOST:PORT"):
        place_of(url)


@contextlib.asynccontextmanager
async def answering(parts: Sequence[bytes], status: int = 200) -> AsyncIterator[tuple[str, list]]:
    """The address of a server that answers each request with `parts` as chunks, and what it was
    sent."""
    seen: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        seen.append((head, json.loads(await reader.readexactly(length))))
        writer.write(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
        for part in parts:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


EVENTS = [
    b'data: {"choices": [{"text": "a"}]}\n\n',
    b': a ping\n\ndata: {"choices": [{"text": "b"}]}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, '
    b'"prompt_tokens_details": {"cached_tokens": 4}}}\n\n',
    b"data: [DONE]\n\n",
]


def test_a_streamed_answer() -> None:
    async def ask() -> tuple[RequestTrace, list[Any]]:
        async with answering(EVENTS) as (url, seen):
            return await complete(url, body([5, 6], 3, 0.5, 7), 0.0, "the key"), seen

    trace, seen = asyncio.run(ask())
    assert trace.error is None and len(trace.times) == 2
    assert (trace.prompt, trace.cached, trace.new) == (5, 4, 3)
    assert b"Authorization: Bearer the key\r\n" in seen[0][0]
    assert seen[0][1]["prompt"] == [5, 6] and seen[0][1]["stream"] is True


@pytest.mark.parametrize(
    ("parts", "status", "said"),
    [
        (EVENTS[:2], 200, "broke off after 2 events"),
        ([b'data: {"error": {"message": "no"}}\n\n'], 200, "no"),
        ([b'{"error": "busy"}'], 429, "status 429.*busy"),
        ([b"data: nonsense\n\n"], 200, "JSONDecodeError"),
    ],
)
def test_answers_that_are_none(parts: list[bytes], status: int, said: str) -> None:
    async def ask() -> list[RequestTrace]:
        async with answering(parts, status) as (url, _):
            return await play(url, RequestLoad(2, rate=0, prompt=1, answer=1))

    traces = asyncio.run(ask())
    assert len(traces) == 2
    for trace in traces:
        assert trace.error is not None
        with pytest.raises(DeviceError, match=said):
            bench_serve._answered([trace])


def test_nobody_listens() -> None:
    trace = asyncio.run(complete("http://127.0.0.1:9", {}, 0.0))
    assert trace.error is not None and not well("http://127.0.0.1:9")


def test_a_server_that_ends_is_told() -> None:
    command = f"{sys.executable} -c \"import sys; sys.exit('bad luck')\""
    with (
        pytest.raises(DeviceError, match="luckless ended with 1: bad luck"),
        started("luckless", command),
    ):
        pass
    with (
        pytest.raises(DeviceError, match="cannot start '/no/such/file'"),
        started("none", "/no/such/file {port}"),
    ):
        pass


def test_bench_serve(tmp_path: Path) -> None:
    given = [
        "serve", str(box_folder()), "--repeats", "1", "--requests", "3", "--rate", "50",
        "--prompt-tokens", "24", "--max-new-tokens", "12", "--at-once", "1", "--turn-tokens", "100",
        "--idle", "20", "--json",
    ]  # fmt: skip
    outcome = CliRunner().invoke(bench, given, catch_exceptions=False)
    result = json.loads(outcome.stdout)
    found = result["results"]
    assert list(found) == [
        "steps_1", "cold", "load", "at_once_1", "turn", "idle"
    ]  # fmt: skip
    load = found["load"]["weft"]
    assert (load["requests"], load["errors"], load["new_tokens"]) == (3, 0, 36)
    assert 0 < load["first_p50_ms"] <= load["first_p99_ms"]
    assert load["cached_tokens"] <= load["prompt_tokens"] == 72
    assert found["turn"]["weft"]["cached_tokens"] == 100
    assert found["idle"]["weft"]["connections"] == 20
    assert found["cold"]["weft"]["ready_s"] <= found["cold"]["weft"]["answer_s"]
    assert found["steps_1"]["tok_s"] > 0 and found["at_once_1"]["weft"]["tok_s"] > 0
    assert result["peak_rss_mib"]["weft"] > 10


def test_a_server_that_runs_already() -> None:
    """Its memory is not ours to tell."""
    with started("weft", served(str(box_folder()), {"device": "cpu"})) as target:
        outcome = CliRunner().invoke(bench, [
            "serve", "--url", f"mine={target.url}", "--only", "load,idle", "--rate", "0",
            "--requests", "2", "--max-new-tokens", "4", "--repeats", "1",
        ], catch_exceptions=False)  # fmt: skip
    lines = [line.split() for line in outcome.stdout.splitlines()]
    assert ["load", "mine", "errors", "0"] in lines and ["load", "mine", "new_tokens", "8"] in lines
    assert {line[0] for line in lines[1:]} == {"load"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "name a MODEL"),
        (["--url", "http://127.0.0.1:1"], "--url takes NAME="),
        (["--url", "a=http://x:1", "--at-once", "0"], "expected numbers from 1 to 1024"),
    ],
)
def test_wrong_usage(given: list[str], said: str) -> None:
    outcome = CliRunner().invoke(bench, ["serve", *given])
    assert outcome.exit_code == 2 and said in outcome.output


def test_a_case_that_is_none() -> None:
    outcome = CliRunner().invoke(bench, ["serve", "--url", "a=http://x:1", "--only", "sleep"])
    assert isinstance(outcome.exception, UsageError) and "'sleep'" in str(outcome.exception)


def test_answers_that_never_decode_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.bench.steps.played", lambda *given: [])
    args = ["serve", str(box_folder()), "--only", "steps", "--at-once", "2", "--device", "cpu",
            "--repeats", "1", "--prompt-tokens", "8", "--max-new-tokens", "4"]  # fmt: skip
    made = CliRunner().invoke(bench, args)
    assert isinstance(made.exception, UsageError) or made.exit_code == 1
    assert "2 answers at once" in f"{made.exception} {made.output}"
