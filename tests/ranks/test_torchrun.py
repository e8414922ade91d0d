"""Ranks that PyTorch's torchrun starts, over gloo: what tests of MPI's ranks say holds here too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
import test_divided
import test_shared_training
import test_transport
from model_zoo import write_model
from rows import few
from several import PATIENCE, environment

from weft.core.errors import UsageError
from weft.hub.box import box_folder
from weft.ranks import join
from weft.ranks.base import LOST
from weft.training import loop

torch = pytest.importorskip("torch")


def torchrun(count: int, file: str, case: str, **env: str) -> tuple[int, str, str]:
    """Calls `case` of a test file on each of `count` ranks: exit status, stdout, stderr."""
    code = (
        f"import importlib.util as u; s = u.spec_from_file_location('cases', {file!r}); "
        f"m = u.module_from_spec(s); s.loader.exec_module(m); m.{case}()"
    )
    return started(count, "-c", code, **env)


def started(count: int, *words: str, **env: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `count` ranks of a Python command line."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(count), "--no-python", sys.executable, *words]  # fmt: skip
    done = subprocess.run(
        line, env=environment(**env), text=True, capture_output=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "case, count", few([("one_to_one", 2), ("all_together", 3)], ("all_together", 3))
)
def test_what_arrives_is_what_was_sent(case: str, count: int) -> None:
    status, out, err = torchrun(count, test_transport.__file__, f"case_{case}")
    assert status == 0, err
    assert out.count("fine") == (count if case == "all_together" else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case, said",
    [
        ("killed", "Signal 9"),
        ("stopped", "rank 1 on "),
        ("deadline", "took more than 0.5 s"),
    ],
)
def test_a_lost_rank_ends_the_others(case: str, said: str) -> None:
    status, _, err = torchrun(2, test_transport.__file__, f"case_{case}", WEFT_PATIENCE="3")
    assert status != 0 and said in err, err
    if case == "stopped":
        assert "said nothing for 3 s" in err and f"exitcode  : {LOST}" in err


WAYS = [("layers", test_divided.LAYERS), ("columns", test_divided.COLUMNS)]


@pytest.mark.parametrize("what, way", few(WAYS, WAYS[0]))
def test_a_divided_model_has_the_bits_of_one_machine(
    what: str, way: tuple[bool, ...], tmp_path: Path
) -> None:
    write_model("llama3", tmp_path / "m", changed={"max_position_embeddings": 256})
    options = {"context": 200, "max_batch": 4}
    file = str(tmp_path / "0.npz")
    work = json.dumps([way, [(str(tmp_path / "m"), options, file)]])
    status, _, err = torchrun(2, test_divided.__file__, "case_answers", WORK=work)
    assert status == 0, err
    test_divided.assert_same(tmp_path / "m", options, dict(np.load(file)))


@pytest.mark.slow
def test_a_shared_training_has_the_bits_of_one_machine(tmp_path: Path) -> None:
    text, one, two = (tmp_path / name for name in ("text.txt", "one", "two"))
    text.write_text("a text of a few words, again and again\n" * 400)
    loop.train(test_shared_training.config(text, one))
    asked = json.dumps([str(text), str(two), {}, {}])
    status, _, err = torchrun(2, test_shared_training.__file__, "case_train", RUN=asked)
    assert status == 0, err
    test_shared_training.assert_same_run(one, two, 6)


@pytest.mark.slow
def test_the_command() -> None:
    words = "-m", "weft", "run", str(box_folder()), "def", "--max-new-tokens", "8"
    alone = subprocess.run([sys.executable, *words], env=environment(), capture_output=True,
                           text=True, check=True).stdout  # fmt: skip
    status, out, err = started(2, *words)
    assert status == 0 and out == alone != "", err


@pytest.mark.parametrize("way, said", [("mpi", "expected gloo or nccl"), ("nccl", "use gloo")])
def test_ways_that_are_not_there(monkeypatch: pytest.MonkeyPatch, way: str, said: str) -> None:
    if torch.cuda.is_available() and way == "nccl":
        pytest.skip("this machine has NCCL's devices")
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0",
                        "WEFT_COLLECTIVES": way}.items():  # fmt: skip
        monkeypatch.setitem(os.environ, name, value)
    with pytest.raises(UsageError, match=said):
        join.__wrapped__()
