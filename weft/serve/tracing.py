"""Spans of requests and answers, sent by OpenTelemetry's OTLP over HTTP: times and counts, never a
word of a prompt.

A request has a span of its own, inside the caller's where its `traceparent` header names one. Each
answer adds three to it: `queue` until a step takes it, `prefill` until its first token, `decode`
until it ends.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

import weft
from weft.core.errors import UsageError
from weft.core.install import how
from weft.engine.job import Output

if TYPE_CHECKING:
    from weft.serve.player import JobOutputs

PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
LOCAL = "http://127.0.0.1:4318/v1/traces"
_PATH = "/v1/traces"
_SECONDS = 5.0  # for a batch of spans to be sent
BATCH = "weft.batch"  # of a scope, and of a span: the id of the batch that a request is of
_HIDDEN = ("/health", "/metrics")  # asked by machines all the time


def endpoint_of(given: str) -> str:
    """The address of a collector, with OTLP's usual path where it has none. Raises UsageError."""
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--traces-endpoint is {given[:100]!r}; expected a URL like {LOCAL}")
    return given if parts.path not in ("", "/") else given.rstrip("/") + _PATH


def need() -> None:
    """Raises UsageError where a package of the extra `otel` is missing."""
    try:
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError:
        missing = list(PACKAGES)
    if missing:
        raise UsageError(f"traces need {', '.join(missing)}: {how('otel')}")


def _batch_of(scope: Scope) -> dict[str, str]:
    return {BATCH: scope[BATCH]} if BATCH in scope else {}


class Traces:
    """Sends spans to `endpoint`, and to nowhere else: neither proxies nor redirects are followed,
    and no environment variable names another place. Needs the packages of the extra `otel`."""

    def __init__(self, endpoint: str = LOCAL) -> None:
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        session = requests.Session()
        session.trust_env, session.max_redirects = False, 0
        about = {"service.name": "weft", "service.version": weft.__version__}
        self._provider = TracerProvider(resource=Resource.create(about))
        exporter = OTLPSpanExporter(endpoint, timeout=_SECONDS, session=session)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("weft.serve", weft.__version__)
        self._propagator = TraceContextTextMapPropagator()

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, with a span around each request until its reply is sent."""
        from opentelemetry import context, trace

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in _HIDDEN:
                await app(scope, receive, send)
                return
            headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
            method = scope["method"]
            span = self._tracer.start_span(
                method, self._propagator.extract(headers), trace.SpanKind.SERVER,
                {"http.request.method": method, **_batch_of(scope)},
            )  # fmt: skip

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= 500:
                        span.set_status(trace.StatusCode.ERROR)
                await send(message)

            token = context.attach(trace.set_span_in_context(span))
            try:
                await app(scope, receive, sending)
            finally:
                context.detach(token)
                if (route := getattr(scope.get("route"), "path", None)) is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
                span.end()

        return traced

    def current(self) -> Any:
        """The context of the request that is being answered; None outside of one."""
        from opentelemetry import context, trace

        inside = trace.get_current_span().get_span_context().is_valid
        return context.get_current() if inside else None

    def ended(
        self, model: str, adapter: str, answer: JobOutputs, output: Output, now: float
    ) -> None:
        """Makes the spans of an answer that ended at `now` (time.monotonic)."""
        from opentelemetry import trace

        ticket = answer.ticket
        begun = 0.0 if ticket is None else ticket.begun
        since = answer.player.engine.clock() - begun
        start = max(now - since, answer.begun) if begun else now
        first = max(answer.first or now, start)
        made: dict[str, Any] = {"gen_ai.request.model": model}
        if adapter:
            made["weft.adapter"] = adapter
        read, wrote = dict(made), dict(made)
        if output.usage is not None:
            read["gen_ai.usage.input_tokens"] = output.usage.prompt
            read["weft.cached_tokens"] = output.usage.cached
            wrote["gen_ai.usage.output_tokens"] = output.usage.new
        spans = [("queue", answer.begun, start, made)]
        if begun:
            spans += [("prefill", start, first, read), ("decode", first, now, wrote)]
        spans[-1][-1]["gen_ai.response.finish_reasons"] = [output.finish or "error"]
        offset = time.time_ns() - time.monotonic_ns()
        for name, begin, end, attributes in spans:
            span = self._tracer.start_span(
                name, answer.context, attributes=attributes, start_time=offset + int(begin * 1e9)
            )
            if output.error is not None and name == spans[-1][0]:
                span.set_status(trace.StatusCode.ERROR, type(output.error).__name__)
            span.end(offset + int(end * 1e9))

    async def close(self) -> None:
        """Sends what is left."""
        await asyncio.to_thread(self._provider.shutdown)
