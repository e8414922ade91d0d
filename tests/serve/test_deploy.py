"""Files in deploy/: options that exist, metrics that are there, units that systemd takes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serve_kit import Running, routing

from weft.cli.main import COMMANDS, cli
from weft.serve.keys import ApiKey, ApiKeys
from weft.serve.metrics import ServerMetrics
from weft.serve.running import DRAIN_SECONDS, LAST_SECONDS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = ("weft-serve.service", "weft-route.service")
HARDENED = DEPLOY / "weft-.service.d" / "hardened.conf"


def settings(path: Path) -> dict[str, list[str]]:
    """Name -> values of a unit's file."""
    made: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            made.setdefault(name, []).append(value)
    return made


def check_command(words: list[str]) -> None:
    """What follows `weft` on a command line is a command, and options that it has."""
    assert words[0] in COMMANDS
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    with command.make_context(words[0], words[1:]) as context:
        assert context.params["host"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_units_command_line_exists(unit: str) -> None:
    found = settings(DEPLOY / unit)
    values = dict(word.split("=", 1) for word in found["Environment"][0].split())
    values |= {"MODEL": "model", "REPLICAS": "http://a:1 http://b:2"}
    values["CREDENTIALS_DIRECTORY"] = "/run/credentials/weft"
    line = re.sub(r"\$\{?(\w+)\}?", lambda m: values[m[1]], found["ExecStart"][0])
    program, *words = shlex.split(line)
    assert program.endswith("/bin/weft")
    check_command(words)
    loaded = {value.split(":")[0] for value in found["LoadCredential"]}
    assert loaded == set(re.findall(r"/run/credentials/weft/([\w-]+)", line))


def test_units_wait_for_answers_to_end() -> None:
    (stop,) = settings(HARDENED)["TimeoutStopSec"]
    assert int(stop) > DRAIN_SECONDS + LAST_SECONDS


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_unit(unit: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(DEPLOY / unit)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    said = [
        line for line in done.stderr.splitlines()
        if line.startswith(("weft-", str(DEPLOY))) and "is not executable" not in line
    ]  # fmt: skip
    assert not said


def test_the_images_command_line_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (program,) = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.M)[0])
    assert program.endswith("/bin/weft")
    check_command(json.loads(re.findall(r"^CMD (.*)$", text, re.M)[0]))
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M):
        for source in line.split()[:-1]:
            assert (DEPLOY.parent / source).exists() and f"!{source}" in ignored


def manifests() -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def test_the_manifests_command_lines_exist() -> None:
    made = manifests()
    sets = {one["metadata"]["name"]: one["spec"] for one in made if "template" in one["spec"]}
    assert set(sets) == {"weft-serve", "weft-route"}
    replicas = sets["weft-serve"]["replicas"]
    names = [f"weft-serve-{n}.{sets['weft-serve']['serviceName']}" for n in range(replicas)]
    for spec in sets.values():
        pod = spec["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > DRAIN_SECONDS + LAST_SECONDS
        (container,) = pod["containers"]
        check_command(container["args"])
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in pod["volumes"]}
        said = " ".join(container["args"])
        assert all(name in said for name in names)


def test_the_manifests_are_kubernetes_own() -> None:
    found = pytest.importorskip("kubernetes_validate")
    for one in manifests():
        found.validate(one, "1.37", strict=True)


def samples(text: str) -> dict[str, set[str]]:
    """Sample names of Prometheus's text -> names of their labels."""
    made: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            made.setdefault(sample.name, set()).update(sample.labels)
    return made


def queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    return [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]


def test_every_query_names_what_is_measured(server: Running) -> None:
    asked = {"prompt": "x", "max_tokens": 4, "ignore_eos": True}
    assert server.ask("POST", "/v1/completions", asked)[0] == 200
    with routing(server) as router:
        router.ask("GET", "/health")
        known: dict[str, set[str]] = {}
        for text in (
            metrics_of_keys(),
            server.ask("GET", "/metrics")[1],
            router.ask("GET", "/metrics")[1],
        ):
            for name, labels in samples(text).items():
                known.setdefault(name, set()).update(labels)
    assert len(queries()) > 12
    for query in queries():
        names = set(re.findall(r"weft_\w+", query))
        assert names and names <= known.keys(), query
        labels = {label for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(", ")}
        labels |= set(re.findall(r"[{,](\w+)=", query))
        assert all(labels <= known[name] for name in names), query


def metrics_of_keys() -> str:
    """What a server with a named key shows."""
    metrics = ServerMetrics()
    metrics.count_keys(ApiKeys([ApiKey("ann", b"x" * 16)]))
    return metrics.text().decode()


def test_panels_lie_side_by_side() -> None:
    panels: list[dict[str, Any]] = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
