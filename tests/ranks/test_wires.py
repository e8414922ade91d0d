"""Two machines: network namespaces on a wire that is slow, or cut. Needs root."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from several import environment, needs_mpi, written
from wires import ADDRESSES, Network, why_not

import weft
from weft.hub.box import box_folder
from weft.importers.safetensors import SafetensorsFile
from weft.ranks.base import LOST
from weft.training import checkpoints as ck, loop
from weft.training.report import read_log
from weft.training.settings import read_settings

pytestmark = [pytest.mark.slow, needs_mpi]
STEPS = 60


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[Network]:
    if why := why_not():
        pytest.skip(why)
    with Network() as made:
        yield made


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    rng = np.random.default_rng(0)
    words = ["the", "loom", "holds", "warp", "and", "weft", "while", "shuttles"]
    path.write_text("\n".join(" ".join(rng.choice(words, 12)) for _ in range(400)))
    return path


def launched(network: Network, file: Path, *options: str) -> subprocess.Popen[str]:
    """Two ranks, one in each namespace."""
    line = ["ip", "netns", "exec", network.names[0], sys.executable, "-m", "weft", "launch"]
    line += ["-n", "2", "--hosts", ",".join(ADDRESSES), *options, "train", str(file)]
    env = environment(**network.environment(file.parent), WEFT_PATIENCE="4")
    return subprocess.Popen(
        line, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def assert_one_bits(file: Path, folder: Path) -> None:
    """The run of `file` has the bits of one process's."""
    text = file.read_text().replace(str(file.parent / "run"), str(folder / "one"))
    (folder / "one.toml").write_text(text)
    loop.train(read_settings(folder / "one.toml"))
    runs = (folder / "one", file.parent / "run")
    one, two = (
        [(r["step"], r["loss"], r["norm"]) for r in read_log(run / "log.jsonl") if "loss" in r]
        for run in runs
    )
    assert one == two and len(one) == STEPS
    for name in ("model.safetensors", ck.OPTIMIZER):
        a, b = (SafetensorsFile(run / ck.name_of(STEPS) / name) for run in runs)
        assert all(a[k].tobytes() == b[k].tobytes() for k in a) and a.keys() == b.keys()


def test_a_slow_wire_changes_no_bit(network: Network, text: Path, tmp_path: Path) -> None:
    file = written(tmp_path, text, STEPS)
    network.delay, before = 0.005, network.frames
    try:
        _, err = (process := launched(network, file)).communicate(timeout=240)
    finally:
        network.delay = 0.0
    assert process.returncode == 0, err
    assert network.frames - before > 10 * STEPS  # it went over the wire
    assert_one_bits(file, tmp_path)


def test_a_cut_wire_is_noticed_and_the_run_goes_on(
    network: Network, text: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, text, STEPS)
    network.delay = 0.01  # so that it lasts
    process = launched(network, file, "--restarts", "1")
    said: list[tuple[float, str]] = []

    def read() -> None:
        for line in process.stderr:  # type: ignore[union-attr]
            said.append((time.monotonic(), line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        until = time.monotonic() + 60
        while not ck.found(tmp_path / "run"):
            assert time.monotonic() < until and process.poll() is None, said
            time.sleep(0.01)
        network.cut, cut = True, time.monotonic()
        while not any("rank 1 on" in line and "said nothing for 4 s" in line for _, line in said):
            assert time.monotonic() < cut + 30 and process.poll() is None, said
            time.sleep(0.01)
        noticed = time.monotonic() - cut
        network.cut, network.delay = False, 0.0
        assert process.wait(timeout=240) == 0, said
        reader.join(5)
    finally:
        network.cut, network.delay = False, 0.0
        process.kill()
    text_said = "".join(line for _, line in said)
    assert noticed < 10
    assert "starting again, 1 of 1" in text_said and "resuming from step" in text_said
    assert_one_bits(file, tmp_path)


# -- a model's layers, or columns, on both ---------------------------------------------------------

PROMPT = "def fibonacci(n):"


def running(network: Network, folder: Path, *words: str) -> subprocess.Popen[str]:
    """`weft run` on two ranks, one in each namespace."""
    line = ["ip", "netns", "exec", network.names[0], sys.executable, "-m", "weft", "launch"]
    line += ["-n", "2", "--hosts", ",".join(ADDRESSES), "run", PROMPT, "--device", "cpu", *words]
    env = environment(**network.environment(folder), WEFT_PATIENCE="4")
    return subprocess.Popen(
        line, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("parallel", ["layers", "columns"])
def test_a_divided_model_on_a_slow_wire(network: Network, parallel: str, tmp_path: Path) -> None:
    want = weft.load(box_folder(), device="cpu").generate(PROMPT, max_new_tokens=20)
    network.delay, before = 0.002, network.frames
    words = ["--parallel", parallel, "--max-new-tokens", "20", "--repetition-penalty", "1"]
    try:
        out, err = (process := running(network, tmp_path, *words)).communicate(timeout=240)
    finally:
        network.delay = 0.0
    assert process.returncode == 0, err
    assert out.rstrip("\n") == want.text.rstrip("\n")
    assert network.frames - before > 40  # it went over the wire


def test_a_wire_cut_under_a_divided_model_is_noticed(network: Network, tmp_path: Path) -> None:
    network.delay = 0.01  # so that it lasts
    process = running(network, tmp_path, "--max-new-tokens", "400")
    assert process.stdout is not None
    try:
        assert process.stdout.read(1)  # it writes
        network.cut, cut = True, time.monotonic()
        _, err = process.communicate(timeout=240)
        noticed = time.monotonic() - cut
    finally:
        network.cut, network.delay = False, 0.0
        process.kill()
    assert process.returncode == LOST and "said nothing for 4 s" in err, err
    assert noticed < 30
