"""`weft serve` as a process: what it prints, refuses, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from held import answers
from serve_kit import Process, until

from weft.cli.main import invoke
from weft.serve.model_paths import named
from weft.serve.running import listen


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=240) as answer:
        return json.loads(answer.read())


def test_a_signal_lets_answers_end(started: Process) -> None:
    process, url = started.popen, started.url
    asked = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "seed": 1}
    whole = post(f"{url}/v1/completions", asked)
    got: list[Any] = []
    started.gate.shut()
    asking = threading.Thread(target=lambda: got.append(post(f"{url}/v1/completions", asked)))
    asking.start()
    until(lambda: answers(started) == 1)
    started.gate.let(2)
    until(lambda: answers(started, "running") == 1)
    process.send_signal(signal.SIGTERM)
    until(lambda: started.ask("GET", "/health")[1]["status"] == "leaving")
    started.gate.open()
    asking.join(240)
    assert got and got[0]["choices"] == whole["choices"]
    assert process.wait(240) == 0
    assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_killed_and_started_again(started: Process) -> None:
    process, url = started.popen, started.url
    asked = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
    failed: list[Exception] = []

    def ask() -> None:
        try:
            post(f"{url}/v1/completions", asked)
        except OSError as e:
            failed.append(e)

    started.gate.shut()
    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: answers(started) == 1)
    process.kill()
    asking.join(240)
    assert failed  # said, not lost in silence
    process.wait()
    listen("127.0.0.1", int(url.rsplit(":", 1)[1])).close()  # the next server can have its port


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--api-key-file"),
        (["--api-key-file", "missing"], "missing"),
        (["--cache-memory", "lots"], "8GiB"),
        (["--tool-parser", "odd"], "hermes"),
    ],
)
def test_wrong_usage(
    chatty: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["serve", f"box={chatty}", "--device", "cpu", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_keys_have_to_be_secret(
    chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key"
    for text, mode, said in (("short", 0o600, "16"), ("a" * 20, 0o644, "chmod 600")):
        file.write_text(text)
        file.chmod(mode)
        asked = ["serve", str(chatty), "--device", "cpu", "--api-key-file", str(file)]
        assert invoke(asked) == 2
        assert said in capsys.readouterr().err


def test_a_port_that_is_taken(chatty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        asked = ["serve", str(chatty), "--device", "cpu", "--port", str(s.getsockname()[1])]
        assert invoke(asked) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_answers_are_sent_at_once() -> None:
    """A connection's small packets wait for no acknowledgement (TCP_NODELAY)."""

    async def asked() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made = writer.get_extra_info("socket")
            found.set_result(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = listen("127.0.0.1", 0)
        async with await asyncio.start_server(came, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return await found

    assert asyncio.run(asked())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("typo={none}", "'typo' is not there: {none} does not exist"),
        ("{none}", "does not exist"),
        ("my/alias={none}", "'my/alias' is not there"),
        ("empty={empty}", "config.json"),
        ("=x", "NAME=PATH"),
        ("name=", "NAME=PATH"),
    ],
)
def test_every_model_is_looked_for_at_the_start(
    chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    """Not only the first, which is loaded then."""
    (tmp_path / "empty").mkdir()
    where = {"none": tmp_path / "none", "empty": tmp_path / "empty"}
    assert invoke(["serve", str(chatty), model.format(**where), "--port", "0"]) == 2
    err = capsys.readouterr().err
    assert said.format(**where) in err and "Traceback" not in err


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("qwen", "a=b", "org/c=d"):
        (tmp_path / folder).mkdir(parents=True)
    expected = {
        "my/alias=./qwen": ("my/alias", "./qwen"),
        "a/b/c=qwen": ("a/b/c", "qwen"),
        "x=y=z": ("x", "y=z"),
        "./qwen": ("qwen", "./qwen"),
        "a=b": ("a=b", "a=b"),
        "org/c=d": ("c=d", "org/c=d"),
        "./no=no": ("./no=no", "./no=no"),
        "ORG/NAME:Q4_K_M": ("ORG/NAME:Q4_K_M", "ORG/NAME:Q4_K_M"),
        "m=ORG/NAME@main": ("m", "ORG/NAME@main"),
    }
    for given, (name, path) in expected.items():
        assert named([given]) == {name: path}


def test_two_of_one_name(chatty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["serve", str(chatty), str(chatty)]) == 2
    assert "NAME=" in capsys.readouterr().err


def test_a_cache_that_is_larger_than_was_asked_for_says_so() -> None:
    import asyncio

    import weft
    from weft.serve.metrics import ServerMetrics
    from weft.serve.served import ServedDecoder
    from weft.serve.settings import ServeSettings

    model = weft.load("box", device="cpu", context=64)

    async def summary(memory: int | None) -> str:
        served = ServedDecoder("box", model, ServeSettings(1, 1, memory), ServerMetrics())
        return " ".join(served.summary())

    for memory, said in ((1024, True), (1 << 30, False), (None, False)):
        assert ("more than --cache-memory" in asyncio.run(summary(memory))) == said
