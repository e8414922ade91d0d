"""What hostile, slow and broken clients get, and that the server outlives them."""

from __future__ import annotations

import base64
import functools
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from held import answers, holding
from rows import covering
from serve_kit import Running, serving, until

from weft.hub.box import box_folder
from weft.models.run.model import Decoder
from weft.serve import wire

KEY = b"0123456789abcdef"
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
PATHS = ("/", "/health", "/metrics", "/v1/models", "/v1/nothing", "/v1/completions", "//metrics")


@pytest.fixture(scope="module")
def keyed(chatty: Path) -> Iterator[Running]:
    with serving({"box": str(chatty)}, key=KEY) as running:
        yield running


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_every_route_wants_the_key(keyed: Running, method: str, path: str) -> None:
    given_keys = [{}, {"Authorization": "Bearer wrong"}, {"x-api-key": KEY.decode()[:-1]}]
    for headers in given_keys:
        status, body, _ = keyed.ask(method, path, b"", headers)
        assert status == 401
        assert body["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_the_key_opens(keyed: Running, header: str) -> None:
    value = f"Bearer {KEY.decode()}" if header == "Authorization" else KEY.decode()
    assert keyed.ask("GET", "/v1/models", headers={header: value})[0] == 200
    assert keyed.ask("GET", "/v1/nothing", headers={header: value})[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_sites_name_is_not_answered(server: Running, host: str) -> None:
    assert server.ask("GET", "/v1/models", headers={"Host": host})[0] == 421


def test_names_of_this_machine_are(server: Running) -> None:
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1:80", "127.0.0.1"):
        assert server.ask("GET", "/v1/models", headers={"Host": host})[0] == 200


def test_no_other_origin_is_let_in(server: Running) -> None:
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{server.port + 1}"):
        status, _, headers = server.ask("GET", "/v1/models", headers={"Origin": origin})
        assert status == 403
        assert not [name for name in headers if name.lower().startswith("access-control")]
    assert server.ask("GET", "/v1/models", headers={"Origin": server.url})[0] == 200


def test_the_page_asks_for_the_key(keyed: Running) -> None:
    status, _, headers = keyed.ask("GET", "/")
    assert status == 401 and headers["www-authenticate"].startswith("Basic")
    for word, expected in ((b"anybody:" + KEY, 200), (b"anybody:wrong", 401), (b"", 401)):
        basic = {"Authorization": "Basic " + base64.b64encode(word).decode()}
        assert keyed.ask("GET", "/", headers=basic)[0] == expected
    assert keyed.ask("GET", "/", headers={"Authorization": "Basic %%%"})[0] == 401


def wait_idle(server: Running, seconds: float = 20) -> None:
    """Until nothing is played any more."""
    until(lambda: all(m.idle for m in server.shelf.decoders()), seconds)


def cancelled(server: Running) -> float:
    """How many answers have been cancelled so far."""
    found = server.shelf.metrics.answers.labels("box", "", "cancelled")
    return float(found._value.get())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_answer(
    server: Running, tmp_path: Path, stream: bool
) -> None:
    asked = {"prompt": "x", "max_tokens": 500, "stream": stream, "ignore_eos": True, "n": 4}
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    wait_idle(server)
    with holding(server, file=tmp_path / "steps") as gate:
        before = cancelled(server)
        with socket.create_connection((server.host, server.port), timeout=240) as s:
            s.sendall(head.encode() + body)
            until(lambda: answers(server) == 4)
            gate.let(2)
            if stream:
                s.recv(100)
            until(lambda: answers(server, "running") == 4)
        until(lambda: all(not m.users for m in server.shelf.decoders()))  # it is known
    until(lambda: cancelled(server) == before + 4)
    wait_idle(server)


def test_a_reader_that_stops_is_cut_off(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SEND_SECONDS", 0.5)
    asked = {"prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True, "n": 16,
             "logprobs": 20}  # fmt: skip
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.connect((server.host, server.port))
        s.sendall(head.encode() + body)
        until(lambda: any(m.users for m in server.shelf.loaded()))
        wait_idle(server, 60)
    assert server.ask("GET", "/health")[0] == 200


@pytest.mark.parametrize("queue", [0, 1])
def test_a_full_queue_says_when_to_come_back(chatty: Path, tmp_path: Path, queue: int) -> None:
    asked = {"prompt": "x", "max_tokens": 4}
    with (
        serving({"box": str(chatty)}, sequences=1, queue=queue) as running,
        holding(running, file=tmp_path / "steps") as gate,
        ThreadPoolExecutor(2) as pool,
    ):
        ask = functools.partial(running.ask, "POST", "/v1/completions", asked)
        there = []
        for n in range(1 + queue):
            there.append(pool.submit(ask))
            until(lambda n=n: answers(running) == n + 1)  # type: ignore[misc]
        status, body, headers = ask()
        assert status == 429 and "retry-after" in {name.lower() for name in headers}
        assert body["error"]["type"] == "rate_limit_error"
        gate.open()
        assert [each.result()[0] for each in there] == [200] * (1 + queue)
        assert ask()[0] == 200


@pytest.mark.parametrize("queue, stream", covering([0, 1, 256], [False, True]))
def test_choices_beyond_the_queue_are_fed_in(
    chatty: Path, alone: Decoder, queue: int, stream: bool
) -> None:
    """200 prompts with two choices each, on a server that plays three answers at once."""
    prompts, n = [f"def f{i}(" for i in range(200)], 2
    asked = {"prompt": prompts, "max_tokens": 2, "n": n, "seed": 4, "stream": stream}
    with serving({"box": str(chatty)}, sequences=3, queue=queue) as running:
        status, body, _ = running.ask("POST", "/v1/completions", asked)
        assert status == 200
        wait_idle(running)
    texts, ended = [""] * (len(prompts) * n), list[int]()
    lines = [line[6:] for line in body.splitlines() if line[:7] == "data: {"] if stream else []
    for found in map(json.loads, lines) if stream else [body]:
        for choice in found["choices"]:
            texts[choice["index"]] += choice["text"]
            ended += [choice["index"]] * (choice["finish_reason"] is not None)
    how = {"max_new_tokens": 2, "temperature": 1.0, "seed": 4}
    assert texts[::n][::25] == [alone.generate(p, **how).text for p in prompts[::25]]
    assert sorted(ended) == list(range(len(texts)))  # some end at once, without a text


def test_one_that_feeds_keeps_nobody_out(chatty: Path, tmp_path: Path) -> None:
    """Others have their turn in between, and all of it ends with its client."""
    body = json.dumps({"prompt": ["x"] * 100, "n": 4, "max_tokens": 300}).encode()
    with (
        serving({"box": str(chatty)}, sequences=2, queue=2) as running,
        holding(running, file=tmp_path / "steps") as gate,
        ThreadPoolExecutor(1) as pool,
    ):
        with socket.create_connection((running.host, running.port), timeout=240) as s:
            s.sendall(HEAD.format(len(body)).encode() + body)
            until(lambda: answers(running) == 400)
            short = {"prompt": "y", "max_tokens": 1}
            other = pool.submit(running.ask, "POST", "/v1/completions", short)
            until(lambda: answers(running) == 401)
            gate.let(2000)
            assert other.result()[0] == 200
        until(lambda: not running.shelf.decoders()[0].users)
        gate.open()
        wait_idle(running)
        assert answers(running) == 0


def test_a_part_that_can_never_fit_refuses_the_whole(server: Running) -> None:
    wait_idle(server)
    asked = {"prompt": ["x", "y " * 600, "z"], "n": 16, "max_tokens": 4}
    status, body, _ = server.ask("POST", "/v1/completions", asked)
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    assert answers(server) == 0


def test_models_come_and_go_within_the_memory(chatty: Path) -> None:
    with serving({"a": str(chatty), "b": str(chatty)}, limit=1, memory=1 << 20) as running:
        for name in ("a", "b", "a"):
            asked = {"model": name, "prompt": "x", "max_tokens": 1}
            assert running.ask("POST", "/v1/completions", asked)[0] == 503
    with serving({"a": str(chatty)}, memory=1 << 20) as running:
        running.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
        room: dict[str, Any] = {"limit": running.shelf.loaded()[0].nbytes * 3 // 2}
    with serving({"a": str(chatty), "b": str(chatty)}, memory=1 << 20, **room) as running:
        for name in ("a", "b", "a"):
            asked = {"model": name, "prompt": "x", "max_tokens": 1}
            assert running.ask("POST", "/v1/completions", asked)[0] == 200
            assert [m.name for m in running.shelf.loaded()] == [name]


HI = [{"role": "user", "content": "hi"}]


def test_nobody_learns_where_a_model_lies() -> None:
    with serving({"plain": str(box_folder())}) as running:
        for path in ("/v1/chat/completions", "/tokenize"):
            status, body, _ = running.ask("POST", path, {"messages": HI})
            said = body["error"]["message"]
            assert status == 400 and said.startswith("plain lacks a chat template")


@pytest.mark.parametrize("name", ["self", "messages", "generation_prompt", "variables", "tools"])
def test_template_variables_are_no_arguments(server: Running, name: str) -> None:
    """Names of Python's own are a template's, or are refused."""
    asked = {"messages": HI, "max_tokens": 2, "seed": 1, "temperature": 0}
    plain = server.ask("POST", "/v1/chat/completions", asked)[1]
    status, body, _ = server.ask(
        "POST", "/v1/chat/completions", {**asked, "chat_template_kwargs": {name: False}}
    )
    assert status == (400 if name in ("messages", "tools") else 200)
    if status == 200:
        assert body["choices"] == plain["choices"]
        assert body["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    else:
        assert name in body["error"]["message"]
