"""Training on several ranks: the bits of one, refusals by name, and going on after a loss."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from rows import few
from several import environment, followers, needs_mpi, together, written
from train_kit import tiny

from weft.core.errors import ModelError, UsageError
from weft.importers.safetensors import SafetensorsFile
from weft.ranks import join, meeting as ranks_meeting
from weft.training import checkpoints as ck, loop, meeting, parts
from weft.training.report import read_log
from weft.training.settings import TrainingSettings
from weft.training.shard import check_ranks
from weft.training.shared import ALONE, SharedWork, follow, leading

WORDS = ["the", "loom", "holds", "warp", "and", "weft", "while", "shuttles", "carry", "thread"]
USUAL: dict[str, dict[str, Any]] = {
    "model": {"dropout": 0.1, "layers": 2},
    "train": {"steps": 6, "accumulate": 5},
    "output": {"eval_every": 3, "eval_batches": 3, "checkpoint_every": 2, "keep": 9},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    rng = np.random.default_rng(0)
    path.write_text("\n".join(" ".join(rng.choice(WORDS, 12)) for _ in range(400)))
    return path


def config(text: Path, run: Path, **sections: dict[str, Any]) -> TrainingSettings:
    names = USUAL | sections
    return tiny(text, run, **{k: USUAL.get(k, {}) | sections.get(k, {}) for k in names})


def numbers(run: Path) -> list[Any]:
    kept = ("step", "loss", "norm", "lr", "eval_loss")
    return [{k: r[k] for k in kept if k in r} for r in read_log(run / "log.jsonl")]


def assert_same_run(a: Path, b: Path, step: int) -> None:
    """Every number of the log of `a`, and every bit of the checkpoint after `step`."""
    left, right = ({(r["step"], "loss" in r): r for r in numbers(f)} for f in (a, b))
    assert len(left) > step and left == {key: right.get(key) for key in left}
    one, two = (folder / ck.name_of(step) for folder in (a, b))
    names = sorted(p.name for p in one.glob("*.safetensors"))
    assert ck.OPTIMIZER in names and names == sorted(p.name for p in two.glob("*.safetensors"))
    for name in names:
        mine, other = SafetensorsFile(one / name), SafetensorsFile(two / name)
        assert mine.keys() == other.keys()
        assert all(mine[k].tobytes() == other[k].tobytes() for k in mine), name


# -- what the ranks do -----------------------------------------------------------------------------


def case_train() -> None:
    """Trains as RUN says: the text, the folder, sections, and which way."""
    text, run, sections, way = json.loads(os.environ["RUN"])
    ranks = join()
    limit, tamper, kill = way.pop("piece", 0), way.pop("tamper", ""), way.pop("kill", 0)
    if limit:
        parts.PIECE = limit
    if tamper == "settings" and ranks.rank == 1:
        sections["optimizer"] = {"lr": 0.5}
    if tamper == "weft" and ranks.rank == 1:
        ranks_meeting.source = lambda: "0" * 16
    if tamper == "weights" and ranks.rank == 1:
        sections["train"]["seed"] = 1
        meeting.differences = lambda old, new: []
    if kill and ranks.rank == 1:
        from weft.training.shard import Shard

        step, left = Shard.step, [kill]

        def dying(self: Any, *args: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, *args)

        Shard.step = dying  # type: ignore[method-assign]
    settings = config(Path(text), Path(run), **sections)
    with ranks.leaving():
        if ranks.rank:
            sys.exit(follow(lambda: settings, ranks))
        with leading(ranks):
            loop.train(settings, ranks=ranks, **way)


def trained(
    count: int, text: Path, run: Path, sections: dict[str, Any] | None = None, **way: Any
) -> tuple[int, str]:
    given = json.dumps([str(text), str(run), sections or {}, way])
    status, _, err = together(count, __file__, "case_train", RUN=given)
    return status, err


# -- one process: the ranks' Programs give the bits of the single one ------------------------------

HALF = {"train": {"precision": "float16", "accumulate": 4, "steps": 6}}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"model": {"family": "gpt2", "dropout": 0.1, "layers": 2}},
    "untied": {"model": {"tied": False, "dropout": 0.0}},
    "bfloat16": {"train": {"precision": "bfloat16", "accumulate": 3, "steps": 4}},
    "float16": HALF,
    "checkpointing": {"train": {"checkpointing": True, "accumulate": 7, "steps": 4}},
    "no clip": {"optimizer": {"clip": 0.0}},
}


def shared_alone(*given: Any) -> Any:
    """`lead`, of one rank, as if there were others."""
    settings, trained_, _, device, ranks = given
    return SharedWork(trained_.model, settings, device, ranks)


@pytest.mark.parametrize("piece", few([0, 100], 100))
@pytest.mark.parametrize("kind", few(sorted(KINDS), "float16"))
def test_the_programs_of_ranks_have_the_bits_of_the_single_one(
    kind: str, piece: int, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if piece:
        monkeypatch.setattr(parts, "PIECE", piece)
    sections = KINDS[kind]
    steps = config(text, tmp_path, **sections).train.steps
    loop.train(config(text, tmp_path / "one", **sections))
    monkeypatch.setattr(loop, "lead", shared_alone)
    loop.train(config(text, tmp_path / "parts", **sections))
    assert_same_run(tmp_path / "one", tmp_path / "parts", steps)


def test_adapters_have_the_same_bits_too(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.train(config(text, tmp_path / "base"))
    sections = {
        "model": {"from": str(tmp_path / "base" / "model"), "layers": 5, "dropout": 0.1},
        "lora": {"rank": 2, "dropout": 0.1},
    }
    loop.train(config(text, tmp_path / "one", **sections))
    monkeypatch.setattr(loop, "lead", shared_alone)
    loop.train(config(text, tmp_path / "parts", **sections))
    assert_same_run(tmp_path / "one", tmp_path / "parts", 6)


def test_conversations_have_the_same_bits_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a step differ in how many tokens count, so in their shares of the loss."""
    talks = [[("user", "a warp"), ("assistant", "and a weft " * (1 + i % 4))] for i in range(20)]
    file, template = tmp_path / "talks.jsonl", tmp_path / "own.jinja"
    lines = [{"messages": [{"role": r, "content": c} for r, c in talk]} for talk in talks]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    template.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    data = {"paths": [], "conversations": [str(file)], "template": str(template)}
    sections = {"data": data, "train": {"steps": 4, "accumulate": 5, "context": 64, "batch": 1}}
    loop.train(config(file, tmp_path / "one", **sections))
    monkeypatch.setattr(loop, "lead", shared_alone)
    loop.train(config(file, tmp_path / "parts", **sections))
    assert_same_run(tmp_path / "one", tmp_path / "parts", 4)


