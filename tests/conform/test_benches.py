"""`weft bench ops --sizes` and `weft bench train`: what they print adds up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import weft
from weft.backends import registry
from weft.backends.llvm import gpu_target, offline
from weft.bench import model as bench_model, profile, roofline, side_by_side, train as bench_train
from weft.bench.model import work
from weft.bench.roofline import Roofline, copy_kernel, tile_kernel, unit_kernel
from weft.bench.timing import peak_rss_mib, time_calls
from weft.cli.bench import bench
from weft.conform import gradients
from weft.conform.gpt import GPT, GptSizes, Trainer
from weft.conform.harness import run_kernel
from weft.conform.models import CONFIGS
from weft.conform.report import DeviceReport, run_checks
from weft.core.caps import PRESETS
from weft.core.errors import DeviceError, LimitError, UsageError
from weft.kernel.ir import Kernel
from weft.kernel.verify import verify
from weft.models import random_folder
from weft.program.device import Device
from weft.program.program import Dispatch

TINY = GptSizes(layers=1, width=64, heads=1, context=16, batch=2, vocab=32)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("128..1024", [128, 256, 512, 1024]), ("3..13", [3, 6, 12]), ("7, 100", [7, 100]), ("5", [5])],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert side_by_side.parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "a", "0..4", "9..3", "1..2..3", "-5", "100000", "128.."])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"--sizes takes 128\.\.1024"):
        side_by_side.parse_sizes(text)


def test_side_by_side(tmp_path: Path) -> None:
    result = side_by_side.run(["cpu", "interp"], [4, 8], only=["matmul", "gelu"], budget=0.01)
    rows = result["results"]
    assert len(rows) == 8 and [d["software"] for d in result["devices"]] == [False, True]
    for first, second in zip(rows[::2], rows[1::2]):
        assert (first["op"], first["size"]) == (second["op"], second["size"])
        assert first["winner"] != second["winner"] and "ok" not in first
        assert second["ok"] and second["of_tolerance"] <= 1 and second["max_abs"] < 1e-5
    matmul = rows[0]
    assert matmul["gflops"] == round(2 * 4**3 / (matmul["median_ms"] * 1e6), 2)
    table = side_by_side.table_rows(result)
    assert table[1][2] == "interp:0 (software)" and table[0][9] == "reference"
    side_by_side.draw(result, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = side_by_side._measure

    def wrong(op: Any, n: int, device: Any, *rest: Any) -> Any:
        row, result = measure(op, n, device, *rest)
        return row, result + 1.0 * (device.info.kind == "interp")

    monkeypatch.setattr(side_by_side, "_measure", wrong)
    given = ["ops", "--sizes", "4", "--only", "gelu", "--device", "interp", "--json"]
    outcome = CliRunner().invoke(bench, given)
    assert isinstance(outcome.exception, DeviceError)
    assert "gelu 4 on interp" in str(outcome.exception)
    rows = json.loads(outcome.stdout.splitlines()[0])["results"]
    assert [r.get("ok") for r in rows] == [None, False]


def test_what_is_too_large_for_a_device_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure = side_by_side._measure

    def limited(op: Any, n: int, device: Any, *rest: Any) -> Any:
        if n > 4 and device.info.kind == "interp":
            raise LimitError("too many bytes")
        return measure(op, n, device, *rest)

    monkeypatch.setattr(side_by_side, "_measure", limited)
    result = side_by_side.run(["cpu", "interp"], [4, 8], only=["gelu"], budget=0.01)
    assert [("refused" in r, r["winner"]) for r in result["results"]][2:] == [
        (False, True), (True, False)
    ]  # fmt: skip
    assert side_by_side.table_rows(result)[3][9] == "too large"
    side_by_side.draw(result, tmp_path / "speed.png")


def test_the_training_step_adds_up() -> None:
    options = bench_train.TrainBenchOptions(
        shape=TINY, steps=3, warm=1, startup=False, checkpoint=True
    )
    result = bench_train.run(options, lambda: Roofline(100.0, 10.0), lambda line: None)
    step = result["results"]["step"]
    assert step["n"] == 3 and result["loss_last"] < result["loss_first"]
    assert abs(result["loss_first"] - np.log(TINY.vocab)) < 0.5
    assert step["tok_s"] == round(TINY.tokens / step["median_ms"] * 1e3, 1)
    assert result["params_m"] == round(sum(t.size for t in GPT(TINY).parameters()) / 1e6, 3)
    rows = bench_train.profile(options, Roofline(100.0, 10.0), None)
    assert rows[0]["ms"] >= rows[-1]["ms"] and abs(sum(r["share"] for r in rows) - 1) < 0.01


def test_the_matmul_flops_are_those_of_its_products() -> None:
    trainer = Trainer(TINY, "cpu")
    trainer.step()
    (program,) = trainer.compiled.programs()
    kernels = [program.kernels[s.kernel] for s in program.steps if isinstance(s, Dispatch)]
    made = sum(k.flops for k in kernels if k.name.startswith("matmul"))
    linear = 3 * 2.0 * TINY.tokens * (12 * TINY.width**2 + TINY.vocab * TINY.width)
    assert linear <= made <= linear * 1.05  # what is fused into them comes on top
    assert linear < TINY.matmul_flops < linear * 1.1  # and attention is a kernel of its own


def test_checkpoints_shrink_the_arena_and_change_nothing() -> None:
    deep = GptSizes(layers=4, width=32, heads=1, context=32, batch=2, vocab=32)
    kept, again = Trainer(deep, "cpu"), Trainer(deep, "cpu", checkpoint=True)
    losses = [[t.step() for _ in range(2)] for t in (kept, again)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert again.arena_bytes() < 0.5 * kept.arena_bytes()


def test_gradients_are_part_of_the_conformance_levels() -> None:
    device, report = registry.get("interp:webgpu"), DeviceReport("x", "y")
    cases = [*gradients.primitives(device), *gradients.composites(device)]
    names = " ".join(name for name, _ in cases)
    for op in ("tanh", "pow", "slice", "max", "dot", "gather", "scatter_add", "update", "sort",
               "layer_norm", "cross_entropy", "attention"):  # fmt: skip
        assert f"gradient of {op}" in names
    some = [c for c in cases if "bfloat16" in c[0] or "sort" in c[0]][:8]
    list(run_checks(report, "primitives", iter(some)))
    assert report.ok, [c for c in report.cases if c.status == "fail"]


def test_products_in_matrix_registers_are_held_against_their_own_peak() -> None:
    roof = Roofline(100.0, 10.0, 1000.0)
    assert roof.share(2e9, 0, 0.04) == 0.5
    assert roof.share(2e9, 0, 0.04, tiles=True) == 0.05
    assert Roofline(100.0, 10.0).share(2e9, 0, 0.04, tiles=True) == 0.5
    kernel, flops = tile_kernel(3)
    verify(kernel)
    assert flops == 3 * 2048 * 4 * 2 * 16 * 16 * 32


@pytest.mark.parametrize("preset", ["cuda", "hip-wave64", "hip-wave32"])
def test_kernels_that_measure_a_gpu(preset: str) -> None:
    caps = PRESETS[preset]
    kernel, flops = unit_kernel(caps, 3)
    verify(kernel)
    assert flops == 3 * 4 * 2048 * 4 * 2 * 16 * 16 * 16
    (copy,) = check_kernels(registry.get(f"interp:{preset}"), copy_kernel(caps, 1 << 12))
    np.testing.assert_array_equal(copy, np.arange(1 << 12, dtype=np.float32))
    for name in {"cuda": ("sm_80", "sm_90"), "hip-wave64": ("gfx942",)}.get(preset, ("gfx1100",)):
        assert offline.code(unit_kernel(gpu_target(name).caps, 3)[0], gpu_target(name))


def check_kernels(device: Device, kernel: Kernel) -> list[np.ndarray]:
    """The second buffer after the kernel ran over 0, 1, 2, ... in the first."""
    n = kernel.buffers[0].size
    return run_kernel(device, kernel, [np.arange(n, dtype=np.float32), np.zeros(n, np.float32)])[1:]


def test_calls_of_an_asynchronous_device_are_timed_in_batches() -> None:
    seen: list[str] = []
    times = time_calls(
        lambda: seen.append("call"), 4, 0.0, warm=1, least=2, sync=lambda: seen.append("sync")
    )
    batches = [len(part) for part in "".join("c" if x == "call" else "|" for x in seen).split("|")]
    assert len(times) == 2 and batches[:2] == [1, 1] and batches[-1] == 0 and len(batches) == 5
    assert batches[2] == batches[3] <= 1000  # as many as the clock says fit a batch
    seen.clear()
    assert len(time_calls(lambda: seen.append("call"), 4, 0.0, warm=1, least=2)) == 2
    assert seen == ["call"] * 3


def test_a_copy_on_the_cpu() -> None:
    device = registry.get("cpu")
    n = 1024 * device.caps.lanes
    (copied,) = check_kernels(device, copy_kernel(device.caps, n))
    np.testing.assert_array_equal(copied, np.arange(n, dtype=np.float32))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's count of a program's own memory")
def test_the_peak_of_a_program_is_its_own() -> None:
    """Not that of the process that started it, which Linux's getrusage begins with."""
    code = "from weft.bench.timing import peak_rss_mib; print(peak_rss_mib())"
    held = np.ones(20 << 20)  # 160 MiB
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert 5 < float(done.stdout) < 120 < peak_rss_mib(), held.shape


