"""Whole processes: interrupts, gone readers, bad cache directories, cold starts side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from robust_kit import tiny, weft as command
from rows import few

RUN = [sys.executable, "-c", "from weft.cli.main import main; main()"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model"), max_position_embeddings=4000)


def start(*args: str, cache: Path | None = None) -> subprocess.Popen[bytes]:
    env = dict(os.environ)
    if cache is not None:
        env["WEFT_CACHE"] = str(cache)
    return subprocess.Popen(
        [*RUN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        env=env,
    )  # fmt: skip


def whole_files_only(cache: Path) -> None:
    """Every file in a cache directory is complete: nothing temporary, checksums right."""
    from weft.host.cache import _DIGEST, _MAGIC

    for path in cache.rglob("*"):
        assert not path.name.startswith("."), path
        if path.name == "key" and path.parent in (cache, cache / "programs"):  # of checksums
            assert path.stat().st_size == 32
        elif path.is_file():
            assert path.read_bytes().startswith(_MAGIC) and path.stat().st_size >= 6 + _DIGEST


def run_args(folder: Path, tokens: int) -> tuple[str, ...]:
    return ("run", str(folder), "hello", "--device", "cpu", "--max-new-tokens", str(tokens))


# -- Ctrl-C and broken pipes ----------------------------------------------------------------------


def interrupted(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, (process.returncode, err)
    assert err.decode().splitlines()[-1] == "weft: interrupted" and b"Traceback" not in err
    assert len(err.decode().strip().splitlines()) == 1, err


def test_ctrl_c_in_the_middle_of_a_text(folder: Path, tmp_path: Path) -> None:
    process = start(*run_args(folder, 3900), cache=tmp_path)
    assert process.stdout is not None and process.stdout.read(1)  # it has begun
    interrupted(process)
    whole_files_only(tmp_path)


@pytest.mark.parametrize("files", few([1, 4, 8], 4))
def test_ctrl_c_while_compiling(folder: Path, tmp_path: Path, files: int) -> None:
    """As soon as the cache holds this many files, whatever the process is doing then."""
    process = start(*run_args(folder, 3900), "--json", cache=tmp_path)
    while sum(p.is_file() for p in tmp_path.rglob("*")) < files and process.poll() is None:
        time.sleep(0.002)
    interrupted(process)
    whole_files_only(tmp_path)
    done = command(*run_args(folder, 3), env={"WEFT_CACHE": str(tmp_path)})
    assert done.returncode == 0, done.stderr


def test_a_model_is_usable_after_an_interrupt(folder: Path) -> None:
    import threading

    import weft

    model = weft.load(folder, device="cpu")
    want = model.generate([1, 2, 3], max_new_tokens=40)
    for delay in (0.01, 0.05, 0.2):
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                model.generate([1, 2, 3], max_new_tokens=500)
        timer.join()
        assert model.generate([1, 2, 3], max_new_tokens=40) == want
    pieces = model.generate([1, 2, 3], max_new_tokens=500, stream=True)
    next(pieces)
    del pieces
    assert model.generate([1, 2, 3], max_new_tokens=40) == want


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_tests_of_interrupts_pass_where_interrupts_are_ignored() -> None:
    """As in a shell's background job, whose children inherit that."""
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    args = ("-m", "pytest", "-q", "--timeout=60", __file__, "-k", "middle_of_a_text or usable")
    done = subprocess.run(
        [sys.executable, "-c", ignoring, *args], cwd=Path(__file__).parents[2],
        capture_output=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0 and b"2 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "line",
    few(
        ["devices", "devices --json", "run {0} x --device cpu --max-new-tokens 2000"],
        "devices", "run {0} x --device cpu --max-new-tokens 2000",
    ),
)  # fmt: skip
def test_a_reader_that_leaves(folder: Path, line: str) -> None:
    process = start(*line.format(folder).split())
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(240) in (0, 1) and b"Traceback" not in err and b"Exception" not in err, err


def test_a_reader_that_was_never_there(folder: Path) -> None:
    for args in (("devices",), ("--help",), run_args(folder, 3)):
        process = start(*args)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(240) == 1 and b"Exception" not in err and b"Traceback" not in err, err


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "m")
    env = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = command(*run_args(folder, 20), env=env)
    assert done.returncode == 0, done.stderr


def test_a_full_disk_for_output(folder: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*RUN, "devices"], stdout=full, stderr=subprocess.PIPE, timeout=240)
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr and len(done.stderr.splitlines()) == 1


def test_closed_streams(folder: Path) -> None:
    line = '"$@" >&- 2>&- <&-'
    for args, status in ((run_args(folder, 3), 0), (("run", str(folder), "-"), 2)):
        done = subprocess.run(["sh", "-c", line, "sh", *RUN, *args], timeout=240)
        assert done.returncode == status


def test_outputs_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    bench = (
        "bench",
        "model",
        str(folder),
        "--prompt-tokens",
        "4",
        "--max-new-tokens",
        "2",
        "--repeats",
        "1",
    )
    for args in ((*bench, "--profile", "/nonexistent/x"),
                 ("check", "--level", "device", "--write", "/nonexistent/x")):  # fmt: skip
        done = command(*args)
        assert done.returncode == 1 and b"Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith(b"weft: /nonexistent/x: ")


# -- cache directories ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", few(["under a file", "read-only", "off", "loop", "proc"], "loop"))
def test_cache_directories_that_do_not_work(folder: Path, tmp_path: Path, kind: str) -> None:
    path = {"under a file": "/dev/null/x", "off": "0", "proc": "/proc/nothing/here"}.get(kind)
    if kind == "read-only":
        (tmp_path / "ro").mkdir(mode=0o500)
        path = str(tmp_path / "ro")
    if kind == "loop":
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        path = str(tmp_path / "loop")
    assert path is not None
    done = command(*run_args(folder, 3), env={"WEFT_CACHE": path})
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="ulimit")
def test_a_disk_that_fills_up(folder: Path, tmp_path: Path) -> None:
    """No file may grow beyond 1 KiB: nothing is cached, nothing half-written stays."""
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *RUN, *run_args(folder, 3)],
        env={**os.environ, "WEFT_CACHE": str(tmp_path)},
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 0 and done.stdout, done.stderr
    whole_files_only(tmp_path)


def test_a_damaged_cache_is_rebuilt(folder: Path, tmp_path: Path) -> None:
    env = {"WEFT_CACHE": str(tmp_path)}
    want = command(*run_args(folder, 8), env=env).stdout
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert want and files
    for i, path in enumerate(files):
        raw = bytearray(path.read_bytes())
        if i % 3 == 0:
            raw[len(raw) // 2] ^= 4
        path.write_bytes(raw[: len(raw) // 2] if i % 3 == 1 else b"" if i % 3 == 2 else raw)
    done = command(*run_args(folder, 8), env=env)
    assert done.returncode == 0 and done.stdout == want, done.stderr
    whole_files_only(tmp_path)


def test_cold_starts_side_by_side(folder: Path, tmp_path: Path) -> None:
    together = [start(*run_args(folder, 8), "--json", cache=tmp_path) for _ in range(2)]
    answers = set()
    for process in together:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        answers.add(tuple(json.loads(out)["ids"]))
    assert len(answers) == 1
    whole_files_only(tmp_path)
    again = command(*run_args(folder, 8), "--json", env={"WEFT_CACHE": str(tmp_path)})
    assert tuple(json.loads(again.stdout)["ids"]) in answers
