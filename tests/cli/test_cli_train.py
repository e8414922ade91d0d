"""`weft train`, `weft merge` and the model in the box as a user meets them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_cli import failed, weft

from weft.cli.main import invoke
from weft.importers.safetensors import SafetensorsFile, save_file

CONFIG = """
[model]
hidden = 16
layers = 1
heads = 2
[data]
paths = ["{text}"]
[tokenizer]
vocab = 300
[train]
steps = {steps}
batch = 2
context = 16
device = "cpu"
[output]
folder = "{run}"
eval_every = 0
sample_every = 0
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    text, path = tmp_path / "text.txt", tmp_path / "config.toml"
    text.write_text("a warp and a weft and a loom to hold them\n" * 200)
    run = tmp_path / "run"
    path.write_text(CONFIG.format(text=text.as_posix(), run=run.as_posix(), steps=6))
    return path


def test_train_writes_a_model_that_runs_and_logs_what_compiled(
    config: Path, tmp_path: Path
) -> None:
    result = weft("train", str(config), env={"WEFT_CACHE": str(tmp_path / "cache")})
    assert result.returncode == 0, result.stderr.decode()
    folder = result.stdout.decode().strip()
    assert folder.endswith("model")
    out = weft("run", folder, "a warp", "--max-new-tokens", "3", "--device", "cpu")
    assert out.returncode == 0 and out.stdout
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    steps = [r for r in map(json.loads, lines) if "loss" in r]
    assert [("compile_s" in r) for r in steps] == [True, *[False] * 5]
    assert all(r["tokens_per_s"] > 0 for r in steps)


def test_train_help_has_an_example() -> None:
    for command in ("train", "merge"):
        result = weft(command, "--help")
        assert result.returncode == 0 and b"Example" in result.stdout


