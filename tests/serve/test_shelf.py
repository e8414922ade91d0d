"""Models that take turns in the memory, and go when nobody uses them."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from held import holding
from serve_kit import Running, process, serving, until

from weft.cli.main import cli
from weft.cli.serve import paths_of
from weft.core.errors import UsageError
from weft.serve.load_queue import LoadQueue
from weft.serve.model_paths import models_in, named
from weft.serve.wire import HttpError

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def size(chatty: Path) -> int:
    """Bytes of the model with a cache of 1 MiB."""
    with serving({"a": str(chatty)}, memory=1 << 20) as running:
        running.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})
        return running.shelf.loaded()[0].nbytes


@pytest.fixture
def tight(chatty: Path, size: int) -> Iterator[Running]:
    """A server of three models with room for one."""
    models = dict.fromkeys("abc", str(chatty))
    with serving(models, memory=1 << 20, limit=size * 3 // 2) as running:
        yield running


def ask(server: Running, name: str, **more: Any) -> tuple[int, Any]:
    asked = {"model": name, "prompt": "def f(", "max_tokens": 3, "seed": 1, "temperature": 0}
    return server.ask("POST", TEXT, {**asked, **more})[:2]


def test_clients_of_three_models_wait_and_lose_nothing(tight: Running) -> None:
    names = [name for _ in range(10) for name in "abc"]
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda name: ask(tight, name), names))
    assert [status for status, _ in found] == [200] * 30
    assert len({made["choices"][0]["text"] for _, made in found}) == 1
    assert [made["model"] for _, made in found] == names
    assert len(tight.shelf.loaded()) == 1


def test_one_that_is_always_at_work_lets_others_in(tight: Running) -> None:
    """Its new requests wait while another's answers are due."""
    over = threading.Event()

    def busy() -> int:
        asked = 0
        while not over.is_set():
            assert ask(tight, "a", max_tokens=40, ignore_eos=True)[0] == 200
            asked += 1
        return asked

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(busy) for _ in range(3)]
        until(lambda: any(m.users for m in tight.shelf.loaded()))
        try:
            assert ask(tight, "b")[0] == 200
            assert ask(tight, "c")[0] == 200
        finally:
            over.set()
        assert all(client.result() for client in clients)


