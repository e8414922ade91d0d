"""Each thing that a device may lack, memory included: parts with the same results."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from partition_kit import X, counts, lacking, same, session_of

import weft
from weft import Tensor
from weft.backends import registry
from weft.backends.interp import InterpDevice
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import OutOfMemoryError
from weft.program.parted import PartedSession
from weft.tensor import functional as F


def of_all_kinds(x: Tensor) -> tuple[Tensor, ...]:
    codes = (x * 10).cast("int8").cast("float32") * 0.1
    positive = x > 0
    bytes_ = (x * 3).abs().cast("uint8").cast("float32")
    return (
        codes @ x.T, bytes_ + positive.cast("float32"), x.sort(1), x[x.argmax(1) % 4],
        F.softmax(x, -1), weft.where(positive, x, -x),
    )  # fmt: skip


LACKS: dict[str, dict[str, Any]] = {
    **{f"no {d.name}": {"dtypes": PRESETS["webgpu"].dtypes - {d}} for d in dt.DEVICE},
    "2 bindings": {"max_bindings": 2},
    "8 turns": {"max_turns": 8},
    "1 turn": {"max_turns": 1},
    "16 elements": {"max_elements": 16},
    "64 bytes": {"max_buffer_bytes": 64, "max_binding_bytes": 64},
    "64 bytes per binding": {"max_binding_bytes": 64},
    "2 threads": {"max_threads": 2},
    "no shared memory": {"shared_bytes": 0},
    "2 groups": {"max_groups": 2},
}
CUT = {"no bool", "no int8", "no uint8", "no int32", "no float32", "2 bindings", "8 turns",
       "1 turn", "16 elements", "64 bytes"}  # fmt: skip


@pytest.mark.parametrize("lack", LACKS)
def test_whatever_a_device_lacks(lack: str) -> None:
    compiled = weft.compile(of_all_kinds, lacking(**LACKS[lack]), partition=True)
    for got, want in zip(compiled(X), of_all_kinds(weft.tensor(X))):
        same(got, want)
    session = session_of(compiled)
    assert isinstance(session, PartedSession) == (lack in CUT)
    if lack in CUT:
        report = session.parted.meta["report"]
        assert (session.transfers, session.moved) == (len(report.transfers), report.moved)
        reasons = " ".join(why for *_, why in report.host)
        said = {"2 bindings": "webgpu allows 2 per kernel", "8 turns": "ends them after 8",
                "1 turn": "ends them after 1", "16 elements": "counts at most 16",
                "64 bytes": "allows 64 per buffer"}  # fmt: skip
        assert said.get(lack, f"webgpu has {lack}") in reasons


class Small(InterpDevice):
    """A device with `room` bytes of memory."""

    def __init__(self, room: int):
        super().__init__("webgpu")
        self.room = room

    def free_memory(self) -> int:
        return self.room

    def alloc(self, nbytes: int) -> Any:
        made = super().alloc(nbytes)  # which refuses what is not free
        self.room -= nbytes
        weakref.finalize(made, self._back, nbytes)
        return made

    def _back(self, nbytes: int) -> None:
        self.room += nbytes


def layers(count: int) -> tuple[Any, np.ndarray]:
    """A function of as many layers of 16 KiB of weights each, and its result for X."""
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(count)]
    held = [weft.tensor(w, name=f"w{i}") for i, w in enumerate(weights)]
    x = np.pad(X, ((0, 0), (0, 56)))

    def fn(x: Tensor) -> Tensor:
        for w in held:
            x = (x @ w).tanh()
        return x

    return fn, x


def test_memory_smaller_than_the_weights() -> None:
    fn, x = layers(8)
    device = Small(100_000)  # six of the layers, with what lies between them
    with pytest.raises(OutOfMemoryError, match=r"are free; a smaller batch.*partition=True"):
        weft.compile(fn, device)(x)
    gc.collect()
    compiled = weft.compile(fn, device, partition=True)
    want = fn(weft.tensor(x))
    for run in (1, 2, 3):
        same(compiled(x), want)
        assert counts(compiled) == (2, run, run * x.nbytes)
    report = session_of(compiled).parted.meta["report"]
    (first, nodes, _), (second, others, _) = report.parts
    assert (first, second) == ("webgpu", registry.host().caps.name) and nodes > others
    assert "fill webgpu's memory of 100,000 bytes" in compiled.report()
    same(compiled(x[:2]), fn(weft.tensor(x[:2])))  # the weights are there already
    assert [len(e.parted.parts) for e in compiled._kept.entries()] == [2, 2]


def test_enough_memory_is_one_part_for_every_signature() -> None:
    fn, x = layers(4)
    compiled = weft.compile(fn, Small(100_000), partition=True)
    for rows in (4, 3, 2, 1):
        same(compiled(x[:rows]), fn(weft.tensor(x[:rows])))
    assert [len(e.parted.parts) for e in compiled._kept.entries()] == [1] * 4


def test_states_and_too_little_memory() -> None:
    """A state is never on both sides, wherever memory ends."""
    fn, x = layers(6)
    for room in (20_000, 60_000, 90_000, 10**6):
        total = weft.zeros((4, 64))

        def step(x: Tensor, total: Tensor = total) -> Tensor:
            total.assign(total + x)
            return fn(x) + total

        compiled = weft.compile(lambda x: step(x), Small(room), partition=True)
        for run in (1, 2):
            same(compiled(x), fn(weft.tensor(x)) + weft.tensor(x * run))
        same(total, weft.tensor(x * 2))


def test_no_memory_at_all_runs_on_the_host() -> None:
    fn, x = layers(2)
    compiled = weft.compile(fn, Small(100), partition=True)
    same(compiled(x), fn(weft.tensor(x)))
    assert counts(compiled) == (1, 0, 0)
