"""`weft bench gate`: what it times, what it reports. No test compares times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.backends import registry
from weft.bench import gate, gate_cases, roofline
from weft.cli.main import invoke
from weft.kernel.interp import run

SCALE = 64


@pytest.mark.parametrize("case", gate_cases.cases(SCALE), ids=lambda case: case.name)
def test_every_case_plays_and_has_a_share(case: gate.Case) -> None:
    device = registry.get("cpu")
    assert case.work > 0
    found = gate.share(case, device, (lambda: 1.0, case.work), 1)
    assert np.isfinite(found) and found > 0


def test_every_case_has_a_name_of_its_own_and_there_are_fifteen() -> None:
    names = [case.name for case in gate_cases.cases()]
    assert len(set(names)) == len(names) >= 15


def test_a_share_is_the_time_of_the_peak_over_the_time_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter([0.0, 4.0] * 3)
    monkeypatch.setattr(gate.time, "perf_counter", lambda: next(ticks))
    case = gate.Case("half", "read", 100.0, lambda device: lambda: None)
    assert gate.share(case, registry.get("cpu"), (lambda: 1.0, 50.0), 3) == 0.5


@pytest.mark.parametrize("kind", ["u8 times i8", "sums"])
def test_the_loop_of_dot_products_counts_what_it_does(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(roofline, "_ITERATIONS", 3)
    device = registry.get("cpu")
    kernel, work = roofline.dot4_kernel(device.caps, 2)
    lanes = device.caps.lanes
    x, y = np.full(64 * 8 * lanes, 2, np.uint8), np.full(12 * lanes, 3, np.int8)
    out = np.zeros(2 * lanes, np.int32)
    run(kernel, [x, y, out], caps=device.caps)
    each = 6 * 3 * 4  # chains, steps, bytes of a lane
    if kind == "sums":
        assert (out == each * 2 * 3 + sum(range(6))).all()
    else:
        assert work == 2 * each * out.size


def test_a_lost_share_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "gate.json"
    table.write_text("{}")
    monkeypatch.setattr(gate, "COMMITTED", table)
    shares = {"matmul f32": 0.9, "softmax": 0.8}
    monkeypatch.setattr(gate, "share", lambda case, *_: shares[case.name])
    monkeypatch.setattr(gate, "peaks", lambda *_: dict.fromkeys(("read", "fma", "dot4")))
    command = ["bench", "gate", "--only", "matmul f32,softmax"]
    shares["gradient of a matmul f32"] = 0.5

    assert invoke(command) == 0
    assert "no shares are committed" in capsys.readouterr().err
    assert invoke([*command, "--write"]) == 0
    assert invoke(command) == 0
    shares["softmax"] = 0.4
    capsys.readouterr()
    assert invoke([*command, "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["results"]["softmax"] == 0.4
    assert "softmax: 0.40 of its peak, where 0.80 is committed" in said.err
    assert "matmul" not in said.err


def test_the_committed_table_names_cases_that_exist() -> None:
    names = {case.name for case in gate_cases.cases()}
    for machine, shares in gate.committed().items():
        assert set(shares) == names, machine
        assert all(0 < share < 1.5 for share in shares.values())


def test_a_share_that_is_not_a_number_is_lost() -> None:
    assert gate.lost({"a": float("nan")}, {"a": 0.5})
