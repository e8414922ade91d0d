"""Spans of requests: what a collector gets, and that nothing waits for one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from serve_kit import Running, serving, stream
from test_batches import asked, client_of, ended, jsonl, sent

from weft.core.errors import UsageError
from weft.serve.tracing import Traces, endpoint_of

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "a word that is nobody's business"
TEXT = "/v1/completions"


@contextlib.contextmanager
def collector(status: int = 200, headers: dict[str, str] | None = None) -> Iterator[Any]:
    """A collector on this machine: its URL and the bodies that it got."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()


def spans_of(bodies: list[bytes]) -> list[Any]:
    found = []
    for body in bodies:
        for one in ExportTraceServiceRequest.FromString(body).resource_spans:
            found += [span for scope in one.scope_spans for span in scope.spans]
    return found


def value(span: Any, name: str) -> Any:
    found = next((a.value for a in span.attributes if a.key == name), None)
    return None if found is None else found.int_value or found.string_value


def test_spans_of_a_request(chatty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://192.0.2.1:9")  # nothing goes there
    asked = {"prompt": SECRET, "max_tokens": 5, "seed": 1, "ignore_eos": True, "n": 2}
    with collector() as (url, got):
        with serving({"box": str(chatty)}, traces=Traces(endpoint_of(url))) as running:
            assert running.ask("POST", TEXT, asked, {"traceparent": CALLER})[0] == 200
            assert running.ask("POST", TEXT, {"prompt": 1.5})[0] == 400
            assert running.ask("GET", "/health")[0] == 200
            with stream(running, TEXT, asked) as reply:
                reply.read()
        spans = spans_of(got)
    assert SECRET.encode() not in b"".join(got)
    first, refused, streamed = (s for s in spans if s.name == f"POST {TEXT}")
    assert first.trace_id.hex() == CALLER[3:35] and first.parent_span_id.hex() == CALLER[36:52]
    assert value(first, "http.response.status_code") == 200 and value(first, "http.route") == TEXT
    assert value(refused, "http.response.status_code") == 400
    assert refused.trace_id != first.trace_id
    for request in (first, streamed):
        inside = [s for s in spans if s.parent_span_id == request.span_id]
        assert sorted(s.name for s in inside) == ["decode"] * 2 + ["prefill"] * 2 + ["queue"] * 2
        assert all(s.trace_id == request.trace_id for s in inside)
        assert all(value(s, "gen_ai.request.model") == "box" for s in inside)
        by = {s.name: s for s in inside}
        assert value(by["prefill"], "gen_ai.usage.input_tokens") > 3
        assert value(by["decode"], "gen_ai.usage.output_tokens") == 5
        times = [t for name in ("queue", "prefill", "decode") for t in
                 (by[name].start_time_unix_nano, by[name].end_time_unix_nano)]  # fmt: skip
        assert times == sorted(times) and request.start_time_unix_nano <= times[0]
        assert times[-1] <= request.end_time_unix_nano + 1_000_000
    assert not [s for s in spans if "health" in s.name]


def test_an_answer_without_a_token_says_how_it_ended(chatty: Path) -> None:
    asked = {"prompt": SECRET, "max_tokens": 5, "logit_bias": {"7": 100}, "stop_token_ids": [7]}
    with collector() as (url, got):
        with serving({"box": str(chatty)}, traces=Traces(endpoint_of(url))) as running:
            made = running.ask("POST", TEXT, {**asked, "temperature": 0})[1]
        by = {s.name: s for s in spans_of(got)}
    assert made["choices"][0]["text"] == "" and {"queue", "prefill", "decode"} < by.keys()
    found = next(a.value for a in by["decode"].attributes if a.key.endswith("finish_reasons"))
    assert found.array_value.values[0].string_value in ("eos", "stop")


def test_spans_of_a_batch(chatty: Path, tmp_path: Path) -> None:
    with collector() as (url, got):
        traces = Traces(endpoint_of(url))
        with serving({"box": str(chatty)}, traces=traces, batches=tmp_path / "b") as running:
            client = client_of(running)
            batch = ended(client, sent(client, jsonl(asked(2))))
            assert batch.status == "completed"
        spans = spans_of(got)
    own = [s for s in spans if value(s, "weft.batch") == batch.id]
    assert [s.name for s in own] == [f"POST {TEXT}"] * 2
    inside = {s.name for s in spans if s.parent_span_id == own[0].span_id}
    assert inside == {"queue", "prefill", "decode"}


def test_a_redirect_is_not_followed(chatty: Path) -> None:
    with (
        collector() as (other, got),
        collector(307, {"Location": f"{other}/v1/traces"}) as (url, first),
    ):
        with serving({"box": str(chatty)}, traces=Traces(endpoint_of(url))) as running:
            assert running.ask("GET", "/v1/models")[0] == 200
        assert first and not got


def test_a_collector_that_is_not_there(chatty: Path) -> None:
    with serving({"box": str(chatty)}, traces=Traces("http://127.0.0.1:9/v1/traces")) as running:
        assert running.ask("POST", TEXT, {"prompt": "x", "max_tokens": 2})[0] == 200


def test_endpoints() -> None:
    assert endpoint_of("http://a:1") == endpoint_of("http://a:1/") == "http://a:1/v1/traces"
    assert endpoint_of("https://a/x") == "https://a/x"
    for wrong in ("a:4318", "ftp://a", "http://", ""):
        with pytest.raises(UsageError, match="expected a URL like"):
            endpoint_of(wrong)


def test_without_traces_nothing_is_loaded(server: Running) -> None:
    assert server.shelf.metrics.context() is None
