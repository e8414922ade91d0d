"""scripts/gpu_check without a GPU: verdicts, report, what is kept, and both sides on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gpulab import cases, check, clock, measure, parts, report, targets  # noqa: E402
from gpulab.cases import Case  # noqa: E402
from gpulab.targets import COMPILED, EAGER, HOST, OWN, WEFT  # noqa: E402
from gpulab.worker import Clock, Store, Worker, command  # noqa: E402


def result(ms: float, **more: Any) -> dict[str, Any]:
    return {
        "median_ms": ms,
        "min_ms": ms,
        "max_ms": ms,
        "n": 3,
        "rounds_ms": [ms, ms * 1.1],
        **more,
    }


def case_of(case: Case, **results: dict[str, Any]) -> dict[str, Any]:
    return {"part": case.part, "op": case.op, "dtype": case.dtype, "shape": list(case.shape),
            "unit": case.unit, "work": case.work, "done": True, "results": results}  # fmt: skip


@pytest.fixture
def data() -> dict[str, Any]:
    """What a whole run leaves: weft at 1 ms, PyTorch at 2, torch.compile at 0.5, the CPU at 10."""
    found = {}
    for case in cases.every().values():
        rate = {case.unit: case.work / 1e6} if case.unit else {"tok_s": 100.0}
        both = {EAGER: result(2.0), COMPILED: result(0.5)}
        if case.op == "matmul":
            both |= {OWN: result(4.0), HOST: result(10.0)}
        mine = {WEFT: result(1.0, by="cuBLASLt", **rate)}
        found[case.name] = case_of(case, **mine, **both)
    samples = [{"step": 100 * i, "device_mib": 900.0, "process_mib": 500.0} for i in range(1, 11)]
    return {
        "run": "cuda", "quick": False, "started": "now", "cases": found,
        "machine": {
            "weft": {"name": "A GPU", "driver": "1"}, "torch": {"version": "2"}, "python": "3",
            "roofline": {"copy_gbs": 2000.0, "gflops": 1.0}, "torch_copy": {"gbs": 2500.0},
            "work": {"flops_per_token": 2e9, "weight_bytes": 2e9, "cache_bytes": 1e4},
        },
        "moved": {"matmul_512": {"upload_ms": 3.0, "download_ms": 1.0}},
        "parts": {"matmul": {"state": "done", "seconds": 9.0, "why": ""}},
        "check": {"kernels": {"state": "failed", "ok": 3, "fail": 1, "skip": 0,
                              "failures": ["add: 1 of 4 differ | worst"]}},
        "sanitizer": {"memcheck": {"state": "clean", "summary": ["0 errors"], "first": []}},
        "bench": {"ops": {"state": "ok"}},
        "tune": {"classes": [{"kind": "matmul", "class": "x", "config": {"side": 8}, "ms": 1.0,
                              "default_ms": 2.0}]},
        "soak": {"steps": 1000, "samples": samples},
    }  # fmt: skip


def by_name(data: dict[str, Any]) -> dict[str, targets.Verdict]:
    return {v.what: v for v in targets.verdicts(data)}


def test_every_goal_of_the_issue_is_a_case(data: dict[str, Any]) -> None:
    found = by_name(data)
    for n in (512, 1024, 2048, 4096, 8192):
        for name in (f"matmul_{n}", f"matmul_bf16_{n}"):
            assert found[f"{name}: speed over PyTorch"].value == 2.0
            assert found[f"{name}: GPU over CPU, transfers apart"].value == 10.0
    for op in ("softmax_4096x4096", "layernorm_8192x8192", "gelu_erf_16m", "chain_4096x4096"):
        assert found[f"{op}: speed over PyTorch eager"].outcome == "met"
        assert found[f"{op}: speed over torch.compile"].outcome == "missed"
    for d in (64, 128):
        assert found[f"attn_causal_bf16_1x16x4096x{d}: speed over SDPA"].goal == 0.6
    share = found["softmax_4096x4096: share of copy bandwidth"].value
    assert share == pytest.approx(8 * 4096**2 / 1e6 / 2500)
    decode = found["llama-1b_tg64: bytes read over copy bandwidth"].value
    assert decode == pytest.approx((2e9 + 32 * 1e4) * 64 / 1e-3 / 1e9 / 2500)
    prefill = found["llama-1b_pp2048: FLOPs over the bf16 matmul rate"].value
    best = 2 * 8192**3 / 0.5e-3 / 1e9
    assert prefill == pytest.approx(2e9 * 2048 / 1e-3 / 1e9 / best)
    assert found["gpt2-124m_train_bf16: speed over torch.compile"].outcome == "missed"
    assert found["gpt2-124m_train_bf16: memory steady over 1000 steps"].outcome == "met"
    assert "own kernels 0.50" in found["matmul_512: speed over PyTorch"].note
    moved = found["matmul_512: GPU over CPU, transfers apart"].note
    assert moved.startswith("2.00 with operands moved")


def test_growing_memory_misses_and_a_short_run_says_nothing(data: dict[str, Any]) -> None:
    name = "gpt2-124m_train_bf16: memory steady over 1000 steps"
    data["soak"]["samples"][-1]["device_mib"] = 950.0
    assert by_name(data)[name].outcome == "missed"
    data["soak"]["steps"] = 700
    assert by_name(data)[name].outcome == "not measured"


def test_nothing_measured_is_no_verdict() -> None:
    assert {v.outcome for v in targets.verdicts({})} == {"not measured"}


def test_the_report_says_all_of_it(data: dict[str, Any], tmp_path: Path) -> None:
    data["cases"]["matmul_512"]["results"]["Triton"] = {"error": "no such thing"}
    report.write(tmp_path, data)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for said in ("# weft on A GPU", "## Targets", "| missed |", "- kernels: add: 1 of 4",
                 "| memcheck | clean | 0 errors |", "matmul_512, Triton: no such thing", "side",
                 "![products](products.png)", "differ by up to 10%"):  # fmt: skip
        assert said in text, said
    for picture in ("products", "ratios", "bandwidth"):
        assert (tmp_path / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_of_next_to_nothing(tmp_path: Path) -> None:
    report.write(tmp_path, {"run": "cuda", "machine": {"weft": {"error": "no driver"}}})
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "no driver" in text and "0 met, 0 missed" in text and not list(tmp_path.glob("*.png"))


# -- a run ----------------------------------------------------------------------------------------


def run(out: Path, *args: str) -> int:
    return check.main(["--device", "cpu", "--quick", "--out", str(out), *args])


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Parts that only note that they ran: "one", "two" (interrupted once) and "bad"."""
    seen: list[tuple[str, float]] = []

    def part(name: str) -> Any:
        def go(lab: Any, seconds: float) -> str:
            seen.append((name, seconds))
            if name == "two" and len(seen) == 2:
                raise KeyboardInterrupt
            if name == "bad":
                raise RuntimeError("broken")
            return ""

        return go, 10

    monkeypatch.setattr(check, "PARTS", {n: part(n) for n in ("devices", "two", "three", "bad")})
    return seen


