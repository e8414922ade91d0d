"""What makes a page quick: relaxed instructions, threads, and little to fetch."""

from __future__ import annotations

import threading
import urllib.request
from pathlib import Path

import pytest
from page_device import PageDevice

from weft.cli.main import invoke
from weft.conform import kernels
from weft.conform.report import DeviceReport, run_checks
from weft.core.errors import DeviceError
from weft.web.server import server

BUDGET = 59_000  # bytes of JavaScript, Program and shaders, with gzip, before weights


@pytest.mark.parametrize(("relaxed", "threads"), [(False, 3), (True, 1)])
def test_relaxed_instructions_and_threads_pass_checks_of_kernels(
    relaxed: bool, threads: int
) -> None:
    """Every eighth; test_player.py has all with the slow tests."""
    try:
        device = PageDevice("wasm", relaxed, threads)
    except DeviceError as error:
        pytest.skip(str(error))
    report = DeviceReport(device.info.id, device.info.name)
    cases = list(run_checks(report, "kernels", iter(list(kernels.checks(device))[::8])))
    assert cases and not [c for c in cases if c.status == "fail"]


def test_the_box_is_small_and_its_server_lets_threads_share_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "site"
    assert invoke(["export", "web", "-o", str(folder), "--dtype", "float16"]) == 0
    rows = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    packed = {row[0].strip(): int(row[2].replace(",", "")) for row in rows[1:-1]}
    assert packed["player"] + packed["Program, WebGPU"] < BUDGET
    with server(folder) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{running.server_port}/") as answer:
            assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert answer.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
        running.shutdown()
