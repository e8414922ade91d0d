"""Metrics for Prometheus: counts and times, never a word of a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from weft.engine.job import Output

if TYPE_CHECKING:
    from weft.serve.keys import ApiKeys
    from weft.serve.player import JobOutputs
    from weft.serve.shelf import ModelShelf
    from weft.serve.tracing import Traces

TEXT = "text/plain; version=0.0.4"  # the media type of Prometheus's text format
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds
_NEXT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class ServerMetrics:
    """Counters of one server, apart from any other's in this process."""

    def __init__(self) -> None:
        self.registry = made = CollectorRegistry()
        self._keys: ApiKeys | None = None
        self._seen: dict[tuple[str, str], Histogram] = {}
        self.traces: Traces | None = None
        self.adapters: dict[str, str] = {}  # names of those that are loaded, by the models' own
        by, whose = ("model", "adapter"), ("model", "adapter", "key")
        self.requests = Counter(
            "weft_requests", "Requests by route and status.", ("route", "status"), registry=made
        )
        self.answers = Counter(
            "weft_answers", "Answers by how they ended.", (*by, "finish"), registry=made
        )
        self.prompt = Counter("weft_prompt_tokens", "Tokens of prompts.", whose, registry=made)
        self.cached = Counter(
            "weft_cached_tokens",
            "Tokens of prompts found in the cache.",
            whose,
            registry=made,
        )
        self.new = Counter("weft_new_tokens", "Tokens of answers.", whose, registry=made)
        self.drafted = Counter(
            "weft_drafted_tokens", "Tokens of answers that were proposed and right.", by,
            registry=made,
        )  # fmt: skip
        self.first = Histogram(
            "weft_first_token_seconds", "From a request to its first token.", by,
            buckets=_FIRST, registry=made,
        )  # fmt: skip
        self.heard = Counter("weft_heard_seconds", "Seconds of sound.", ("model",), registry=made)
        self.next = Histogram(
            "weft_next_token_seconds", "Between two outputs of an answer.", by,
            buckets=_NEXT, registry=made,
        )  # fmt: skip
        self._labels: dict[Counter | Histogram, tuple[str, ...]] = {
            self.answers: (*by, "finish"), self.heard: ("model",),
            **dict.fromkeys((self.prompt, self.cached, self.new), whose),
            **dict.fromkeys((self.drafted, self.first, self.next), by),
        }  # fmt: skip

    def watch(self, shelf: ModelShelf) -> None:
        """Adds the figures that the engines of a shelf have at the moment somebody asks."""
        self.registry.register(_Engines(shelf))

    def count_keys(self, keys: ApiKeys) -> None:
        """Counts the tokens of answers for the keys that asked, and adds the keys' figures."""
        self._keys = keys
        keys.gone = lambda name: self.forget(key=name)
        self.registry.register(keys)

    def forget(self, **gone: str) -> None:
        """Removes the series with these labels: those of a model, an adapter or a key that is
        served no longer. Their names would stay for ever, and clients name adapters."""
        for metric, names in self._labels.items():
            if not gone.keys() <= {*names}:
                continue
            samples = [sample for family in metric.collect() for sample in family.samples]
            for values in {tuple(sample.labels[name] for name in names) for sample in samples}:
                if gone.items() <= dict(zip(names, values)).items():
                    metric.remove(*values)
        self._seen.clear()

    def drop_adapter(self, own: str) -> None:
        """Forgets an adapter by the model's own name for it. Later figures of
        its last answer count for the model itself."""
        name = self.adapters.pop(own)
        if name not in self.adapters.values():
            self.forget(adapter=name)

    def context(self) -> Any:
        """The context of the present request for spans; None without traces."""
        return None if self.traces is None else self.traces.current()

    def came(self, model: str, answer: JobOutputs, output: Output, now: float) -> None:
        """An output reached the event loop at `now` (time.monotonic)."""
        job = None if answer.ticket is None else answer.ticket.job
        by = model, "" if job is None else self.adapters.get(job.adapter, "")
        if output.tokens:
            if answer.told:
                if by not in self._seen:  # at each token, and labels are slow to look up
                    self._seen[by] = self.next.labels(*by)
                self._seen[by].observe(now - answer.told)
            else:
                self.first.labels(*by).observe(now - answer.begun)
                answer.first = now
        ended = output.finish or ("error" if output.error is not None else None)
        if ended is not None:
            self.answers.labels(*by, ended).inc()
            if self.traces is not None and answer.context is not None:
                self.traces.ended(*by, answer, output, now)
        if output.usage is not None:
            key = self._keys and job and self._keys.of_salt(job.salt)
            whose = (*by, key.name if key else "")
            self.prompt.labels(*whose).inc(output.usage.prompt)
            self.cached.labels(*whose).inc(output.usage.cached)
            self.new.labels(*whose).inc(output.usage.new)
            self.drafted.labels(*by).inc(output.usage.drafted)
            if key:
                key.spend(output.usage.prompt + output.usage.new)

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)


class _Engines:
    """Metrics of the engines' state, read at each request for metrics."""

    FIGURES = {
        "running": "Answers being written.",
        "waiting": "Answers that wait for a place.",
        "pages": "Pages of the cache.",
        "held": "Pages that running answers hold.",
        "cached": "Pages kept for prompts to come.",
        "preempted": "Times that an answer had to make place, since the model was loaded.",
    }

    def __init__(self, shelf: ModelShelf) -> None:
        self._shelf = shelf

    def collect(self) -> Any:
        stats = {model.name: model.player.stats for model in self._shelf.decoders()}
        for figure, text in self.FIGURES.items():
            family = GaugeMetricFamily(f"weft_engine_{figure}", text, labels=("model",))
            for name, values in stats.items():
                family.add_metric((name,), getattr(values, figure))
            yield family