def test_no_table_shows_more_than_a_device_can_do() -> None:
    """A share above the most says nothing of a kernel: caches, or less work than at full size."""
    steps = [
        profile.StepTime("k", "gather", 1e-6, 0, 22_130),
        profile.StepTime("m", "dot", 1.0, 1, 1),
    ]
    rows = profile.rows(profile.totals(steps, roofline.Roofline(1.0, 1.0)))
    assert [row[-2] for row in rows] == ["0.00", "-"]
    shown = [roofline.shown(x) for x in (0.5, 1.0, 1.004, 1.006, 22.13)]
    assert shown == ["0.50", "1.00", "1.00", "-", "-"]


@pytest.mark.parametrize("quant", [None, "int8"])
def test_a_token_reads_the_experts_it_uses(tmp_path: Path, quant: str | None) -> None:
    found = []
    for used in (1, 2):
        config = {**CONFIGS["mixtral"], "num_experts_per_tok": used}
        folder = random_folder(tmp_path / str(used), config, 1)
        found.append(work(weft.load(folder, device="interp", quant=quant)))
    (flops, stream, _), (more, longer, _) = found
    layers, size = config["num_hidden_layers"], config["hidden_size"] * config["intermediate_size"]
    assert more - flops == 2 * 3 * layers * size  # gate, up, down
    assert 0 < longer - stream <= 3 * layers * size * 4
    whole = sum(f.stat().st_size for f in (tmp_path / "2").glob("*.safetensors"))
    assert longer < whole


def test_a_model_bench_names_its_device_and_precision() -> None:
    """`auto` and a default of weft's own are not what a reader of the figures needs."""
    o = bench_model.ModelBenchOptions("box", "auto", prompt=4, gen=2, reps=1, quant="int8")
    found = bench_model.run(o, lambda: Roofline(1.0, 1.0), lambda said: None)
    assert ":" in found["device"]
    assert found["precision"].startswith("packed") and "int8 inputs" in found["precision"]
