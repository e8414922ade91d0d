"""Engines that wait before a step until a test lets them: what is to happen in the middle of an
answer happens there, however quick or slow the machine is."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.serve.player import EngineThread

if TYPE_CHECKING:
    from serve_kit import Listening, Running


class Gate:
    """Says how many steps of an engine may pass since it was shut; open, as many as come. A file
    holds the number, so that a server in another process can be held too."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def shut(self) -> None:
        self.let(0)

    def let(self, steps: int) -> None:
        """Lets so many steps pass, counted from when it was shut."""
        made = self.file.with_suffix(".new")
        made.write_text(str(steps))
        os.replace(made, self.file)

    def open(self) -> None:
        self.file.unlink(missing_ok=True)

    def _most(self) -> int | None:
        try:
            return int(self.file.read_text())
        except FileNotFoundError:
            return None

    def before(self, step: Callable[[], bool], over: Callable[[], bool]) -> Callable[[], bool]:
        """`step` behind the gate. It goes on in any case where it is `over`."""
        passed = 0

        def held() -> bool:
            nonlocal passed
            while (most := self._most()) is not None and passed >= most and not over():
                time.sleep(0.002)
            passed = 0 if most is None else passed + 1
            return step()

        return held


def hold(file: str) -> None:
    """Puts a gate before every engine that this process will play."""
    run = EngineThread._run

    def held(self: EngineThread) -> None:
        gate, step = Gate(Path(file)), self.engine.step
        self.engine.step = gate.before(step, lambda: self._closing)  # type: ignore[method-assign]
        run(self)

    EngineThread._run = held  # type: ignore[method-assign]


@contextlib.contextmanager
def holding(*servers: Running, file: Path) -> Iterator[Gate]:
    """A gate, shut, before the first model of servers in this process; open once the block
    ends."""
    gate = Gate(file)
    before: list[tuple[Any, Any]] = []
    for server in servers:
        asked = {"prompt": "x", "max_tokens": 1}
        assert server.ask("POST", "/v1/completions", asked)[0] == 200  # it is loaded
        player = server.shelf.decoders()[0].player
        step = player.engine.step
        before.append((player.engine, step))
        over = lambda player=player: player._closing  # noqa: E731
        player.engine.step = gate.before(step, over)  # type: ignore[method-assign]
    gate.shut()
    try:
        yield gate
    finally:
        gate.open()
        for engine, step in before:
            engine.step = step


def answers(to: Listening, *kinds: str) -> int:
    """How many answers a server has of these kinds (both unless given): those that are being
    written ("running") and those that wait for a step or a place ("waiting"). A router sums its
    replicas'."""
    text = to.ask("GET", "/metrics")[1]
    found = re.findall(r"^weft_engine_(\w+)(?:\{.*\})? ([\d.]+)$", text, re.MULTILINE)
    return sum(int(float(n)) for kind, n in found if kind in (kinds or ("running", "waiting")))
