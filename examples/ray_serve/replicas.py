"""Replicas of a model under Ray Serve, which starts them, looks after them and shares requests out.

python replicas.py MODEL [REPLICAS]
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before Ray is imported: it reports nothing

import ray
from ray import serve

HERE = "127.0.0.1"


def server(path: str) -> Any:
    """What each replica runs: the ASGI application of `weft serve` over one model."""

    def make() -> Any:
        from weft.serve.app import make_app
        from weft.serve.guard import LOCAL
        from weft.serve.metrics import ServerMetrics
        from weft.serve.settings import ServeSettings
        from weft.serve.shelf import ModelShelf

        settings = ServeSettings(load={"device": "cpu"})
        shelf = ModelShelf({"model": path}, settings, ServerMetrics())
        return make_app(shelf, hosts=LOCAL).application

    return make


def main(path: str, replicas: int = 2) -> None:
    """Serves until interrupted. Each replica has a core, and takes so many requests at once that
    its engine, not Ray, is where they wait."""
    ray.init(_node_ip_address=HERE, include_dashboard=False, num_cpus=replicas)
    serve.start(http_options={"host": HERE, "port": 8000})
    replica = serve.deployment(
        serve.ingress(server(os.path.abspath(path)))(),
        name="weft", num_replicas=replicas, max_ongoing_requests=256,
        ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": {"WEFT_NUM_THREADS": "1"}}},
        health_check_period_s=2, graceful_shutdown_timeout_s=30,
    )  # fmt: skip
    serve.run(replica.bind(), blocking=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
