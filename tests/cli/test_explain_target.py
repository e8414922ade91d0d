"""`weft explain --target`: a model compiled for a GPU that is not here."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from weft.backends.llvm import ptxas
from weft.cli.explain import explain
from weft.core.errors import UsageError
from weft.models import random_folder

CONFIG = {
    "model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2,
    "n_positions": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(random_folder(tmp_path_factory.mktemp("gpt2"), CONFIG))


def run(*args: str) -> str:
    done = CliRunner().invoke(explain, list(args), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return str(done.output)


def test_amd_resources(folder: str) -> None:
    text = run(folder, "--target", "gfx942", "--step", "decode")
    assert "on gfx942" in text and "shared bytes" in text and "matvec_" in text
    said = json.loads(run(folder, "--target", "gfx1100", "--step", "decode", "--json"))
    kernels = said["steps"]["decode"]["resources"]
    assert said["device"] == "gfx1100" and kernels
    assert all(k["registers"] > 0 and k["spills"] == 0 for k in kernels.values())


def test_nvidia_source_and_resources(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = (folder, "--target", "sm_90", "--step", "decode")
    assert ".target sm_90" in run(*args, "--show", "source", "--kernel", "matvec")
    if ptxas.find() is not None:
        assert "spills" in run(*args)
    monkeypatch.setattr(ptxas, "find", lambda: None)
    assert "registers and spills are not known: ptxas was not found" in run(*args)


def test_unknown_target(folder: str) -> None:
    with pytest.raises(UsageError, match="no GPU architecture 'sm_1'; weft knows sm_80"):
        run(folder, "--target", "sm_1")
