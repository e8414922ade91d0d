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
from hypothesis import HealthCheck, given, settings, strategies as st
from serve_kit import Running, serving, until

from weft.hub.box import box_folder
from weft.models.run.model import Decoder
from weft.serve import running as server_running, wire
from weft.serve.wire import measured

KEY = b"0123456789abcdef"
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
PATHS = ("/", "/health", "/metrics", "/v1/models", "/v1/nothing", "/v1/completions", "//metrics")


@pytest.fixture(scope="module")
def keyed(chatty: Path) -> Iterator[Running]:
    with serving({"box": str(chatty)}, key=KEY) as running:
        yield running


def send(to: Running, data: bytes, seconds: float = 20) -> bytes:
    """What comes back for raw bytes, until the server closes or is silent."""
    with socket.create_connection((to.host, to.port), timeout=seconds) as s:
        s.sendall(data)
        s.settimeout(seconds)
        got = b""
        try:
            while part := s.recv(65536):
                got += part
                if b"\r\n0\r\n\r\n" in got or b"content-length" in got.lower():
                    break
        except TimeoutError:
            pass
        return got


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


BAD: list[tuple[bytes, int]] = [
    (b"", 400),
    (b"{", 400),
    (b"[]", 400),
    (b"null", 400),
    (b"\xff\xfe", 400),
    (b'{"prompt": NaN}', 400),
    (b'{"prompt": "a", "max_tokens": 1e400}', 400),
    (b'{"prompt": "a", "max_tokens": 1.5}', 400),
    (b'{"prompt": "a", "seed": 99999999999999999999999999}', 400),
    (b'{"prompt": "\\ud800"}', 400),
    (b'{"prompt": "a", "temperature": "hot"}', 400),
    (b'{"prompt": [-1]}', 400),
    (b'{"prompt": [999999999]}', 400),
    (b'{"prompt": "' + b"[" * 200 + b'", "max_tokens": 1}', 200),
    (b'{"prompt": ' + b"[" * 200 + b"]" * 200 + b"}", 400),
    (b"[" * 1_000_000, 400),
    (b'{"prompt": "' + b"a" * (9 << 20) + b'"}', 413),
]


@pytest.mark.parametrize(("body", "status"), BAD, ids=range(len(BAD)))
def test_a_body_that_is_wrong(server: Running, body: bytes, status: int) -> None:
    found, answer, _ = server.ask("POST", "/v1/completions", body)
    assert found == status
    if status >= 400:
        assert "Traceback" not in json.dumps(answer)
    assert server.ask("GET", "/health")[0] == 200


JSON = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('[]{}"\\\\,a', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text('[{"\\,', max_size=3), inner, max_size=4)
    ),
)


@given(JSON, st.sampled_from([None, 2]))
@settings(max_examples=300, deadline=None)
def test_measures_are_what_a_parser_finds(value: Any, indent: int | None) -> None:
    def found(value: Any) -> tuple[int, int, int]:
        if not isinstance(value, dict | list):
            return 0, isinstance(value, str), 0
        inner = [found(one) for one in (value.values() if isinstance(value, dict) else value)]
        names = len(value) if isinstance(value, dict) else 0
        return (
            1 + max((depth for depth, _, _ in inner), default=0),
            1 + names + sum(parts for _, parts, _ in inner),
            max(len(value) - 1, 0) + sum(commas for _, _, commas in inner),
        )

    assert measured(json.dumps(value, indent=indent).encode()) == found(value)


@given(st.binary(max_size=200) | st.text('[]{}"\\a', max_size=60).map(str.encode))
def test_what_is_no_json_is_measured_too(body: bytes) -> None:
    assert all(count >= 0 for count in measured(body))


