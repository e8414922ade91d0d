"""`weft route` in front of real servers: the same answers, kept prefixes, and what is lost when one
of them is killed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import openai
import pytest
from held import answers, holding
from rows import few
from serve_kit import (
    Listening,
    Process,
    Routing,
    Running,
    failing,
    process,
    routing,
    serving,
    until,
)

from weft.cli.main import invoke
from weft.core.errors import DeviceError
from weft.models.run.model import Decoder
from weft.serve.router import replica as looking
from weft.serve.router.resume import FORMS, events_of

KEY = b"0123456789abcdef"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "temperature": 0.9}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "CHECK_SECONDS", 0.1)


@pytest.fixture(scope="module")
def second(chatty: Path) -> Iterator[Running]:
    with serving({"box": str(chatty)}) as running:
        yield running


@pytest.fixture
def router(server: Running, second: Running) -> Iterator[Routing]:
    with routing(server, second) as made:
        assert len(made.fleet.ready) == 2
        yield made


def request(body: Any) -> bytes:
    """A request for completions as a connection carries it."""
    data = json.dumps(body).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


@contextlib.contextmanager
def streaming(to: Listening, body: Any) -> Iterator[Callable[[], HTTPResponse]]:
    """What waits for the response of a stream, which a router has once a word of it came."""
    connection = HTTPConnection(to.host, to.port, timeout=240)
    connection.request("POST", TEXT, json.dumps({**body, "stream": True}).encode())
    try:
        yield functools.cache(connection.getresponse)
    finally:
        connection.close()


def test_an_answer_through_the_router_is_the_one_alone(router: Routing, alone: Decoder) -> None:
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
    assert [m.id for m in client.models.list()] == ["box"]
    for i in range(6):
        prompt = f"def function_{i}(n):\n" * 20
        asked: dict[str, Any] = {"prompt": prompt, "max_tokens": 16, "seed": i}
        expected = alone.generate(prompt, max_new_tokens=16, temperature=1.0, seed=i).text
        assert client.completions.create(model="box", **asked).choices[0].text == expected
        parts = client.completions.create(model="box", stream=True, **asked)
        assert "".join(part.choices[0].text for part in parts) == expected
    status, body, _ = router.ask("POST", TEXT, {"prompt": "x", "max_token": 3})
    assert status == 400 and body["error"]["param"] == "max_token"
    assert router.ask("GET", "/v1/nothing")[0] == 404
    assert router.ask("POST", "/tokenize", {"prompt": "x"})[1]["count"] == 1


def test_a_conversation_stays_where_its_prefix_is(router: Routing, alone: Decoder) -> None:
    for i in range(4):
        said = [{"role": "user", "content": f"Conversation {i}: " + "what is a loop? " * 12}]
        length = 0
        for turn in range(3):
            asked = {"messages": said, "max_tokens": 8, "temperature": 0}
            made = router.ask("POST", CHAT, asked)[1]
            cached = made["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= (length // 64 * 64 if turn else 0)  # whole pages, at the least
            length = made["usage"]["prompt_tokens"]
            assert length > 64
            text = made["choices"][0]["message"]["content"]
            said += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]


def test_other_requests_go_where_the_least_is_to_do(
    router: Routing, server: Running, second: Running, tmp_path: Path
) -> None:
    def outstanding() -> list[int]:
        return [r.outstanding for r in router.fleet.replicas]

    held = holding(server, second, file=tmp_path / "steps")
    with held, contextlib.ExitStack() as stack:
        for body, busy in (({**LONG, "n": 2}, [0, 1]), (LONG, [1, 1])):
            s = stack.enter_context(socket.create_connection((router.host, router.port)))
            s.sendall(request(body))
            until(lambda busy=busy: sorted(outstanding()) == busy)  # type: ignore[misc]
    until(lambda: not any(r.outstanding for r in router.fleet.replicas))


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_ends_its_answer_there(
    router: Routing, server: Running, second: Running, tmp_path: Path, streamed: bool
) -> None:
    def cancelled() -> float:
        found = (s.shelf.metrics.answers.labels("box", "", "cancelled") for s in (server, second))
        return sum(float(each._value.get()) for each in found)

    with holding(server, second, file=tmp_path / "steps") as gate:
        before = cancelled()
        with socket.create_connection((router.host, router.port)) as s:
            s.sendall(request({**LONG, "n": 4, "stream": streamed}))
            until(lambda: answers(server) + answers(second) == 4)
            gate.let(2)
            if streamed:
                assert s.recv(100)
        until(lambda: not any(m.users for s in (server, second) for m in s.shelf.loaded()))
    until(lambda: cancelled() == before + 4)
    until(lambda: not any(r.outstanding for r in router.fleet.replicas))


def test_the_routers_own_pages(router: Routing, server: Running) -> None:
    router.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})
    status, health, _ = router.ask("GET", "/health")
    told = server.ask("GET", "/v1/models")[1]["data"][0]
    assert status == 200 and health["models"] == ["box"]
    assert {r["status"] for r in health["replicas"].values()} == {"up"}
    (found,) = router.ask("GET", "/v1/models")[1]["data"]
    assert found.keys() == told.keys() and found["fingerprint"] == told["fingerprint"]
    text = router.ask("GET", "/metrics")[1]
    for replica in router.fleet.replicas:
        assert f'weft_router_replica_up{{replica="{replica.name}"}} 1.0' in text
        assert f'weft_engine_running{{model="box",replica="{replica.name}"}} 0.0' in text
    assert text.count("# TYPE weft_engine_running gauge") == 1


def test_adapters_are_loaded_at_each_replica(router: Routing) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        status, made, _ = router.ask("POST", path, {"lora_name": "a", "lora_path": "a"})
        assert status == 404 and "ask each replica" in made["error"]["message"]


def test_the_routers_guard(server: Running, chatty: Path) -> None:
    with serving({"box": str(chatty)}, key=KEY[::-1]) as locked:
        with routing(locked, key=KEY, theirs=KEY[::-1]) as made:
            assert made.ask("GET", "/v1/models")[0] == 401
            assert made.ask("GET", "/health", headers={"x-api-key": "wrong"})[0] == 401
            assert made.ask("GET", "/v1/models", headers={"Host": "evil.example"})[0] == 421
            own = {"Authorization": f"Bearer {KEY.decode()}"}
            asked = {"prompt": "x", "max_tokens": 1}
            assert made.ask("POST", TEXT, asked, own)[0] == 200
            foreign = {**own, "Origin": "http://evil.example"}
            assert made.ask("POST", TEXT, asked, foreign)[0] == 403
            assert made.ask("POST", TEXT, b"x" * (9 << 20), own)[0] == 413
        with routing(locked) as made:  # the wrong key is said, not tried on clients
            assert made.fleet.replicas[0].told()["status"] == "refuses"
            assert made.ask("POST", TEXT, asked)[0] == 503


def test_other_answers_are_kept_out(server: Running, chatty: Path) -> None:
    with serving({"box": str(chatty)}, load={"device": "cpu", "cache": "int8"}) as other:
        for each in (server, other):  # loads the model
            assert each.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200
        with routing(server, other) as made:
            _, health, _ = made.ask("GET", "/health")
            assert [r["status"] for r in health["replicas"].values()] == ["up", "differs"]
        with routing(server, other, mixed=True) as made:
            assert len(made.fleet.ready) == 2


def test_nobody_is_left(server: Running) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        with routing(Listening("127.0.0.1", s.getsockname()[1])) as made:
            status, body, headers = made.ask("POST", TEXT, {"prompt": "x"})
            assert status == 503 and "retry-after" in {name.lower() for name in headers}
            assert body["error"]["type"] == "api_error"
            assert made.ask("POST", "/v1/messages", {})[1]["type"] == "error"
            assert made.ask("GET", "/health")[0] == 503


@pytest.fixture
def two(chatty: Path) -> Iterator[tuple[Process, Process]]:
    """Two servers to kill."""
    words = ("serve", f"box={chatty}", "--device", "cpu")
    with process(*words) as one, process(*words) as other:
        yield one, other


def at_work(servers: tuple[Process, Process]) -> Process:
    """The server that the only answer comes from, held in the middle of it."""
    until(lambda: sum(answers(s) for s in servers) > 0)
    for server in servers:
        server.gate.let(2)
    return next(s for s in servers if answers(s))


@contextlib.contextmanager
def shut(servers: tuple[Process, Process]) -> Iterator[None]:
    """No step is played until the block ends, or `at_work` lets some."""
    for server in servers:
        server.gate.shut()
    yield
    for server in servers:
        server.gate.open()


def test_an_answer_that_nobody_saw_is_asked_again(two: tuple[Process, Process]) -> None:
    got: list[Any] = []
    asked = {**LONG, "n": 4, "seed": 3}
    with routing(*two) as made:
        whole = made.ask("POST", TEXT, asked)[1]["choices"]
        with shut(two):
            asking = threading.Thread(target=lambda: got.append(made.ask("POST", TEXT, asked)))
            asking.start()
            at_work(two).popen.kill()
        asking.join(240)
        assert got[0][0] == 200 and got[0][1]["choices"] == whole
        until(lambda: len(made.fleet.ready) == 1)
        assert "weft_router_retries_total 1.0" in made.ask("GET", "/metrics")[1]


def test_a_device_that_is_lost_costs_nobody_an_answer(
    router: Routing, server: Running, alone: Decoder
) -> None:
    asked = {"prompt": "def f(", "max_tokens": 8, "seed": 2}
    expected = alone.generate("def f(", max_new_tokens=8, temperature=1.0, seed=2).text
    assert server.ask("POST", TEXT, asked)[0] == 200  # the model is loaded
    with failing(server, DeviceError("lost")):
        for _ in range(3):
            status, body, _ = router.ask("POST", TEXT, asked)
            assert status == 200 and body["choices"][0]["text"] == expected
        assert "weft_router_retries_total 3.0" in router.ask("GET", "/metrics")[1]


TALK = [{"role": "user", "content": "Write a loop."}]
STREAMS: dict[str, dict[str, Any]] = {
    TEXT: {**LONG, "max_tokens": 60, "n": 3, "seed": 5, "logprobs": 2},
    CHAT: {"messages": TALK, "max_tokens": 60, "ignore_eos": True, "seed": 4, "logprobs": True,
           "stream_options": {"include_usage": True}},
    "/v1/messages": {"messages": TALK, "max_tokens": 60, "seed": 4},
    "/v1/responses": {"input": "Write a loop.", "max_output_tokens": 60, "seed": 4},
    "/api/chat": {"model": "box", "messages": TALK, "options": {"num_predict": 60, "seed": 4}},
    "/api/generate": {"model": "box", "prompt": "x", "options": {"num_predict": 60, "seed": 1}},
}  # fmt: skip


def joined(path: str, data: bytes) -> dict[Any, Any]:
    """What the events of a stream join to, by part; and how often each mark comes."""
    found: dict[Any, Any] = {}
    for _, event in events_of(data):
        assert "error" not in event, event
        for part in FORMS[path](event):
            value = part.value if isinstance(part.value, str | list) else 1
            found[part.key] = found[part.key] + value if part.key in found else value
    return found


@pytest.mark.parametrize(
    "path", few(STREAMS, "/v1/chat/completions", "/v1/messages", "/api/generate")
)
def test_a_stream_goes_on_at_another_replica(two: tuple[Process, Process], path: str) -> None:
    asked = {**STREAMS[path], "stream": True}
    with routing(*two) as made:
        with shut(two):
            connection = HTTPConnection(made.host, made.port, timeout=240)
            connection.request("POST", path, json.dumps(asked).encode())
            lost = at_work(two)
            response = connection.getresponse()
            data = response.readline()
            lost.popen.kill()
        data += response.read()
        connection.close()
        (left,) = [server for server in two if server is not lost]
        whole = HTTPConnection(left.host, left.port, timeout=240)
        whole.request("POST", path, json.dumps(asked).encode())
        expected = joined(path, whole.getresponse().read())
        whole.close()
        assert joined(path, data) == expected
        assert "weft_router_resumed_total 1.0" in made.ask("GET", "/metrics")[1]
        ids = {event["id"] for _, event in events_of(data) if "id" in event}
        assert len(ids) <= 1  # one answer, as a client sees it


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_five_hundred_kills(chatty: Path) -> None:
    """A replica is killed in the midst of a stream, and comes back on its port, 500 times (or
    WEFT_KILLS)."""
    words = ("serve", f"box={chatty}", "--device", "cpu")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(process(*words)) for _ in range(2)]
        made = stack.enter_context(routing(*servers))
        texts: dict[int, str] = {}
        for n in range(int(os.environ.get("WEFT_KILLS", "500"))):
            until(lambda: len(made.fleet.ready) == 2)
            asked = {**LONG, "max_tokens": 80, "seed": n % 20, "stream": True}
            connection = HTTPConnection(made.host, made.port, timeout=240)
            connection.request("POST", TEXT, json.dumps(asked).encode())
            response = connection.getresponse()
            data = b"".join(response.readline() for _ in range(2 * (n % 17) + 1))
            lost = max(range(2), key=lambda i: made.fleet.replicas[i].outstanding)
            port = servers[lost].port
            servers[lost].end()
            data += response.read()
            connection.close()
            text = joined(TEXT, data)[0, "text"]
            assert texts.setdefault(n % 20, text) == text, n
            servers[lost] = stack.enter_context(process(*words, "--port", str(port)))


def test_a_stream_that_cannot_go_on_says_so(two: tuple[Process, Process]) -> None:
    """Where replicas may be of different versions, another would give another answer."""
    asked = {"input": "x", "max_output_tokens": 400, "ignore_eos": True}
    with routing(*two, mixed=True) as made:
        with shut(two):
            connection = HTTPConnection(made.host, made.port, timeout=240)
            connection.request("POST", "/v1/responses", json.dumps({**asked, "stream": True}))
            lost = at_work(two)
            response = connection.getresponse()
            lines = [response.readline()]
            lost.popen.kill()
        lines += response.read().splitlines()
        connection.close()
        events = [line for line in lines if line.startswith(b"data: ")]
        error = json.loads(events[-1][6:])["error"]
        assert "broke off" in error["message"] and error["type"] == "api_error"
        assert made.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200


def test_a_replica_comes_back(two: tuple[Process, Process], chatty: Path) -> None:
    with routing(*two) as made:
        lost = two[0]
        lost.popen.kill()
        until(lambda: [r.told()["status"] for r in made.fleet.replicas] == ["down", "up"])
        with process("serve", f"box={chatty}", "--device", "cpu", "--port", str(lost.port)):
            until(lambda: len(made.fleet.ready) == 2)


def test_a_silent_replica_is_given_up(
    two: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without power closes no connection."""
    monkeypatch.setattr(looking, "PATIENCE", 0.3)
    got: list[Any] = []
    asked = {**LONG, "n": 4, "seed": 3}
    with routing(*two) as made:
        with shut(two):
            asking = threading.Thread(target=lambda: got.append(made.ask("POST", TEXT, asked)))
            asking.start()
            silent = at_work(two)
            silent.popen.send_signal(signal.SIGSTOP)
        asking.join(240)
        assert got[0][0] == 200
        assert sorted(r.told()["status"] for r in made.fleet.replicas) == ["silent", "up"]
        silent.popen.send_signal(signal.SIGCONT)
        until(lambda: len(made.fleet.ready) == 2)


def test_one_that_is_going_gets_no_more(two: tuple[Process, Process]) -> None:
    with routing(*two) as made, streaming(made, LONG) as response:
        with shut(two):
            going = at_work(two)
            first = response().readline()
            going.popen.send_signal(signal.SIGTERM)
            until(lambda: len(made.fleet.ready) == 1)
        assert made.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200
        assert b"[DONE]" in response().read() and first  # what ran came to its end


def test_the_command(server: Running, second: Running) -> None:
    with process("route", server.url, second.url) as made:
        assert made.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200
        made.popen.send_signal(signal.SIGTERM)
        assert made.popen.wait(240) == 0
        assert made.popen.stdout is not None and made.popen.stderr is not None
        assert made.popen.stdout.read().count(": up") == 2
        assert "Traceback" not in made.popen.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["127.0.0.1:8000"], "expected http://HOST:PORT"),
        (["http://127.0.0.1:1", "http://127.0.0.1:1"], "twice"),
        (["http://127.0.0.1:1", "--host", "0.0.0.0"], "--api-key-file"),
        (["http://127.0.0.1:1", "--upstream-key-file", "missing"], "--upstream-key-file missing"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["route", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err
