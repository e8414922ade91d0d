"""Clients that ask, leave and stall, while servers behind a router are killed and started again:
every answer is whole and its own, or said not to be."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path

import pytest
from serve_kit import Process, Routing, process, routing, until

from weft.models.run.model import Decoder

SECONDS = 60.0
CLIENTS = 8
PROMPTS = ("def fibonacci(n):", "import", "class Loop:\n    def __init__(self" + ", a" * 120)
SEEDS = range(4)
LENGTH = 60

pytestmark = pytest.mark.slow


class Client:
    """Asks until told to stop, and counts what came of it."""

    def __init__(self, router: Routing, expected: dict[tuple[str, int], str], seed: int) -> None:
        self._router, self._expected = router, expected
        self._draw = random.Random(seed)
        self.seen: Counter[str] = Counter()

    def ask(self) -> None:
        prompt, seed = self._draw.choice(PROMPTS), self._draw.choice(SEEDS)
        stream = self._draw.random() < 0.6
        body = {"prompt": prompt, "seed": seed, "max_tokens": LENGTH, "stream": stream}
        connection = HTTPConnection(self._router.host, self._router.port, timeout=240)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body).encode())
            if self._draw.random() < 0.15:
                time.sleep(self._draw.random() * 0.2)
                self.seen["left"] += 1
                return
            response = connection.getresponse()
            if response.status != 200:
                error = json.loads(response.read())["error"]
                assert response.status in (429, 503) and error["message"]
                self.seen[f"status {response.status}"] += 1
                return
            text = self._streamed(response) if stream else self._whole(response.read())
        if text is not None:
            assert text == self._expected[prompt, seed]
            self.seen["whole"] += 1

    def _whole(self, body: bytes) -> str:
        return str(json.loads(body)["choices"][0]["text"])

    def _streamed(self, response: object) -> str | None:
        """The text; None where the client leaves, or an error event ends it."""
        text, stall = "", self._draw.random() < 0.1
        for line in response:  # type: ignore[attr-defined]
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                return text
            event = json.loads(line[6:])
            if "error" in event:
                assert event["error"]["message"]
                self.seen["broke off"] += 1
                return None
            text += event["choices"][0]["text"]
            if stall and len(text) > 20:
                time.sleep(0.5)
                self.seen["left in the midst"] += 1
                return None
        raise AssertionError("the stream ended, and nothing said so")


def test_every_answer_is_whole_or_said_not_to_be(chatty: Path, alone: Decoder) -> None:
    expected = {
        (p, s): alone.generate(p, max_new_tokens=LENGTH, temperature=1.0, seed=s).text
        for p in PROMPTS
        for s in SEEDS
    }
    words = ("serve", f"box={chatty}", "--device", "cpu")
    stop, failures = threading.Event(), []

    def play(client: Client) -> None:
        while not stop.is_set():
            try:
                client.ask()
            except Exception as e:
                failures.append(e)
                return

    with contextlib.ExitStack() as stack:
        servers: list[Process] = [stack.enter_context(process(*words)) for _ in range(2)]
        router = stack.enter_context(routing(*servers))
        clients = [Client(router, expected, seed) for seed in range(CLIENTS)]
        threads = [threading.Thread(target=play, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        draw, end, kills = random.Random(0), time.monotonic() + SECONDS, 0
        while time.monotonic() < end and not failures:
            time.sleep(draw.uniform(1, 4))
            i = draw.randrange(2)
            servers[i].end()
            kills += 1
            again = process(*words, "--port", str(servers[i].port))
            servers[i] = stack.enter_context(again)
            until(lambda: len(router.fleet.ready) == 2, 60)
        stop.set()
        for thread in threads:
            thread.join(240)
        seen = sum((client.seen for client in clients), Counter[str]())
        print(f"{kills} kills: {dict(seen)}")
        assert not failures, failures
        # streams go on at the other server, so none need break off
        assert min(kills, seen["whole"]) > 0
        until(lambda: not any(r.outstanding for r in router.fleet.replicas))
        idle = 'weft_engine_running{model="box"} 0.0'
        until(lambda: all(idle in server.ask("GET", "/metrics")[1] for server in servers))