PART = b'{"type":"text","text":"a"}'
CALL = b'{"id":"a","function":{"name":"a","arguments":"{}"}}'
NESTED = b'{"id":"a","function":{"name":"a","arguments":"[%s]"}}' % b",".join([b"{}"] * 50_000)
USER = b'"messages":[{"role":"user","content":"a"}]'
MANY = [
    # path, what stands before, of which there are many, and after
    ("/tokenize", b'{"messages":[', b'{"role":"user","content":"a"}', b"]}", 10_001),
    ("/tokenize", b'{"messages":[{"role":"user","content":[', PART, b"]}]}", 40_000),
    ("/tokenize", b'{"messages":[{"role":"user","tool_calls":[', NESTED, b"]}]}", 3),
    ("/v1/chat/completions", b'{"messages":[{"role":"user","tool_calls":[', CALL, b"]}]}", 20_000),
    ("/v1/chat/completions", b'{"messages":[{"role":"user","tool_calls":[', NESTED, b"]}]}", 3),
    ("/v1/chat/completions", b"{" + USER + b',"metadata":{"a":[', b"[]", b"]}}", 140_000),
    ("/v1/chat/completions", b"{" + USER + b',"stop":[', b'"a"', b"]}", 140_000),
    ("/v1/chat/completions", b"{" + USER + b',"tools":[', b"{}", b"]}", 140_000),
    ("/v1/completions", b'{"prompt":[', b'"a"', b"]}", 140_000),
    ("/v1/completions", b'{"prompt":[', b"5", b"]}", 1_050_000),
    ("/v1/embeddings", b'{"input":[', b"[5]", b"]}", 140_000),
    ("/v1/responses", b'{"input":[', b'{"role":"user","content":"a"}', b"]}", 30_000),
    ("/v1/responses", b'{"input":[', b'{"type":"function_call","call_id":"a","name":"a",'
     b'"arguments":"[%s]"}' % b",".join([b"{}"] * 50_000), b"]}", 3),
    ("/v1/messages", b'{"model":"box","max_tokens":1,"messages":[{"role":"user","content":[', PART,
     b"]}]}", 40_000),
    ("/api/chat", b'{"model":"box","messages":[', b'{"role":"user"}', b"]}", 50_000),
    ("/api/generate", b'{"model":"box","prompt":"a","context":[', b"5", b"]}", 1_050_000),
    ("/api/embed", b'{"model":"box","input":[', b'"a"', b"]}", 140_000),
    ("/detokenize", b'{"tokens":[', b"5", b"]}", 1_050_000),
]  # fmt: skip


@pytest.mark.parametrize("path, before, one, after, count", MANY, ids=range(len(MANY)))
def test_a_body_of_too_many_parts(
    server: Running, path: str, before: bytes, one: bytes, after: bytes, count: int
) -> None:
    """They would hold up everybody while they are decoded and gone through."""
    body = before + b",".join([one] * count) + after
    status, answer, _ = server.ask("POST", path, body)
    assert status == 400 and ("at most" in str(answer) or "length <= " in str(answer)), answer