def test_init_writes_an_example_once(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    assert weft("train", "--init", str(path)).returncode == 0
    assert "[optimizer]" in path.read_text()
    assert "already" in failed(weft("train", "--init", str(path)), 2)


def test_wrong_settings_are_wrong_usage(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text().replace("steps =", "stpes ="))
    assert "did you mean steps?" in failed(weft("train", str(config)), 2)
    assert "cannot be read" in failed(weft("train", str(tmp_path / "none.toml")), 2)
    config.write_text("[train\n")
    assert "not TOML" in failed(weft("train", str(config)), 2)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_an_interrupt_saves_and_resume_goes_on(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text().replace("steps = 6", "steps = 100000"))
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", "train", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    log = tmp_path / "run" / "log.jsonl"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and (not log.exists() or log.read_text().count("\n") < 4):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    text = err.decode()
    assert process.returncode == 130 and "interrupted after step" in text
    assert "Traceback" not in text and "--resume" in text
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    saved = next((tmp_path / "run").glob("step-*"))
    assert int(saved.name[5:]) == steps[-1]
    more = weft("train", str(config), "--resume", "--until", str(steps[-1] + 2))
    assert more.returncode == 0, more.stderr.decode()
    again = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert again == [*steps, steps[-1] + 1, steps[-1] + 2]


def test_what_a_resumed_run_says(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train(*more: str) -> str:
        assert invoke(["train", str(config), *more]) == 0
        return capfd.readouterr().err

    go_on = f"Go on with: weft train {config} --resume"
    assert f"weft: stopped after step 2 of 6. {go_on}\n" in train("--until", "2")
    assert "resuming from step 2 of 6\n" in (said := train("--resume"))
    assert "stopped" not in said and "finished" not in said
    assert "weft: finished: 6 of 6 steps were done before\n" in train("--resume")


def test_a_second_interrupt_still_says_what_was_saved(
    config: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from weft.training import loop

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop._Run, "_finish", interrupted)  # when the checkpoint is there
    assert invoke(["train", str(config), "--until", "2"]) == 130
    err = capfd.readouterr().err
    assert "step-000002 is the last checkpoint. Go on with: weft train" in err
    monkeypatch.setattr(loop, "train", interrupted)
    config.write_text(config.read_text().replace("/run", "/other"))
    assert invoke(["train", str(config)]) == 130
    assert capfd.readouterr().err == "weft: interrupted\n"


def test_merge_without_an_adapter(config: Path, tmp_path: Path) -> None:
    error = failed(weft("merge", str(tmp_path), str(tmp_path), "-o", str(tmp_path / "out")))
    assert "adapter_config.json" in error


def test_merging_into_another_base_is_noticed(
    config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain, run = config.read_text(), (tmp_path / "run").as_posix()

    def train(name: str, text: str) -> Path:
        config.write_text(text.replace(run, (tmp_path / name).as_posix()))
        assert invoke(["train", str(config)]) == 0
        return tmp_path / name

    def merge(base: Path, out: str) -> str:
        capfd.readouterr()
        assert invoke(["merge", str(base), str(low), "-o", str(tmp_path / out)]) == 0
        return capfd.readouterr().err

    base = train("base", plain) / "model"
    other = train("other", plain.replace("[train]", "[train]\nseed = 1")) / "model"
    sizes, start = "hidden = 16\nlayers = 1\nheads = 2", f'from = "{base.as_posix()}"'
    low = train("low", plain.replace(sizes, start) + "[lora]\nrank = 2\n") / "adapter"
    assert merge(base, "merged") == ""
    assert f"{other} does not hold the weights that {low} was trained on" in merge(other, "a")
    moved = base.rename(tmp_path / "moved")
    assert merge(moved, "b") == ""  # the same weights under another name
    weights = low / "adapter_model.safetensors"
    save_file(weights, {k: v.copy() for k, v in SafetensorsFile(weights).items()})  # as PEFT does
    assert f"and {moved} has another name" in merge(moved, "c")
    assert merge(moved.rename(base), "d") == ""


def test_run_with_a_folder_alone_asks_for_a_prompt(tmp_path: Path) -> None:
    assert "PROMPT" in failed(weft("run", str(tmp_path)), 2)


def test_run_with_a_prompt_alone_takes_the_model_in_the_box() -> None:
    result = weft("run", "def fibonacci(n):", "--device", "cpu", "--max-new-tokens", "30")
    text = result.stdout.decode()
    assert result.returncode == 0 and "\n    " in text
    plain = weft("run", "def fibonacci(n):", "--device", "cpu", "--repetition-penalty", "1")
    assert plain.returncode == 0 and not plain.stdout.decode().startswith(text)


def test_the_model_in_the_box_is_small_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.core.errors import ModelError
    from weft.hub import box

    folder = box.box_folder()
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 6_000_000
    monkeypatch.setattr(box, "FILES", (*box.FILES, "nothing.json"))
    with pytest.raises(ModelError, match=r"nothing\.json is missing"):
        box.box_folder()


def test_an_empty_prompt_is_not_taken_for_a_folder() -> None:
    assert "prompt is empty" in failed(weft("run", ""), status=2)


def test_a_first_run_says_its_speed_with_and_without_compiling(tmp_path: Path) -> None:
    """Nothing is in the cache at first; then little is left to do."""
    env = {"WEFT_CACHE": str(tmp_path)}
    args = ("run", "def f(", "--device", "cpu", "--max-new-tokens", "20")
    first, second = (weft(*args, env=env).stderr.decode() for _ in range(2))
    pattern = r", ([\d.]+) tok/s\s\(([\d.]+) with ([\d.]+) s of compiling\)$"
    found = re.search(pattern, first.strip())
    assert found is not None, first
    rate, whole, compiling = map(float, found.groups())
    assert rate > whole and compiling > 0
    # 19 tokens after the first: both speeds and the time belong together
    assert abs(19 / whole - 19 / rate - compiling) < 0.02 + 0.1 * compiling
    assert re.search(r", [\d.]+ tok/s(\s\(.*\))?$", second.strip()), second


def test_json_says_what_compiling_took(tmp_path: Path) -> None:
    env = {"WEFT_CACHE": str(tmp_path)}
    args = ("run", "def f(", "--device", "cpu", "--max-new-tokens", "20", "--json")
    got = json.loads(weft(*args, env=env).stdout)
    assert 0 < got["compile_s"] < got["generate_s"]
    rest = got["generate_s"] - got["compile_s"]
    assert abs(got["tok_s"] - len(got["ids"]) / rest) < 0.1 * got["tok_s"]
