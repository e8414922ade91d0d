"""What fails while answers are written: nobody's is lost in silence or mixed with another's, and
the server goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
from held import answers as at_work, holding
from serve_kit import Listening, Process, Running, failing, process, serving, until

from weft.core.errors import DeviceError
from weft.models.run.model import Decoder
from weft.serve import running as server_running
from weft.serve.running import listen

TEXT = "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "seed": 1}
CONNECTIONS = 1000


def ask_all(to: Listening, bodies: list[Any]) -> Callable[[], list[tuple[int, Any]]]:
    """Asks all at once; what it returns waits for status and body of each."""
    got: dict[int, tuple[int, Any]] = {}

    def ask(i: int) -> None:
        status, body, _ = to.ask("POST", TEXT, bodies[i])
        got[i] = status, body

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()

    def wait() -> list[tuple[int, Any]]:
        for thread in threads:
            thread.join(240)
        return [got[i] for i in range(len(bodies))]

    return wait


def text(alone: Decoder, body: dict[str, Any]) -> str:
    """The answer that the model alone gives."""
    return alone.generate(
        body["prompt"], max_new_tokens=body["max_tokens"], temperature=1.0, seed=body["seed"]
    ).text


def test_more_than_the_cache_holds(chatty: Path, alone: Decoder) -> None:
    """Answers make place for one another, and none changes by it."""
    bodies = [
        {"prompt": f"def f{i}(n):", "max_tokens": 100, "seed": i, "ignore_eos": False}
        for i in range(8)
    ]
    with serving({"box": str(chatty)}, memory=1) as small:  # one sequence of the whole context
        found = ask_all(small, bodies)()
        engine = small.shelf.decoders()[0].engine
        assert engine.stats.preempted > 0
        engine.check()
    for (status, answer), body in zip(found, bodies):
        assert status == 200 and answer["choices"][0]["text"] == text(alone, body)


def test_more_than_the_cache_can_ever_hold(server: Running) -> None:
    status, body, _ = server.ask("POST", TEXT, {"prompt": "x", "max_tokens": 100_000})
    assert status == 400 and "context" in body["error"]["message"]


@pytest.mark.parametrize("error", [DeviceError("lost: secret"), RuntimeError("bug: secret")])
def test_a_device_that_is_lost(server: Running, tmp_path: Path, error: Exception) -> None:
    whole = server.ask("POST", TEXT, LONG)[1]["choices"]
    held = holding(server, file=tmp_path / "steps")
    with held as gate, stream_of(server, {**LONG, "n": 2}) as s:
        waiting = ask_all(server, [LONG, {**LONG, "seed": 2}])
        until(lambda: at_work(server) == 4)
        gate.let(2)
        s.recv(100)
        until(lambda: at_work(server, "running") == 4)
        with failing(server, error):
            gate.open()
            found = waiting()
            last = last_of(s)
    for body in (last, *(answer for _, answer in found)):
        assert body["error"]["type"] == "api_error" and "secret" not in json.dumps(body)
    assert {status for status, _ in found} <= {500, 503}
    assert server.ask("POST", TEXT, LONG)[1]["choices"] == whole  # it works again
    assert server.ask("GET", "/health")[0] == 200


def test_an_engine_that_ends_is_no_secret(chatty: Path) -> None:
    with serving({"box": str(chatty)}) as broken:
        broken.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})
        player = broken.shelf.decoders()[0].player
        steps = player.engine.step

        def step() -> bool:
            if player.engine.stats.running:
                raise SystemExit
            return steps()

        player.engine.step = step  # type: ignore[method-assign]
        assert ask_all(broken, [LONG])()[0][0] == 503
        until(lambda: player.failed is not None)
        assert broken.ask("POST", TEXT, LONG)[0] == 503
        status, health, _ = broken.ask("GET", "/health")
        assert status == 503 and health["status"] == "failed"


@contextlib.contextmanager
def stream_of(to: Listening, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A stream as a socket; the server closes it at the end."""
    data = json.dumps({**body, "stream": True}).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    with socket.create_connection((to.host, to.port), timeout=240) as s:
        s.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        yield s


def last_of(s: socket.socket) -> Any:
    """The last event of a stream."""
    said = b"".join(iter(lambda: s.recv(65536), b""))
    return json.loads([line for line in said.splitlines() if line.startswith(b"data: ")][-1][6:])


def test_half_a_body(server: Running) -> None:
    """A client that is killed while it asks."""
    with socket.create_connection((server.host, server.port), timeout=240) as s:
        s.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n".encode())
        s.sendall(b'Content-Length: 100\r\n\r\n{"prompt": "a')
    until(lambda: not server.server.server_state.tasks)
    assert server.ask("GET", "/health")[0] == 200


