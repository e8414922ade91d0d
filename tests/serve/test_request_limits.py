"""Requests that are too long, do not end, or are no HTTP: bodies, heads, and where one ends."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from limits_kit import GET, POST, status
from serve_kit import Running

from weft.serve import running as server_running, wire
from weft.serve.wire import measured


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