def test_what_was_interrupted_goes_on(played: list[tuple[str, float]], tmp_path: Path) -> None:
    assert run(tmp_path, "--only", "devices,two,three", "--time", "60") == 1
    assert played == [("devices", 20.0), ("two", 20.0)]
    kept = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert {n: p["state"] for n, p in kept.items()} == {"devices": "done", "two": "interrupted"}
    assert (tmp_path / "report.md").exists()
    assert run(tmp_path, "--only", "devices,two,three") == 0
    assert [name for name, _ in played[2:]] == ["two", "three"]
    assert run(tmp_path, "--only", "two", "--again") == 0 and len(played) == 5


def test_a_broken_part_is_said(
    played: list[tuple[str, float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--only", "bad,three") == 1
    assert [name for name, _ in played] == ["devices", "bad", "three"]
    assert "RuntimeError: broken" in capsys.readouterr().err
    assert check.main(["--device", "cuda", "--out", str(tmp_path)]) == 2  # another device's


def test_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUT", raising=False)
    for argv in (["--only", "nosuch", "--out", "x"], []):
        with pytest.raises(SystemExit) as caught:
            check.main(argv)
        assert caught.value.code == 2


# -- contenders -----------------------------------------------------------------------------------


def test_weft_as_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'scripts'}")
    worker = Worker("weft_side", ["cpu", str(tmp_path), "quick"], tmp_path / "log.txt")
    try:
        got = worker.ask(60, run="matmul_128", variant="weft", budget=0.01)
        assert got["median_ms"] > 0 and got["gflops"] > 0 and got["by"] == "own kernels"
        assert "KeyError" in worker.ask(60, run="nosuch", variant="weft", budget=0.01)["error"]
        assert worker.ask(60, drop="matmul_128") == {}
        assert worker.ask(60, ask="moved", case="matmul_128")["upload_ms"] > 0
        assert "no answer" in worker.ask(0.1, ask="roofline")["error"]
        assert worker.process is None  # and starts anew
        assert worker.ask(60, ask="info")["id"] == "cpu:0"
    finally:
        worker.close()


def test_a_worker_that_ends_is_said(tmp_path: Path) -> None:
    worker = Worker("nosuch_side", [], tmp_path / "log.txt")
    assert "the process ended" in worker.ask(60, ask="info")["error"]


def test_the_peers_agree_with_weft_on_what_is_computed() -> None:
    torch = pytest.importorskip("torch")
    import numpy as np
    from gpulab import torch_side, weft_side

    import weft

    rng = np.random.default_rng(0)
    for case in (cases.matmul(24, "f32"), *(cases.rows(op, 6, 40) for op in cases.ROWS),
                 cases.attention(2, 16, 8, "f32")):  # fmt: skip
        arrays = [rng.standard_normal(s, np.float32) for s in case.operands]
        mine = weft.compile(weft_side.OPS[case.op])(*arrays).numpy()
        theirs = torch_side.OPS[case.op](*map(torch.from_numpy, arrays)).numpy()
        np.testing.assert_allclose(mine, theirs, atol=1e-4, err_msg=case.name)


def test_torch_as_a_side() -> None:
    pytest.importorskip("torch")
    from gpulab.torch_side import Torch

    side = Torch("cpu", "", True)
    assert side.variants("softmax_512x768")["variants"] == ["eager", "compile"]
    got = side.answer({"run": "gpt-tiny_train_bf16", "variant": "eager", "budget": 0.01})
    assert got["tok_s"] > 0 and got["loss_last"] < got["loss_first"]


def test_rounds_take_turns_and_failures_leave_the_others(tmp_path: Path) -> None:
    asked = []

    class Stub:
        process = None

        def ask(self, seconds: float, **message: Any) -> dict[str, Any]:
            asked.append(message["variant"])
            if message["variant"] == "b":
                return {"error": "out of memory"}
            return {"median_ms": float(len(asked)), "min_ms": 1.0, "max_ms": 9.0, "n": 2}

    stub: Any = Stub()
    three = [measure.Contender(n, stub, n) for n in "abc"]
    store, case = Store(tmp_path), cases.matmul(8, "f32")
    left = measure.run(store, [case], lambda c: three, Clock(30), lambda line: None)
    assert left == "" and asked == ["a", "b", "c", "a", "c", "a", "c"]
    found = Store(tmp_path).data["cases"]["matmul_8"]
    assert found["results"]["a"]["median_ms"] == 4.0 and found["results"]["a"]["n"] == 6
    assert found["results"]["b"] == {"error": "out of memory"} and found["done"]
    assert measure.run(store, [case], lambda c: three, Clock(30), lambda line: None) == ""
    assert len(asked) == 7  # it is there already
    late = measure.run(
        store, [cases.matmul(9, "f32")], lambda c: three, Clock(0), lambda line: None
    )
    assert late == "time was up before matmul_9"
    store.data["cases"]["matmul_8"]["results"][WEFT] = {"error": "out of memory"}
    broken = measure.run(store, [case], lambda c: three, Clock(0), lambda line: None)
    assert broken == "time was up before matmul_8; weft failed in matmul_8 (see Times)"
    assert measure.run(store, [case], lambda c: three, Clock(9), lambda line: None) == ""


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    code = "import time; print('so far', flush=True); time.sleep(60)"
    status, out = command([sys.executable, "-c", code], 1.5, tmp_path / "log.txt")
    assert status is None and out == "so far\n"


def test_levels_are_checked_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(parts, "LEVELS", ("device",))
    lab = parts.Lab(Store(tmp_path), "cpu", True, tmp_path, lambda line: None)
    assert parts.check(lab, 60) == ""
    found = Store(tmp_path).data["check"]["device"]
    assert found["state"] == "ok" and found["ok"] > 5 and found["failures"] == []
    monkeypatch.setattr(parts, "LEVELS", ("device", "kernels"))
    assert parts.check(lab, 0) == "kernels: cut off"
    assert parts._checked(3, "no JSON")["state"] == "failed"


def test_sanitizer_outcomes() -> None:
    bad = "========= Invalid __global__ read of size 4\n========= ERROR SUMMARY: 1 error"
    assert parts._sanitized(0, "========= ERROR SUMMARY: 0 errors")["state"] == "clean"
    assert parts._sanitized(77, bad)["state"] == "errors"
    assert parts._sanitized(None, bad)["errors_so_far"] == 1
    assert parts._sanitized(3, "")["state"] == "failed"


def test_batches_are_as_long_as_they_need_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(clock.time, "perf_counter", lambda: len(calls) * 1e-8)
    times = clock.measure(lambda: calls.append(1), lambda: None, 0.0, warm=1)
    assert len(times) == 3 and len(calls) == 1 + 1 + 3 * 1000
    assert clock.summary([0.002, 0.001, 0.004], "gbs", 4e6)["gbs"] == 2.0
