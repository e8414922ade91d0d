"""Random schedules on real models, whose caches are in pages of 64: an answer has the tokens and
logprobs that the model gives when it is read token by token, with each kind of cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import run_state_machine_as_test
from paged_kit import VOCAB
from present import opened
from test_engine_schedules import COMMON, Schedules

import weft
from weft.conform.models import CONFIGS
from weft.engine.drafts import Drafts
from weft.models import random_folder
from weft.models.run.drafting import drafts_by

CONTEXT = 192
SIZE = {**CONFIGS["llama"], "vocab_size": VOCAB, "max_position_embeddings": CONTEXT}
RNG = np.random.default_rng(5)
HEADS = [tuple(RNG.integers(0, VOCAB, n).tolist()) for n in (3, 60, 64, 130)]


class Failing:
    """A paged runner whose steps call `fails` first, as those of `Fake` do."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.fails: Callable[[], None] = lambda: None
        self.held: Callable[[int], int]
        self.moved = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def prefill(self, *given: Any) -> np.ndarray:
        self.fails()
        out: np.ndarray = self._runner.prefill(*given)
        return out

    @property
    def pause(self) -> Any:
        return getattr(self._runner, "pause", None)

    @pause.setter
    def pause(self, pause: Any) -> None:
        self._runner.pause = pause

    def read_pages(self, pages: Sequence[int], *window: bool) -> Any:
        self.moved += len(pages)
        return self._runner.read_pages(pages, *window)

    def write_pages(self, *given: Any) -> None:
        self.fails()
        self._runner.write_pages(*given)

    def rows(self, *given: Any) -> np.ndarray:
        self.fails()
        out: np.ndarray = self._runner.rows(*given)
        return out


class OfModels(Schedules):
    """Few pages, so that sequences are preempted; prompts that share some of them."""

    heads, adapters = HEADS, [""]
    model: Any
    small: Any
    runners: dict[tuple[int, int], Any]

    def runner(self, data: st.DataObject) -> Failing:
        key = data.draw(st.sampled_from([(1, 3), (3, 4), (5, 6)]))
        if key not in self.runners:  # what its pages hold of an earlier run is nothing to anybody
            self.runners[key] = self.model.new_runner(*key)
        return Failing(self.runners[key])

    def models(self) -> list[Callable[[], Drafts]]:
        return [lambda: drafts_by(self.model, self.small, 2, 6)]

    def see(self, adapter: str, tokens: Sequence[int]) -> np.ndarray:  # type: ignore[override]
        """One sequence, in one go."""
        out: np.ndarray = self.model.runner(1).prefill(0, list(tokens)).copy()
        return out


@pytest.mark.parametrize("device,cache,count", [
    ("cpu", "f32", 8),
    *(pytest.param("cpu", cache, 40, marks=pytest.mark.slow) for cache in ("int8", "f16")),
    *(pytest.param("vulkan", cache, 4, marks=pytest.mark.slow) for cache in ("f32", "int8")),
])  # fmt: skip
def test_answers_are_what_they_are_alone(
    tmp_path: Path, device: str, cache: str, count: int
) -> None:
    opened(device)
    large = random_folder(tmp_path / "large", SIZE, scale=0.3)
    small = random_folder(tmp_path / "small", {**SIZE, "num_hidden_layers": 1}, scale=0.3)

    class Machine(OfModels):
        model = weft.load(large, device=device, cache=cache)
        runners: dict[tuple[int, int], Any] = {}

    Machine.small = weft.load(small, device=device)
    check(Machine, count)


@pytest.mark.parametrize("family", ["falcon_h1", pytest.param("mamba", marks=pytest.mark.slow)])
def test_state_spaces(tmp_path: Path, family: str) -> None:
    """A sequence that was preempted begins again: its memory is not in pages."""
    size = {**CONFIGS[family], "vocab_size": VOCAB}
    size |= {"max_position_embeddings": CONTEXT} if family != "mamba" else {}

    class Machine(OfModels):
        model = weft.load(random_folder(tmp_path, size, scale=0.3), device="cpu", context=CONTEXT)
        runners: dict[tuple[int, int], Any] = {}

        def models(self) -> list[Callable[[], Drafts]]:
            return []

    check(Machine, 6)


def check(machine: type[OfModels], count: int) -> None:
    how = settings(max_examples=count, **{**COMMON, "stateful_step_count": 12})
    run_state_machine_as_test(machine, settings=how)
