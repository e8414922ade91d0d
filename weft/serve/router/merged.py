"""The state of a router and of all replicas: health, models, metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.requests import Request
from starlette.responses import Response

import weft
from weft.serve.metrics import TEXT
from weft.serve.router.exchange import Broken
from weft.serve.router.fleet import Fleet
from weft.serve.router.replica import PATIENCE, Replica
from weft.serve.wire import json_response

_log = logging.getLogger(__name__)


async def health(request: Request) -> Response:
    """Reports the router's health, and that of each replica.

    The status is 200 while at least one replica is ready, and 503 if none is or the router is
    stopping.
    """
    fleet: Fleet = request.app.state.fleet
    status = "leaving" if request.app.state.leaving else "ok" if fleet.ready else "failed"
    made = {"status": status, "version": weft.__version__, "models": list(fleet.models)}
    told = {replica.name: replica.told() for replica in fleet.replicas}
    return json_response(made | {"replicas": told}, 200 if status == "ok" else 503)


async def models(request: Request) -> Response:
    """The models of all replicas."""
    fleet: Fleet = request.app.state.fleet
    return json_response({"object": "list", "data": list(fleet.models.values())})


async def metrics(request: Request) -> Response:
    """The router's own counts, and those of every replica with its name as a label."""
    fleet: Fleet = request.app.state.fleet
    ready = fleet.ready
    said = await asyncio.gather(*(_said(replica) for replica in ready))
    text = request.app.state.metrics.text(dict(zip((r.name for r in ready), said)))
    return Response(text, media_type=TEXT)


async def _said(replica: Replica) -> list[Metric]:
    """A replica's metrics; none where it does not answer."""
    try:
        async with asyncio.timeout(PATIENCE):
            status, text = await replica.get(b"/metrics")
        return list(text_string_to_metric_families(text.decode())) if status == 200 else []
    except (Broken, TimeoutError, ValueError) as e:
        _log.warning("no metrics of %s: %s", replica.name, e)
        return []


class RouterMetrics:
    """Counters of one router."""

    def __init__(self, fleet: Fleet) -> None:
        self.registry = made = CollectorRegistry()
        self.requests = Counter(
            "weft_router_requests", "Requests to the router by route and status.",
            ("route", "status"), registry=made,
        )  # fmt: skip
        self.retries = Counter(
            "weft_router_retries", "Requests that were handed to a further replica.", registry=made
        )
        self.resumed = Counter(
            "weft_router_resumed", "Streams that went on at another replica.", registry=made
        )
        self._fleet = fleet
        made.register(_Replicas(fleet))

    def text(self, replicas: dict[str, list[Metric]]) -> bytes:
        """All of it in Prometheus's text format, with what replicas say by their name."""
        whole = CollectorRegistry()
        whole.register(_Gathered([*self.registry.collect(), *merged(replicas)]))
        return generate_latest(whole)


def merged(replicas: dict[str, list[Metric]]) -> list[Metric]:
    """Metrics of one name together, each sample labelled by its replica."""
    made: dict[str, Metric] = {}
    for replica, metrics in replicas.items():
        for metric in metrics:
            family = made.setdefault(
                metric.name, Metric(metric.name, metric.documentation, metric.type)
            )
            family.samples += [
                Sample(s.name, {**s.labels, "replica": replica}, s.value) for s in metric.samples
            ]
    return list(made.values())


class _Gathered:
    """Metrics that are there already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class _Replicas:
    """Metrics of the replicas' state, read at each request for metrics."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Any]:
        by = ("replica",)
        up = GaugeMetricFamily("weft_router_replica_up", "Whether it takes requests.", labels=by)
        work = GaugeMetricFamily(
            "weft_router_replica_outstanding", "Requests that it is at work on.", labels=by
        )
        for replica in self._fleet.replicas:
            up.add_metric((replica.name,), replica in self._fleet.ready)
            work.add_metric((replica.name,), replica.outstanding)
        return up, work
