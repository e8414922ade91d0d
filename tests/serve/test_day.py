"""A day of traffic in less: arrivals and lengths of published traces, and five kinds of faults.
Each answer that completes is the answer alone.

WEFT_DAY_SECONDS=3600 pytest -m slow --timeout=0 tests/serve/test_day.py plays it in an hour; by
default in a minute.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
from serve_kit import Process, Routing, process, routing, until

from weft.models.run.model import Decoder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SECONDS = float(os.environ.get("WEFT_DAY_SECONDS", "60"))
PER_SECOND = (
    6.0  # requests on average: a day of BurstGPT's trace has 0.27 per second, 23,000 in all
)
BURSTS = 0.5  # shape of the Gamma distribution between arrivals: below 1 they come in bursts
SWING = 0.6  # of the rate between night and noon
# Median tokens of conversations in Azure's trace of 2023 (Splitwise, arXiv 2311.18677: 1,020 and
# 129), an eighth of them, since the model's context is 512; the spread is that of a log-normal.
PROMPT, ANSWER, SPREAD = 1020 / 8, 129 / 8, 0.7
KINDS = ("plain", "leaves", "slow", "malformed")
SHARES = (80, 8, 6, 6)  # percent
PROMPTS, LONGEST = 24, 60
MALFORMED = (
    b"{",
    b'{"prompt": 3.5}',
    b'{"prompt": "x", "max_tokens": -1}',
    b"\xff\xfe",
    b"[]" * 60,
)


@dataclass(frozen=True)
class Asked:
    """A request: when it comes, in seconds, and how its client behaves."""

    at: float
    kind: str
    prompt: int
    tokens: int
    stream: bool


def day(seconds: float, draw: random.Random) -> Iterator[Asked]:
    """The requests of a day that takes so many seconds."""
    at = 0.0
    while True:
        rate = PER_SECOND * (1 - SWING * math.cos(2 * math.pi * at / seconds))
        at += draw.gammavariate(BURSTS, 1 / (BURSTS * rate))
        if at > seconds:
            return
        tokens = min(max(int(draw.lognormvariate(math.log(ANSWER), SPREAD)), 1), LONGEST)
        kind = draw.choices(KINDS, SHARES)[0]
        yield Asked(at, kind, draw.randrange(PROMPTS), tokens, draw.random() < 0.6)


def prompts(alone: Decoder) -> list[str]:
    """Prompts of the lengths that the trace has."""
    draw = random.Random(1)
    words = Path(random.__file__).read_text().split()
    made = []
    for i in range(PROMPTS):
        most = min(int(draw.lognormvariate(math.log(PROMPT), SPREAD)), 400)
        text = " ".join(words[i * 40 : i * 40 + 400])
        made.append(alone.tokenizer.decode(alone.tokenizer.encode(text)[: max(most, 4)]))
    return made


class Traffic:
    """Clients of a day."""

    def __init__(self, router: Routing, texts: list[str], expected: list[list[str]]) -> None:
        self._router, self._texts, self._expected = router, texts, expected
        self.seen: Counter[str] = Counter()
        self.wrong: list[Any] = []

    def play(self, asked: Asked, started: float) -> None:
        time.sleep(max(started + asked.at - time.monotonic(), 0))
        try:
            self.seen[self._played(asked)] += 1
        except (OSError, HTTPException) as e:
            self.wrong.append((asked, repr(e)))  # the router itself breaks nothing off
        except AssertionError as e:
            self.wrong.append((asked, str(e)[:500]))

    def _played(self, asked: Asked) -> str:
        body = {"prompt": self._texts[asked.prompt], "seed": asked.prompt, "stream": asked.stream,
                "max_tokens": asked.tokens, "ignore_eos": True}  # fmt: skip
        data = json.dumps(body).encode()
        if asked.kind == "malformed":
            data = MALFORMED[asked.tokens % len(MALFORMED)]
        connection = HTTPConnection(self._router.host, self._router.port, timeout=240)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", data)
            if asked.kind == "leaves":
                time.sleep(asked.tokens / 200)
                return "left"
            response = connection.getresponse()
            if asked.kind == "slow":
                time.sleep(1.5)
            if asked.kind == "malformed" or response.status != 200:
                error = json.loads(response.read())["error"]
                known = (400,) if asked.kind == "malformed" else (429, 503)
                assert response.status in known and error["message"], (response.status, error)
                return f"status {response.status}"
            text = self._text(response, asked)
        if text is None:
            return "broke off"
        assert text == self._expected[asked.prompt][asked.tokens], text
        return "whole"

    def _text(self, response: Any, asked: Asked) -> str | None:
        if not asked.stream:
            return str(json.loads(response.read())["choices"][0]["text"])
        text = ""
        for line in response:
            if line == b"data: [DONE]\n":
                return text
            event = json.loads(line[6:]) if line.startswith(b"data: ") else {}
            if "error" in event:
                return None
            text += "".join(choice["text"] for choice in event.get("choices", ()))
            if asked.kind == "slow":
                time.sleep(0.05)
        raise AssertionError("the stream ended, and nothing said so")


def faults(servers: list[Process], router: Routing, again: Callable[[int], None],
           over: threading.Event) -> Counter[str]:  # fmt: skip
    """Kills replicas, and fills the disk that one keeps conversations on, until told to stop."""
    done: Counter[str] = Counter()
    draw = random.Random(2)
    while not over.wait(draw.uniform(2, 6)):
        i = draw.randrange(len(servers))
        if draw.random() < 0.5:
            servers[i].end()
            done["kills"] += 1
            again(i)
            until(lambda: len(router.fleet.ready) == len(servers), 120)
            continue
        server = psutil.Process(servers[i].popen.pid)
        server.rlimit(psutil.RLIMIT_FSIZE, (4096, -1))
        status, said, _ = servers[i].ask("POST", "/slots/0?action=save", {"filename": "talk"})
        assert status == 507 or said["n_saved"] == 0, (status, said)
        done["full disks"] += status == 507
        server.rlimit(psutil.RLIMIT_FSIZE, (-1, -1))
        status, said, _ = servers[i].ask("POST", "/slots/0?action=save", {"filename": "talk"})
        assert status == 200, said
    return done


def test_every_answer_of_a_day_is_the_one_alone(
    chatty: Path, alone: Decoder, tmp_path: Path
) -> None:
    texts = prompts(alone)
    expected = []
    for n, text in enumerate(texts):
        made = alone.generate(text, LONGEST, temperature=1.0, seed=n, ignore_eos=True)
        expected.append([alone.tokenizer.decode(made.ids[:k]) for k in range(LONGEST + 1)])
    folders = [tmp_path / f"slots{i}" for i in range(2)]
    words = ("serve", f"box={chatty}", "--device", "cpu", "--max-batch", "8", "--queue", "64")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(process(*words, "--slot-save-path", str(f))) for f in folders
        ]
        router = stack.enter_context(routing(*servers))

        def again(i: int) -> None:
            port = str(servers[i].port)
            made = process(*words, "--slot-save-path", str(folders[i]), "--port", port)
            servers[i] = stack.enter_context(made)

        over, traffic = threading.Event(), Traffic(router, texts, expected)
        asked, started = [*day(SECONDS, random.Random(0))], time.monotonic()
        with ThreadPoolExecutor(64) as pool:
            injecting = pool.submit(faults, servers, router, again, over)
            for one in asked:
                time.sleep(max(started + one.at - time.monotonic() - 0.1, 0))
                pool.submit(traffic.play, one, started)
            over.set()
        found = injecting.result()
        print(f"{len(asked)} requests in {time.monotonic() - started:.0f} s: {dict(traffic.seen)}; "
              f"{dict(found)}")  # fmt: skip
        assert not traffic.wrong, traffic.wrong[:3]
        assert traffic.seen.total() == len(asked) and traffic.seen["whole"] > len(asked) // 2
        assert min(found["kills"], found["full disks"], traffic.seen["left"]) > 0
        idle = 'weft_engine_running{model="box"} 0.0'
        until(lambda: all(idle in server.ask("GET", "/metrics")[1] for server in servers))
