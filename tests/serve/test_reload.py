"""Configuration that a running server reads again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from held import answers, holding
from serve_kit import Process, process, serving, until

from weft.serve.keys import ApiKey, ApiKeys, KeyLimits
from weft.serve.running import TRIM_TICKS, Server

TEXT = "/v1/completions"
SOME = {"prompt": "x", "max_tokens": 40, "ignore_eos": True, "seed": 1}
LONG = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "seed": 1}


def written(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def said(made: Process, *words: str) -> str:
    """The next line of the log with these words."""
    assert made.popen.stderr is not None
    while line := made.popen.stderr.readline():
        if all(word in line for word in words):
            return line
    raise AssertionError(words)


def test_a_file_is_read_again(chatty: Path, tmp_path: Path) -> None:
    """Keys, models and options of a file change at SIGHUP, all or none."""
    models, config, keys = tmp_path / "models", tmp_path / "weft.toml", tmp_path / "keys.toml"
    models.mkdir()
    shutil.copytree(chatty, models / "one")
    written(keys, f'[ann]\nkey = "{"a" * 16}"\n')
    first = f'model-folder = "{models}"\nkeys-file = "{keys}"\n'
    written(config, first + 'log-level = "info"\n')
    with process("serve", "--config", str(config), "--device", "cpu") as made:
        ann, bob = ({"x-api-key": c * 16} for c in "ab")

        def status(key: dict[str, str], model: str) -> Any:
            asked = {"prompt": "x", "max_tokens": 1, "model": model}
            return made.ask("POST", TEXT, asked, key)[0]

        def reload() -> None:
            os.kill(made.popen.pid, signal.SIGHUP)

        assert (status(ann, "one"), status(ann, "two"), status(bob, "one")) == (200, 404, 401)
        written(keys, f'[bob]\nkey = "{"b" * 16}"\nrunning = 3\n')
        os.replace(models / "one", models / "two")
        for wrong, why in (("max-batch = 4\n", "--max-batch cannot change"),
                           ("log-level = 3\n", "log-level"), ("max-bach = 1\n", "max-batch"),
                           ("[", "not TOML")):  # fmt: skip
            written(config, first + wrong)
            reload()
            said(made, "stays as it was", why)
            assert (status(ann, "one"), status(bob, "one")) == (200, 401)
        written(config, first + 'log-level = "debug"\n')
        reload()
        until(lambda: status(bob, "two") == 200)
        assert (status(ann, "two"), status(bob, "one")) == (401, 404)
        said(made, "DEBUG", TEXT)
        made.popen.send_signal(signal.SIGTERM)
        assert made.popen.wait(60) == 0


def test_a_router_reads_its_keys_again(server: Any, tmp_path: Path) -> None:
    keys = tmp_path / "key"
    written(keys, "a" * 16)
    with process("route", server.url, "--api-key-file", str(keys)) as made:
        assert made.ask("GET", "/health", headers={"x-api-key": "a" * 16})[0] == 200
        written(keys, "b" * 16)
        os.kill(made.popen.pid, signal.SIGHUP)
        until(lambda: made.ask("GET", "/health", headers={"x-api-key": "b" * 16})[0] == 200)
        assert made.ask("GET", "/health", headers={"x-api-key": "a" * 16})[0] == 401


def test_a_model_that_goes_ends_its_answers(chatty: Path, tmp_path: Path) -> None:
    """One that is served no longer writes on, and is then released; one by the same name that is
    elsewhere now is another."""
    other = str(shutil.copytree(chatty, tmp_path / "other"))
    with serving({"box": str(chatty)}) as made, holding(made, file=tmp_path / "steps") as gate:
        shelf, got = made.shelf, []
        old = shelf.decoders()[0]
        asking = threading.Thread(target=lambda: got.append(made.ask("POST", TEXT, LONG)))
        asking.start()
        until(lambda: answers(made) == 1)
        change = lambda: shelf.change({"box": other}, None, None, 300.0)  # noqa: E731
        made.loop.call_soon_threadsafe(change)
        until(lambda: not shelf.loaded())
        new = made.ask("POST", TEXT, {"prompt": "x", "max_tokens": 300, "seed": 1})
        assert new[0] == 200 and shelf.decoders()[0] is not old and not got
        tokenizer = shelf.decoders()[0].model.tokenizer
        assert tokenizer is not None and str(tokenizer.path.parent) == other
        gate.open()
        asking.join(60)
        status, answer, _ = got[0]
        assert status == 200 and answer["usage"]["completion_tokens"] == 300
        until(lambda: not shelf._retired and not old.player._thread.is_alive())


def test_a_key_that_goes_in_mid_stream(chatty: Path, tmp_path: Path) -> None:
    """Its stream and its waiting requests come to their ends, the next request gets 401, and its
    batch waits until it is back."""
    ann, bob, secret = b"a" * 16, b"b" * 16, {"x-api-key": "b" * 16}
    keys = ApiKeys([ApiKey("ann", ann), ApiKey("bob", bob, KeyLimits(running=9))])
    key = keys.keys[1]
    with (
        serving({"box": str(chatty)}, key=keys, sequences=2, batches=tmp_path / "b") as made,
        ThreadPoolExecutor(4) as pool,
        openai.OpenAI(base_url=f"{made.url}/v1", api_key="b" * 16, max_retries=0) as client,
    ):
        assert made.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1}, secret)[0] == 200
        player = made.shelf.decoders()[0].player
        go, check = threading.Event(), player._check
        player._check = lambda: (go.wait(60), check())[1]
        lines = [{"custom_id": f"{i}", "method": "POST", "url": TEXT, "body": SOME}
                 for i in range(3)]  # fmt: skip
        data = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("x", data), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        until(lambda: key.running == 1)  # a request of the batch, one at a time
        asked = [pool.submit(made.ask, "POST", TEXT, {**SOME, "stream": i == 0}, secret)
                 for i in range(4)]  # fmt: skip
        until(lambda: player.stats.running + player.stats.waiting == 5)
        become = lambda *others: made.loop.call_soon_threadsafe(  # noqa: E731
            keys.become, ApiKeys([ApiKey("ann", ann), *others])
        )
        become()
        until(lambda: made.ask("POST", TEXT, SOME, secret)[0] == 401)
        go.set()
        answers = [one.result(60) for one in asked]
        assert [status for status, _, _ in answers] == [200] * 4
        events = [json.loads(e[6:]) for e in answers[0][1].split("\n\n") if e.startswith("data: {")]
        text = "".join(event["choices"][0]["text"] for event in events)
        for _, each, _ in answers[1:]:
            assert each["usage"]["completion_tokens"] == 40 and each["choices"][0]["text"] == text
        until(lambda: key.running == 0 and player.idle)
        worker = made.server.config.app._app.state.batches  # type: ignore[union-attr]
        (one,) = worker._running
        until(lambda: len(one.journal.done[True]) == 1 and len(one.left) == 2)
        looks = worker._looks
        until(lambda: worker._looks > looks + 1)
        assert len(one.left) == 2 and not one.tasks
        told = made.ask("GET", "/metrics", headers={"x-api-key": "a" * 16})[1]
        assert 'key="ann"' in told and "bob" not in told
        become(ApiKey("bob", bob))
        until(lambda: made.ask("GET", "/v1/models", headers=secret)[0] == 200)
        until(lambda: client.batches.retrieve(batch.id).status == "completed")
        assert client.batches.retrieve(batch.id).request_counts.completed == 3


def test_limits_change_and_what_was_used_counts() -> None:
    now = [0.0]
    ann = ApiKey("ann", b"a" * 16, KeyLimits(tokens_per_minute=100), lambda: now[0])
    keys = ApiKeys([ann, ApiKey("gone", b"g" * 16)])
    ann.spend(90)
    fewer = ApiKey("ann", b"a" * 16, KeyLimits(tokens_per_minute=50))
    keys.become(ApiKeys([ApiKey("bob", b"b" * 16), fewer]))
    assert [key.name for key in keys.keys] == ["bob", "ann"] and keys.keys[1] is ann
    assert keys.find([b"g" * 16]) is None and keys.of_salt(ann.digest) is ann
    assert ann.tokens == 90 and ann._tokens[0][1].wait(1) > 40  # 40 over the new limit
    ann.limit(KeyLimits())
    ann.enter()
    keys.become(ApiKeys([ApiKey("ann", b"n" * 16)]))  # another secret, the same counts
    assert keys.find([b"n" * 16]) is ann and keys.find([b"a" * 16]) is None and ann.tokens == 90


def test_freed_memory_goes_back_to_the_system_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed: list[threading.Thread] = []
    monkeypatch.setattr(
        "weft.serve.running.trim", lambda: trimmed.append(threading.current_thread())
    )

    async def ticks() -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None: ...

        server = Server(app, lambda: None, lambda: None)
        for tick in (1, TRIM_TICKS - 1, TRIM_TICKS + 1, 2 * TRIM_TICKS - 1):
            await server.on_tick(tick)

    asyncio.run(ticks())
    assert len(trimmed) == 2 and threading.main_thread() not in trimmed
