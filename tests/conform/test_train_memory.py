"""Training steps without growth: a tiny model, compiled and eager."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.conform.gpt import GptSizes, Trainer
from weft.tensor import Tensor

TINY = GptSizes(layers=2, width=64, heads=1, context=16, batch=2, vocab=32)


def rss() -> int:
    """Resident bytes of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")


@needs_proc
@pytest.mark.slow
def test_two_thousand_compiled_steps_do_not_grow() -> None:
    trainer = Trainer(TINY, "cpu")
    for _ in range(100):
        trainer.step()
    gc.collect()
    before = rss()
    for _ in range(2000):
        trainer.step()
    gc.collect()
    assert rss() - before < 1 << 20
    assert len(trainer.compiled.programs()) == 1


@needs_proc
@pytest.mark.slow
def test_eager_steps_do_not_grow() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    opt = optim.AdamW(model.named_parameters(), lr=1e-3)
    x = weft.tensor(np.random.default_rng(0).standard_normal((32, 64), np.float32))

    def step() -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    for _ in range(50):
        step()
    gc.collect()
    before = rss()
    for _ in range(500):
        step()
    gc.collect()
    assert rss() - before < 1 << 20


def test_steps_reuse_their_buffers() -> None:
    """What test_two_thousand... watches from outside, in seconds: no new state, no new Program."""
    trainer = Trainer(TINY, "cpu")
    trainer.step()
    homes = [t._home for t in trainer.model.parameters()]
    (session,) = trainer.compiled.sessions()
    for _ in range(5):
        trainer.step()
    assert all(t._home is h for t, h in zip(trainer.model.parameters(), homes))
    assert trainer.compiled.sessions() == [session]
    assert all(t.grad is None for t in trainer.model.parameters())