def test_what_is_not_finite_is_found_as_by_one(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = {"optimizer": {"lr": 10.0, "weight_decay": 10.0, "clip": 0.0}, "train": {"steps": 300}}
    said = []
    for name in ("one", "parts"):
        with pytest.raises(ModelError, match="not finite") as error:
            loop.train(config(text, tmp_path / name, **wild))
        said.append(str(error.value).replace(name, ""))
        monkeypatch.setattr(loop, "lead", shared_alone)
    assert said[0] == said[1]


def test_more_ranks_than_parts_are_refused(text: Path, tmp_path: Path) -> None:
    settings = config(text, tmp_path)
    check_ranks(settings, 5)
    with pytest.raises(UsageError, match=r"6 ranks share the \[train\] accumulate = 5"):
        check_ranks(settings, 6)
    assert ALONE.size == 1


# -- several processes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a single process."""
    run = tmp_path_factory.mktemp("one") / "run"
    loop.train(config(text, run))
    return run


@needs_mpi
@pytest.mark.parametrize("count", few([2, 3, 4, 5], 2))
def test_ranks_have_the_bits_of_one(count: int, text: Path, one: Path, tmp_path: Path) -> None:
    status, err = trained(count, text, tmp_path / "run")
    assert status == 0, err
    assert_same_run(one, tmp_path / "run", 6)
    assert err.count("parameters on") == 1  # only rank 0 speaks


@needs_mpi
@pytest.mark.slow
def test_small_pieces_on_two_ranks(text: Path, tmp_path: Path) -> None:
    """Parameters are cut, half precision scales the loss, one rank sends two sums."""
    sections = {"train": {"precision": "float16", "accumulate": 3, "steps": 4}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PIECE", 100)
        loop.train(config(text, tmp_path / "one", **sections))
    status, err = trained(2, text, tmp_path / "run", sections, piece=100)
    assert status == 0, err
    assert_same_run(tmp_path / "one", tmp_path / "run", 4)


@needs_mpi
@pytest.mark.parametrize(
    "tamper, said",
    few(
        [
            ("settings", "other settings: [optimizer] lr: 0.01 -> 0.5"),
            ("weft", "another weft: install the same version everywhere"),
            ("weights", "other weights"),
        ],
        ("settings", "other settings: [optimizer] lr: 0.01 -> 0.5"),
    ),
)
def test_a_rank_with_another_work_is_refused_by_name(
    tamper: str, said: str, text: Path, tmp_path: Path
) -> None:
    status, err = trained(2, text, tmp_path / "run", {"train": USUAL["train"]}, tamper=tamper)
    assert status != 0 and "rank 1 on " in err and said in err
    assert not ck.found(tmp_path / "run")


@needs_mpi
@pytest.mark.slow
def test_a_killed_rank_costs_no_bit(text: Path, one: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    began = time.monotonic()
    status, _ = trained(2, text, run, kill=4)
    assert status == 9 and time.monotonic() - began < 200
    assert [p.name for p in ck.found(run)] == ["step-000002"]
    status, err = trained(2, text, run, resume=True)
    assert status == 0, err
    assert_same_run(one, run, 6)


@needs_mpi
@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(text: Path, one: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for count, until in ((4, 2), (2, 3), (1, 4), (3, 6)):
        status, err = trained(count, text, run, resume=until > 2, until=until)
        assert status == 0, err
    assert_same_run(one, run, 6)


# -- weft launch -----------------------------------------------------------------------------------


def launched(folder: Path, text: Path, steps: int, *options: str) -> subprocess.Popen[str]:
    file = written(folder, text, steps)
    line = [sys.executable, "-m", "weft", "launch", "-n", "2", *options, "train", str(file)]
    return subprocess.Popen(
        line, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def waited(run: Path, count: int) -> None:
    """Until a run has so many checkpoints."""
    until = time.monotonic() + 240
    while not any(p.name >= ck.name_of(count) for p in ck.found(run)):
        assert time.monotonic() < until
        time.sleep(0.02)


@needs_mpi
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_launch_starts_again_where_a_rank_was_lost(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = launched(tmp_path, text, 3000, "--restarts", "1")
    waited(run, 10)
    (rank,) = followers(run.parent)
    os.kill(rank, signal.SIGKILL)
    said = ""
    for line in process.stderr:  # type: ignore[union-attr]
        said += line
        if "resuming from step" in line:
            break
    # The launcher's status is the killed rank's, or rank 0's, which may notice and end first.
    assert re.search(r"a rank was lost \(status \d+\); starting again, 1 of 1", said), said
    process.send_signal(signal.SIGTERM)  # reaches the ranks as Ctrl-C: rank 0 saves
    process.communicate(timeout=240)
    assert process.returncode == 130


def test_launch_refuses_names_that_are_options(tmp_path: Path, text: Path) -> None:
    process = launched(tmp_path, text, 1, "--hosts", "red,-x")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 2 and "'-x' is neither a machine's name" in err
