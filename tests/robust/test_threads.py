"""Two threads, and processes that fork after use: the same tokens, or a clear error."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from present import opened
from robust_kit import BERT, tiny

import weft
from weft.backends import registry

PROMPTS = [[1, 2, 3], [9], [200, 4, 8, 2], [17, 18]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model"))


def expected(folder: Path) -> list[Any]:
    model = weft.load(folder, device="cpu")
    return [model.generate(p, max_new_tokens=20) for p in PROMPTS]


def test_two_models_from_two_threads(folder: Path) -> None:
    """Cold: both compile and run at once."""
    want = expected(folder)

    def work(context: int) -> list[Any]:
        model = weft.load(folder, device="cpu", context=context)
        return [model.generate(p, max_new_tokens=20) for _ in range(3) for p in PROMPTS]

    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(work, [30, 31, 32, 33]):
            assert got == want * 3


def test_one_model_from_many_threads_takes_turns(folder: Path) -> None:
    want = expected(folder)
    model = weft.load(folder, device="cpu")
    rows = model.logits(PROMPTS[2])

    def work(i: int) -> Any:
        if i % 5 == 4:
            np.testing.assert_array_equal(model.logits(PROMPTS[2]), rows)
            return None
        return model.generate(PROMPTS[i % 4], max_new_tokens=20)

    with ThreadPoolExecutor(4) as pool:
        for i, got in enumerate(pool.map(work, range(40))):
            assert got is None or got == want[i % 4]


def test_streams_of_one_model_never_mix(folder: Path) -> None:
    """Each stream is right, whatever others are open."""
    want = expected(folder)
    model = weft.load(folder, device="cpu")
    outcome: list[bool] = []

    def work(i: int) -> None:
        for _ in range(5):
            ids = [t for p in model.generate(PROMPTS[i], 20, stream=True) for t in p.ids]
            outcome.append(tuple(ids) == want[i].ids)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert outcome == [True] * 15
    assert model.generate(PROMPTS[0], max_new_tokens=20) == want[0]


def test_one_encoder_from_many_threads(tmp_path: Path) -> None:
    model = weft.load(tiny(tmp_path, BERT), device="cpu")
    texts = ["a", "some words", "x" * 25, "more of them"]
    want = [model.embed([t]) for t in texts]
    with ThreadPoolExecutor(4) as pool:
        for i, got in enumerate(pool.map(lambda i: model.embed([texts[i % 4]]), range(40))):
            np.testing.assert_array_equal(got, want[i % 4])


@pytest.fixture(params=["cpu:0", "vulkan"])
def device(request: pytest.FixtureRequest) -> str:
    line = registry.probe(request.param.partition(":")[0])[0]
    if not line.available:
        pytest.skip(line.reason)
    return str(request.param)


def test_tensors_in_many_threads(device: str) -> None:
    """Eager ops share their Programs, a compiled function its Session; tracing stays private."""
    compiled = weft.compile(lambda x: (x + 1.0) * 2.0, device=device)

    def work(i: int) -> None:
        own = weft.compile(lambda x: (x - i) * 3.0, device=device)
        for k in range(60):
            host = np.full((8, 16), i * 1000 + k, np.float32)
            x = weft.tensor(host).to(device)
            np.testing.assert_array_equal(((x + 1.0) * 2.0).numpy(), (host + 1) * 2)
            np.testing.assert_array_equal(compiled(weft.tensor(host)).numpy(), (host + 1) * 2)
            np.testing.assert_array_equal(own(weft.tensor(host)).numpy(), (host - i) * 3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_two_models_on_vulkan(folder: Path) -> None:
    opened("vulkan")

    def work(context: int) -> list[Any]:
        model = weft.load(folder, device="vulkan", context=context)
        return [model.generate(p, max_new_tokens=6) for p in PROMPTS]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, [30, 31])
    assert first == second


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_after_use(folder: Path) -> None:
    model = weft.load(folder, device="cpu")
    want = model.generate(PROMPTS[0], max_new_tokens=20)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                same = model.generate(PROMPTS[0], max_new_tokens=20) == want
                fresh = weft.load(folder, device="cpu", context=25)
                same &= fresh.generate(PROMPTS[0], max_new_tokens=20) == want
                status = 0 if same else 2
            finally:
                os._exit(status)
        children.append(child)
    assert model.generate(PROMPTS[0], max_new_tokens=20) == want
    assert [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children] == [0, 0, 0]
