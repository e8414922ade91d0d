"""Programs of others that talk to servers, unmodified: what their users do with each.

`clients/requirements.txt` names them and their versions. CLIENTS names a Python that has them,
AIDER one that has aider: docs/testing.md."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serve_kit import Running, chatty_box, serving

sys.path.append(str(Path(__file__).parents[1] / "robust"))
sys.path.append(str(Path(__file__).with_name("clients")))
from robust_kit import BERT, tiny
from says import SAYS

CLIENTS = Path(__file__).with_name("clients")


def parts() -> list[tuple[str, str]]:
    """Each client's file, with `said` (what the model writes is given) and `free` (it is not)."""
    found = []
    for path in sorted(CLIENTS.glob("with_*.py")):
        names = {n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)}
        found += [(path.stem, part) for part in ("said", "free") if part in names]
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model whose context holds what agents send, and of one that embeds."""
    folder = tmp_path_factory.mktemp("models")
    chatty_box(folder / "box", context=16384)
    tiny(folder / "bert", BERT)
    names = {name: str(folder / name) for name in ("box", "bert")}
    with serving(names, load={"device": "cpu", "context": 16384}) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("client, part", parts())
def test_a_client(
    large: Running, says: Callable[..., None], tmp_path: Path, client: str, part: str
) -> None:
    name = "AIDER" if client == "with_aider" else "CLIENTS"
    python = os.environ.get(name)
    if python is None:
        pytest.skip(f"{name} names no Python with this client: docs/testing.md")
    if part == "said":
        says(*SAYS[client])
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1",
           "NO_PROXY": "*", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    done = subprocess.run(
        [python, "run.py", client, part, large.url], cwd=CLIENTS, env=env, text=True,
        capture_output=True, check=False, timeout=600,
    )  # fmt: skip
    assert not done.returncode, done.stdout[-3000:] + done.stderr[-6000:]