def test_what_is_new_is_refused_while_the_rest_ends(started: Process) -> None:
    whole = started.ask("POST", TEXT, LONG)[1]["choices"]
    started.gate.shut()
    waiting = ask_all(started, [LONG, {**LONG, "n": 8}])
    until(lambda: at_work(started) == 9)
    started.gate.let(2)
    until(lambda: at_work(started, "running") == 9)
    started.popen.send_signal(signal.SIGTERM)
    until(lambda: started.ask("GET", "/health")[1]["status"] == "leaving")
    status, _, headers = started.ask("POST", TEXT, LONG)
    assert status == 503 and "retry-after" in {name.lower() for name in headers}
    started.gate.open()
    one, eight = waiting()
    assert one[0] == eight[0] == 200 and one[1]["choices"] == whole
    assert eight[1]["choices"][0] == whole[0]
    assert started.popen.wait(240) == 0


def test_told_twice_it_goes_at_once(started: Process) -> None:
    body = {**LONG, "n": 16}
    broken: list[int] = []  # statuses; a connection that broke counts as 503

    def ask() -> None:
        try:
            broken.append(started.ask("POST", TEXT, body)[0])
        except (OSError, HTTPException):
            broken.append(503)

    started.gate.shut()
    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: at_work(started) == 16)
    started.gate.let(2)
    until(lambda: at_work(started, "running") == 16)
    started.popen.send_signal(signal.SIGINT)
    until(lambda: started.ask("GET", "/health")[1]["status"] == "leaving")
    started.popen.send_signal(signal.SIGINT)
    assert started.popen.wait(240) == 0
    asking.join(240)
    assert broken == [503]


def test_what_takes_too_long_to_end_is_told_so(
    chatty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_running, "DRAIN_SECONDS", 0.1)
    with (
        serving({"box": str(chatty)}) as going,
        holding(going, file=tmp_path / "steps") as gate,
        stream_of(going, {**LONG, "n": 8}) as s,
    ):
        waiting = ask_all(going, [{**LONG, "n": 8, "max_tokens": 500}])
        until(lambda: at_work(going) == 16)
        gate.let(2)
        s.recv(100)
        going.server.handle_exit(signal.SIGTERM, None)
        assert "had to end" in last_of(s)["error"]["message"]
        assert waiting()[0][0] == 503


def test_killed_with_its_children(started: Process) -> None:
    """A process that compiles grammars holds neither the port nor on to life."""
    asked = {**LONG, "max_tokens": 4, "guided_regex": "[0-9]+", "ignore_eos": False}
    assert started.ask("POST", TEXT, asked)[0] == 200
    children = psutil.Process(started.popen.pid).children(recursive=True)
    started.popen.kill()
    started.popen.wait()
    listen("127.0.0.1", started.port).close()
    until(lambda: not any(child.is_running() and child.status() != "zombie" for child in children))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_takes_nothing_along(server: Running, tmp_path: Path) -> None:
    """A child of the process, and its end, are nothing to those who are being answered."""
    whole = server.ask("POST", TEXT, LONG)[1]["choices"]
    with holding(server, file=tmp_path / "steps") as gate:
        waiting = ask_all(server, [LONG] * 2)
        until(lambda: at_work(server) == 2)
        gate.let(2)
        until(lambda: at_work(server, "running") == 2)
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert [body["choices"] for _, body in waiting()] == [whole] * 2


def test_nobody_reads_its_logs(chatty: Path) -> None:
    """A pipe holds 64 KiB."""
    words = ("serve", f"box={chatty}", "--device", "cpu", "--log-level", "debug")
    with process(*words) as made:
        connection = HTTPConnection(made.host, made.port, timeout=240)
        for _ in range(2000):
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        connection.close()
        made.popen.send_signal(signal.SIGTERM)
        assert made.popen.wait(240) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_for_its_logs(chatty: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = ("serve", f"box={chatty}", "--device", "cpu", "--port", str(port))
    with process(*words, "--log-level", "debug", full=True) as made:
        made.host, made.port = "127.0.0.1", port
        until(lambda: answers(made), 60)
        assert made.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200
        made.popen.send_signal(signal.SIGTERM)
        assert made.popen.wait(240) == 0


def answers(made: Process) -> bool:
    with contextlib.suppress(OSError):
        return made.ask("GET", "/health")[0] == 200
    return False


def test_a_thousand_idle_connections(started: Process) -> None:
    started.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})
    memory = psutil.Process(started.popen.pid).memory_info
    before = memory().rss
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            s = stack.enter_context(socket.create_connection((started.host, started.port)))
            s.sendall(request)
            assert b" 200 " in s.recv(4096)
        grown = memory().rss - before
        assert grown < 50 << 20
        assert started.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200
        print(f"{CONNECTIONS} connections: {grown / 2**20:.1f} MiB")
    time.sleep(0.1)
    assert started.ask("GET", "/health")[0] == 200
