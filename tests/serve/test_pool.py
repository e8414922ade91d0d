"""Work of requests beside the engines: it goes round, has an end, and who has left is forgotten."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from held import answers
from serve_kit import Running, serving, until

from weft.core.errors import BusyError
from weft.models.grammar.grammars import Grammars
from weft.serve.pool import WorkPool

sys.path.append(str(Path(__file__).parents[1] / "robust"))
from robust_kit import BERT, tiny


class Desk:
    """Does items one by one as a test lets it; `done` are those that it was given."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self._let = threading.Semaphore(0)

    def __call__(self, item: Any) -> Any:
        self.done.append(item)
        assert self._let.acquire(timeout=240)
        if isinstance(item, Exception):
            raise item
        return item * 2

    def let(self, count: int = 1) -> None:
        self._let.release(count)

    async def at(self, count: int) -> None:
        """Waits until so many items have come."""
        while len(self.done) < count:
            await asyncio.sleep(0.001)


def play(work: Callable[[WorkPool, Desk], Coroutine[Any, Any, None]], **more: int) -> None:
    async def go() -> None:
        pool, desk = WorkPool("a test", **more), Desk()
        try:
            async with asyncio.timeout(60):
                await work(pool, desk)
        finally:
            desk.let(1000)
            pool.close()

    asyncio.run(go())


def test_turns_go_round() -> None:
    async def work(pool: WorkPool, desk: Desk) -> None:
        many = asyncio.ensure_future(pool.each(desk, list(range(5))))
        await desk.at(1)
        few = asyncio.ensure_future(pool.each(desk, [10]))
        two = asyncio.ensure_future(pool.each(desk, [20, 21]))
        await asyncio.sleep(0)
        desk.let(100)
        assert await many == [0, 2, 4, 6, 8] and await few == [20] and await two == [40, 42]
        assert desk.done == [0, 1, 10, 20, 2, 21, 3, 4]
        assert await pool.each(desk, []) == []

    play(work)


def test_who_has_left_is_forgotten() -> None:
    async def work(pool: WorkPool, desk: Desk) -> None:
        leaving = [asyncio.ensure_future(pool.each(desk, [n] * 100)) for n in range(8)]
        await desk.at(1)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        desk.let(100)
        assert await pool.run(desk, 9) == 18
        assert desk.done == [0, 9]

    play(work)


def test_no_more_wait_than_may() -> None:
    async def work(pool: WorkPool, desk: Desk) -> None:
        tasks = [asyncio.ensure_future(pool.each(desk, [n])) for n in range(3)]
        await desk.at(1)
        with pytest.raises(BusyError, match="3 requests wait for a test"):
            await pool.run(desk, 4)
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        tasks.append(asyncio.ensure_future(pool.each(desk, [5])))
        desk.let(100)
        assert await asyncio.gather(*tasks[:2], tasks[3]) == [[0], [2], [10]]

    play(work, waiting=3)


def test_an_error_ends_its_request_alone() -> None:
    async def work(pool: WorkPool, desk: Desk) -> None:
        wrong = asyncio.ensure_future(pool.each(desk, [1, ValueError("wrong"), 2, 3]))
        other = asyncio.ensure_future(pool.each(desk, [4, 5]))
        desk.let(100)
        with pytest.raises(ValueError, match="wrong"):
            await wrong
        assert await other == [8, 10] and 3 not in desk.done

    play(work)


def test_what_is_being_done_can_be_stopped() -> None:
    async def work(pool: WorkPool, desk: Desk) -> None:
        stopped: list[int] = []
        task = asyncio.ensure_future(pool.run(desk, 1, stop=stopped.append))
        await desk.at(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(stopped) == 1
        desk.let(2)
        assert await pool.run(desk, 2, stop=stopped.append) == 4
        assert len(stopped) == 1  # what has ended is not stopped

    play(work)


# -- in a server ----------------------------------------------------------------------------------


def asking(to: Running, path: str, body: bytes) -> socket.socket:
    """A client that has asked, and may leave."""
    s = socket.create_connection((to.host, to.port), timeout=240)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    s.sendall(head.encode() + body)
    return s


def leave(to: Running, clients: list[socket.socket]) -> None:
    """They leave, and the server has seen it."""
    for client in clients:
        client.close()
    until(lambda: not any(m.users for m in to.shelf.loaded()))


def test_clients_that_leave_their_embeddings(tmp_path: Path) -> None:
    with serving({"bert": str(tiny(tmp_path, BERT))}) as to:
        assert to.ask("POST", "/v1/embeddings", {"input": "x"})[0] == 200
        model = to.shelf.loaded()[0].model
        desk, embed = Desk(), model.embed_ids  # type: ignore[attr-defined]

        def held(*rows: Any) -> Any:
            desk(1)
            return embed(*rows)

        model.embed_ids = held  # type: ignore[attr-defined]
        texts = b'{"input": [' + b", ".join([b'"a text"'] * 200) + b"]}"
        clients = [asking(to, "/v1/embeddings", texts) for _ in range(8)]
        until(lambda: to.shelf.loaded()[0].users == 8 and desk.done)  # type: ignore[arg-type]
        assert to.ask("POST", "/tokenize", {"prompt": "x"})[0] == 200  # others go on
        leave(to, clients)
        desk.let(1000)
        assert to.ask("POST", "/v1/embeddings", {"input": "x"})[0] == 200
        assert len(desk.done) == 2  # what was being done, and this


def test_clients_that_leave_their_grammars(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form that is known, and answers without one, wait for none of them."""
    path = "/v1/completions"
    known = {"prompt": "x", "max_tokens": 4, "guided_regex": "[0-9]+"}
    assert server.ask("POST", path, known)[0] == 200
    grammars = server.shelf.decoders()[0].grammars()
    desk, tried = Desk(), Grammars._try

    def held(self: Grammars, text: str) -> None:
        desk(text)
        tried(self, text)

    monkeypatch.setattr(Grammars, "_try", held)
    asked = b'{"prompt": "x", "max_tokens": 4, "guided_regex": "[a-z]{%d}"}'
    clients = [asking(server, path, asked % (n + 1)) for n in range(8)]
    until(lambda: server.shelf.decoders()[0].users == 8 and bool(desk.done))
    assert server.ask("POST", path, known)[0] == 200
    assert server.ask("POST", path, {**known, "guided_regex": None})[0] == 200
    leave(server, clients)
    desk.let(1000)
    assert server.ask("POST", path, {**known, "guided_regex": "[a-z]{9}"})[0] == 200
    assert len(desk.done) == 2 and answers(server) == 0
    assert grammars is server.shelf.decoders()[0].grammars()


def test_a_grammar_that_nobody_waits_for_is_not_tried_on(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child is ended at once; the next grammar gets another."""
    path = "/v1/completions"
    monkeypatch.setattr("weft.models.grammar.grammars.MAX_SECONDS", 600.0)
    slow = b'{"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"name": '
    slow += b'"x", "schema": {"type": "integer", "multipleOf": 99999989}}}, "messages": [{"role": '
    slow = slow.replace(b'"prompt": "x", ', b"") + b'"user", "content": "x"}]}'
    assert server.ask("POST", path, {"prompt": "x", "max_tokens": 1})[0] == 200
    grammars = server.shelf.decoders()[0].grammars()
    client = asking(server, "/v1/chat/completions", slow)
    until(lambda: grammars._trying is not None)
    leave(server, [client])
    asked = {"prompt": "x", "max_tokens": 4, "guided_regex": "[a-z]{8}"}
    assert server.ask("POST", path, asked)[0] == 200