def test_a_head_that_does_not_end_is_cut_off(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_running, "HEADER_SECONDS", 0.3)
    assert whole(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") == b""
    assert whole(server, b"") == b""


def test_a_body_that_does_not_come_is_cut_off(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "BODY_SECONDS", 0.3)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    assert b" 408 " in send(server, head)


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
PAST = server_running.HEADER_BYTES
LONG_HEADS = {
    "one header": GET + b"X: " + b"a" * PAST + b"\r\n\r\n",
    "many headers": GET + b"X: a\r\n" * (PAST // 6) + b"\r\n",
    "spaces around a value": GET + b"X: " + b" " * PAST + b"a\r\n\r\n",
    "the path": b"GET /" + b"a" * PAST + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "the query": b"GET /health?" + b"a" * PAST + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "of 120,000 bytes": GET + b"X: " + b"a" * 120_000 + b"\r\n\r\n",
    "no end": GET + b"X: " + b"a" * 70_000,
}


def status(got: bytes) -> int:
    """Of an answer that says what was wrong, and closes the connection."""
    head, _, body = got.partition(b"\r\n\r\n")
    assert json.loads(body)["error"]["message"] and b"connection: close" in head.lower()
    return int(head.split(b" ")[1])


def whole(to: Running, data: bytes) -> bytes:
    """All that comes back until the server closes."""
    with socket.create_connection((to.host, to.port), timeout=240) as s:
        s.sendall(data)
        return b"".join(iter(lambda: s.recv(65536), b""))


@pytest.mark.parametrize("name", LONG_HEADS)
def test_a_head_that_is_too_long(server: Running, name: str) -> None:
    assert status(whole(server, LONG_HEADS[name])) == 431
    assert server.ask("GET", "/health")[0] == 200


def test_a_head_of_just_so_many_bytes(server: Running) -> None:
    """Also behind another request on the same connection."""
    most = GET + b"X: " + b"a" * (PAST - len(GET) - 7) + b"\r\n\r\n"
    assert len(most) == PAST
    closing = GET + b"Connection: close\r\n\r\n"
    assert whole(server, most + most + closing).count(b"HTTP/1.1 200") == 3
    got = whole(server, GET + b"\r\n" + most.replace(b"X: ", b"X: a") + closing)
    assert got.count(b"HTTP/1.1 ") == 2 and got.count(b"HTTP/1.1 431") == 1


POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
SENT = b'{"prompt": "x"}'
CHUNKED = b"f\r\n" + SENT + b"\r\n0\r\n\r\n"
SMUGGLED = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
FRAMES = {
    "length and chunks": b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + CHUNKED,
    "two lengths": b"Content-Length: 15\r\nContent-Length: 4\r\n\r\n" + SENT,
    "a list of lengths": b"Content-Length: 15, 4\r\n\r\n" + SENT,
    "no number": b"Content-Length: x\r\n\r\n" + SENT,
    "a sign": b"Content-Length: +15\r\n\r\n" + SENT,
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED,
    "chunks twice": b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + CHUNKED,
    "a coding": b"Transfer-Encoding: gzip\r\n\r\n" + SENT,
    "a space before the colon": b"Content-Length : 15\r\n\r\n" + SENT,
}


@pytest.mark.parametrize("name", FRAMES)
def test_where_a_body_ends_is_never_doubtful(server: Running, name: str) -> None:
    """What a proxy may read otherwise is refused, and nothing behind it is read."""
    got = whole(server, POST + FRAMES[name] + SMUGGLED)
    assert got.count(b"HTTP/1.1 ") == 1 and status(got) in (400, 501)


def test_chunks_are_not_for_http_1_0(server: Running) -> None:
    head = POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n"
    assert status(whole(server, head + CHUNKED + SMUGGLED)) == 400


def test_what_follows_the_last_chunk_is_a_head_too(server: Running) -> None:
    frame = POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED[:-2]
    last = GET + b"Connection: close\r\n\r\n"
    assert whole(server, frame + b"X: y\r\n\r\n" + last).count(b"HTTP/1.1 200") == 2
    for more in (b"X: y\r\n" * (PAST // 6 + 1), b"X: " + b"y" * PAST + b"\r\n"):
        got = whole(server, frame + more + b"\r\n" + last)
        assert got.count(b"HTTP/1.1 ") == 1 and status(got) == 431


@pytest.mark.parametrize("frame", [
    b"Content-Length: 15\r\nContent-Length: 15\r\n\r\n" + SENT,  # as RFC 9110, 8.6 allows
    b"Transfer-Encoding: Chunked\r\n\r\n" + CHUNKED,
])  # fmt: skip
def test_a_body_that_ends_where_it_says(server: Running, frame: bytes) -> None:
    last = GET + b"Connection: close\r\n\r\n"
    assert whole(server, POST + frame + last).count(b"HTTP/1.1 200") == 2


@given(st.binary(max_size=300))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_bytes_that_are_no_http(server: Running, data: bytes) -> None:
    with socket.create_connection((server.host, server.port), timeout=240) as s:
        s.sendall(data + b"\r\n\r\n")
    assert server.ask("GET", "/health")[0] == 200


def wait_idle(server: Running, seconds: float = 20) -> None:
    """Until nothing is played any more."""
    until(lambda: all(m.idle for m in server.shelf.decoders()), seconds)


def cancelled(server: Running) -> float:
    """How many answers have been cancelled so far."""
    found = server.shelf.metrics.answers.labels("box", "cancelled")
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


@pytest.mark.parametrize("queue", [0, 1, 256])
@pytest.mark.parametrize("stream", [False, True])
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