def test_who_waits_too_long_is_told(chatty: Path, size: int, tmp_path: Path) -> None:
    models = dict.fromkeys("ab", str(chatty))
    more: dict[str, Any] = {"memory": 1 << 20, "limit": size * 3 // 2}
    with (
        serving(models, **more) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        assert ask(running, "a")[0] == 200
        running.shelf._queue.seconds = 0.3
        with holding(running, file=tmp_path / "steps") as gate:
            first = pool.submit(ask, running, "a")
            until(lambda: any(m.users for m in running.shelf.loaded()))
            status, made = ask(running, "b")
            assert status == 503 and "was not loaded within 0.3 s" in made["error"]["message"]
            gate.open()
            assert first.result()[0] == 200
        running.shelf._queue.seconds = 240
        assert ask(running, "b")[0] == 200  # and the first takes requests again
        assert ask(running, "a")[0] == 200


def test_ollamas_keep_alive(chatty: Path) -> None:
    with serving({"a": str(chatty)}) as running:

        def load(**more: Any) -> Any:
            return running.ask("POST", "/api/generate", {"model": "a", "stream": False, **more})[1]

        assert load()["done_reason"] == "load"
        assert gc.get_freeze_count() > 10_000  # no collection walks through the model in a step
        (told,) = running.ask("GET", "/api/ps")[1]["models"]
        assert told["expires_at"].startswith("2318")
        assert load(keep_alive="1h30m")["done_reason"] == "load"
        (told,) = running.ask("GET", "/api/ps")[1]["models"]
        assert 5300 < running.shelf.loaded()[0].expiry.at - time.time() <= 5400  # type: ignore
        assert told["expires_at"][:2] == "20"
        assert load(keep_alive=0)["done_reason"] == "unload"
        until(lambda: not running.shelf.loaded() and not gc.get_freeze_count())
        assert running.ask("GET", "/api/ps")[1]["models"] == []
        assert load(prompt="def f(", options={"num_predict": 2}, keep_alive=0.2)["response"]
        until(lambda: not running.shelf.loaded())
        for wrong in ("5 minutes", "nan", "h", "1e99", "--1s"):
            status, made, _ = running.ask(
                "POST", "/api/generate", {"model": "a", "keep_alive": wrong}
            )
            assert status == 400 and "keep_alive" in made["error"], wrong


def test_a_model_with_adapters_that_came_stays(chatty: Path, tmp_path: Path) -> None:
    with serving({"a": str(chatty)}, keep_alive=0.01, adapter_folder=str(tmp_path)) as running:
        asked = {"model": "a", "stream": False, "keep_alive": 0}
        assert running.ask("POST", "/api/generate", asked)[0] == 200
        time.sleep(0.2)
        assert running.shelf.loaded()


def test_a_model_that_is_used_stays(chatty: Path, tmp_path: Path) -> None:
    with serving({"a": str(chatty)}, keep_alive=0.05) as running, ThreadPoolExecutor(1) as pool:
        with holding(running, file=tmp_path / "steps") as gate:
            first = pool.submit(ask, running, "a", max_tokens=20, ignore_eos=True)
            until(lambda: any(m.users for m in running.shelf.loaded()))
            gate.let(3)
            assert running.shelf.loaded()
            gate.open()
            assert first.result()[0] == 200
        until(lambda: not running.shelf.loaded())
        assert ask(running, "a")[0] == 200


def test_a_queue_ends_what_it_cannot_load() -> None:
    class Made:
        users = 0

    async def play() -> None:
        made, begun, go = Made(), asyncio.Event(), asyncio.Event()

        async def load(name: str) -> Any:
            begun.set()
            await go.wait()
            if name == "bad":
                raise UsageError("no such file")
            return made

        queue = LoadQueue(load, 3, 60)
        places = [asyncio.ensure_future(queue.take(name)) for name in ("bad", "good", "good")]
        await begun.wait()
        with pytest.raises(HttpError, match="3 requests wait"):
            await queue.take("good")
        places[2].cancel()  # a client that leaves
        go.set()
        found = await asyncio.gather(*places, return_exceptions=True)
        assert isinstance(found[0], UsageError) and found[1] is made
        assert isinstance(found[2], asyncio.CancelledError) and made.users == 1
        go.clear()
        late = asyncio.ensure_future(queue.take("other"))
        await asyncio.sleep(0)
        await queue.close()
        with pytest.raises(HttpError, match="the server is going"):
            await late

    asyncio.run(play())


def test_a_folder_of_models(chatty: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(chatty)
    (tmp_path / "three.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("no model")
    found, wrong = models_in(tmp_path)
    assert list(found) == ["one", "three", "two"] and found["three"].endswith("three.gguf")
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    found, wrong = models_in(tmp_path)
    assert "one" not in found and "called 'one'" in wrong["one"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"lacks models.*or name one"):
        paths_of((), str(tmp_path / "empty"))
    assert list(paths_of(("a=b",), str(tmp_path / "empty"))[0]) == ["a"]


def test_a_folder_is_served(chatty: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(chatty)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    (tmp_path / "two\n.gguf").touch()
    os.mkfifo(tmp_path / "pipe.gguf")
    with process("serve", "--model-folder", str(tmp_path), "--device", "cpu", "--keep-alive", "5m",
                 "--load-timeout", "240") as made:  # fmt: skip
        told = made.ask("GET", "/v1/models")[1]["data"]
        assert [one["id"] for one in told] == ["one", "two"]
        assert not any("fingerprint" in one for one in told)  # none is loaded yet
        asked = {"model": "two", "prompt": "x", "max_tokens": 1}
        assert made.ask("POST", TEXT, asked)[0] == 200
        (loaded,) = made.ask("GET", "/api/ps")[1]["models"]
        assert loaded["name"] == "two"
        for name in ("bad", "pipe", "two\n"):
            status, said, _ = made.ask("POST", TEXT, {**asked, "model": name})
            assert status == 404 and f"the model {name!r} is left out" in said["error"]["message"]
            assert str(tmp_path) not in str(said)
    with pytest.raises(UsageError, match=r"'bad' is not there.*; .*neither a file.*printable"):
        cli.main(["serve", "--check", "--model-folder", str(tmp_path)], standalone_mode=False)


def test_one_key_cannot_keep_others_from_their_models() -> None:
    """In a full queue of requests for models, a key with few of them still has place."""

    async def tried() -> list[str]:
        queue = LoadQueue(lambda name: asyncio.Event().wait(), 16, 60)  # type: ignore[arg-type]
        places = [asyncio.ensure_future(queue.take("m", b"greedy")) for _ in range(16)]
        await asyncio.sleep(0)
        said = []
        for owner in [b"greedy", *(bytes([i // 2]) for i in range(33))]:
            place = asyncio.ensure_future(queue.take("m", owner))
            await asyncio.sleep(0)
            places.append(place)
            said.append("no" if place.done() else "waits")
        places[20].cancel()  # the place of one that leaves is free again
        await asyncio.sleep(0)
        late = asyncio.ensure_future(queue.take("m", b"late"))
        await asyncio.sleep(0)
        said.append("no" if late.done() else "waits")
        await queue.close()
        await asyncio.gather(*places, late, return_exceptions=True)
        return said

    said = asyncio.run(tried())
    assert said[0] == "no" and said[1:17] == ["waits"] * 16  # up to twice the queue
    assert set(said[17:34]) == {"no"} and said[34] == "waits"


@pytest.mark.parametrize("name", [b"a\nb.gguf", b"\xff.gguf", b" .gguf", b"pipe.gguf"])
def test_a_model_folder_with_a_name_or_a_pipe_that_harms_others(
    tmp_path: Path, name: bytes
) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)
    if name == b"pipe.gguf":
        os.mkfifo(path)
    else:
        Path(os.fsdecode(path)).touch()
        with pytest.raises(UsageError, match=r"printable|names no model"):
            named([os.fsdecode(name.removesuffix(b".gguf")) + "=x"])
    found, wrong = models_in(tmp_path)
    ((_, why),) = wrong.items()
    assert not found and ("printable" if b"pipe" not in name else "neither a file") in why
    with pytest.raises(UsageError, match="lacks models"):
        paths_of((), str(tmp_path))


def test_a_model_that_cannot_be_loaded_is_named(
    chatty: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged, foreign or deleted: its own requests alone fail, told which model it is, and not
    where it lies; the log says why. Mended, it is served."""
    for name in ("good", "config", "weights", "gone"):
        shutil.copytree(chatty, tmp_path / name)
    (tmp_path / "config" / "config.json").write_text('{"model_type": "llama", "hidden_size": "x"}')
    (weights,) = (tmp_path / "weights").glob("*.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    shutil.rmtree(tmp_path / "gone")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 99)
    models = {name: str(tmp_path / name) for name in ("good", "config", "weights", "gone")}
    with serving({**models, "cut": str(tmp_path / "cut.gguf")}) as server:
        fine = ask(server, "good")
        for name in ("config", "weights", "gone", "cut"):
            caplog.clear()
            status, said = ask(server, name)
            message = said["error"]["message"]
            assert status == 500 and f"the model '{name}' cannot be loaded" in message
            assert str(tmp_path) not in message and str(tmp_path / name) in caplog.text
        listed = server.ask("GET", "/api/tags")  # also with one that has gone
        assert listed[0] == 200 and len(listed[1]["models"]) == 5
        assert fine[0] == 200 and ask(server, "good")[1]["choices"] == fine[1]["choices"]
        weights.write_bytes(whole)
        assert ask(server, "weights")[1]["choices"] == fine[1]["choices"]


def test_a_first_model_beyond_the_memory_ends_the_start(chatty: Path) -> None:
    with pytest.raises(UsageError, match="box is larger than this server's memory limit"):
        cli.main(["serve", f"box={chatty}", "--port", "0", "--memory", "1KiB"],
                 standalone_mode=False)  # fmt: skip
