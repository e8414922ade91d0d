"""Runner runners: the bits of runners by slot, whatever pages hold what, in any cut of the work."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import DECODERS, FAMILIES, write_model
from present import opened
from rows import few
from stepping import scores

import weft
from weft.conform.models import CONFIGS
from weft.core.errors import LimitError, OutOfMemoryError, UsageError
from weft.engine.job import PagedRunner
from weft.models import random_folder
from weft.models.arch.inputs import PAGE
from weft.models.run.fit import pages_in
from weft.models.run.runner import Runner

IDS = np.random.default_rng(7).integers(0, 90, 180).tolist()
KINDS = ["llama3", "gpt2", "gemma3", "gpt_oss", "qwen3_5", "lfm2", "gemma4", "deepseek_v3",
         "mamba", "falcon_h1"]  # fmt: skip
LLAMA = {**CONFIGS["llama"], "max_position_embeddings": 128}


def shuffled(runner: Runner, seed: int = 0) -> None:
    """Gives every slot its pages, in no order, the first one left out."""
    pages = 1 + np.random.default_rng(seed).permutation(runner.pages - 1)
    runner.tables[:] = pages[: runner.tables.size].reshape(runner.tables.shape)


def paged(model: Any, slots: int = 3) -> Runner:
    columns = -(-model.context // PAGE)
    runner = model.new_runner(slots, slots * columns + 2)
    shuffled(runner)
    return runner


def compare(model: Any, ids: list[int] = IDS[:150]) -> None:
    """Prompts in other chunks, steps of rows of several slots at once, several of one slot."""
    plain, runner = model.runner(2), paged(model)
    third, n = len(ids) // 3, len(ids)
    want = plain.prefill(0, ids).copy()
    plain.prefill(1, ids[:third])
    got = runner.prefill(2, ids[:third]).copy()
    np.testing.assert_array_equal(runner.prefill(2, ids[third:], third), want)
    runner.prefill(1, ids[:third])
    both = plain.rows([3, 4], [0, 1], [n, third]).copy()
    more = plain.rows([5], [1], [third + 1]).copy()
    rows = runner.rows([3, 4, 5], [2, 1, 1], [n, third, third + 1])
    np.testing.assert_array_equal(rows, np.concatenate([both, more]))
    np.testing.assert_array_equal(runner.prefill(0, ids[:third]), got)


def test_the_inputs_of_one_row_are_those_of_a_row_among_others(tmp_path: Path) -> None:
    """One row has a path of its own, in Python's arithmetic."""
    runner = paged(weft.load(random_folder(tmp_path, LLAMA), device="oracle"))
    for slot, place in itertools.product(range(3), (0, PAGE - 1, PAGE, 127)):
        one = runner.inputs(1, [7], [slot], [place])
        two = runner.inputs(2, [7], [slot], [place])
        assert one.keys() == two.keys()
        for name, value in one.items():
            assert value.dtype == two[name].dtype, name
            np.testing.assert_array_equal(value, two[name][: len(value)], err_msg=name)


@pytest.mark.parametrize("name", few(KINDS, "gpt_oss"))
def test_pages_give_the_bits_of_slots(tmp_path: Path, name: str) -> None:
    """Windows, sinks, shared layers, running states."""
    write_model(name, tmp_path, changed={"max_position_embeddings": 256})
    model = weft.load(tmp_path, device="cpu", context=200, max_batch=2)
    compare(model, IDS[:150] if name in DECODERS or name in FAMILIES else IDS)


@pytest.mark.parametrize(
    "cache,device",
    few(
        itertools.product(["f32", "f16", "int8"], ["cpu", "vulkan"]),
        ("f16", "cpu"),
        ("int8", "vulkan"),
    ),
)
def test_every_cache(tmp_path: Path, cache: str, device: str) -> None:
    """Contexts of several spans; on a GPU's kernels a decoding step is in parts."""
    opened(device)
    config = {**CONFIGS["llama"], "num_hidden_layers": 1, "max_position_embeddings": 1300}
    folder = random_folder(tmp_path, config, scale=0.3)
    model = weft.load(folder, device=device, context=1300, max_batch=2, cache=cache)
    ids = np.random.default_rng(3).integers(0, 90, 1202).tolist()
    compare(model, ids)


@pytest.mark.parametrize(
    "device", few(["oracle", "interp:cuda", "interp:hip-wave64"], "interp:cuda")
)
def test_elsewhere(tmp_path: Path, device: str) -> None:
    """What the oracle says, within rounding, of pages on other targets."""
    folder = random_folder(tmp_path, LLAMA, scale=0.3)
    model = weft.load(folder, device=device, context=80)
    want = weft.load(folder, device="oracle", context=80).logits(IDS[:67])
    runner = paged(model, 2)
    np.testing.assert_allclose(runner.prefill(1, IDS[:63]), want[62], atol=1e-4, rtol=1e-4)
    rows = runner.rows(IDS[63:67], [1] * 4, [63, 64, 65, 66])
    np.testing.assert_allclose(rows, want[63:67], atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = random_folder(tmp_path_factory.mktemp("small"), LLAMA, scale=0.3)
    return weft.load(folder, device="cpu", context=90, max_batch=2)


def test_any_number_of_rows(small: Any) -> None:
    """More rows than a step takes, of one slot and of seventy; a prompt beside them."""
    runner, ids = paged(small, 70), IDS[:85]
    assert isinstance(runner, Runner) and runner.page == PAGE
    engine: PagedRunner = runner
    want = scores(small.runner(1), ids)
    np.testing.assert_array_equal(engine.rows(ids, [3] * 85, range(85)), want)
    for slot in range(70):
        engine.rows(ids[:2], [slot] * 2, [0, 1])
    got = engine.rows([ids[2]] * 70 + ids[3:5], [*range(70), 4, 4], [2] * 70 + [3, 4])
    np.testing.assert_array_equal(got, np.stack([want[2]] * 70 + [want[3], want[4]]))


def test_pages_are_shared_moved_and_kept(small: Any) -> None:
    """Two slots read one page; a page's content goes to the host, to another page and back; what
    no row of a step writes stays as it is."""
    runner, ids = paged(small, 2), IDS[:80]
    want = scores(small.runner(1), ids)[-1]
    runner.prefill(0, ids)
    runner.tables[1, 0] = runner.tables[0, 0]
    np.testing.assert_array_equal(runner.prefill(1, ids[64:], 64), want)
    held = runner.read_pages(runner.tables[0].tolist())
    assert sum(x.nbytes for x in held.values()) == 2 * small.page_bytes
    runner.tables[0] = [0, runner.tables[0, 0]]  # a free page; the one that slot 1 reads too
    before = runner.read_pages([runner.tables[1, 1]])
    runner.write_pages([0], {name: x[:1] for name, x in held.items()})
    runner.tables[0, 1] = next(p for p in range(1, 6) if p not in runner.tables)
    np.testing.assert_array_equal(runner.prefill(0, ids[64:], 64), want)
    after = runner.read_pages([runner.tables[1, 1]])
    assert all((before[name] == after[name]).all() for name in before)
    eager = paged(weft.load(small.folder, device="oracle", context=90), 2)
    eager.write_pages([4, 2], held)
    np.testing.assert_array_equal(eager.read_pages([2])["keys.0"], held["keys.0"][1:])


def test_what_is_refused(small: Any) -> None:
    runner = paged(small, 2)
    for slots, pages in ((0, 4), (2, 0), (2, True), (1.5, 3)):
        with pytest.raises(UsageError, match="expected 1 or more"):
            small.new_runner(slots, pages)
    with pytest.raises(UsageError, match="slot"):
        runner.rows([1], [2], [0])
    with pytest.raises(LimitError, match="the context is 90"):
        runner.rows([1], [0], [90])
    runner.tables[0, 1] = runner.pages
    with pytest.raises(UsageError, match="there are 6"):
        runner.rows([1], [0], [64])
    runner.rows([1], [0], [63])  # a page that no row reads may be any
    with pytest.raises(UsageError, match="page"):
        runner.read_pages([-1])
    with pytest.raises(UsageError, match="other planes"):
        runner.write_pages([1, 2], runner.read_pages([1]))


def test_where_running_state_goes_on(tmp_path: Path, small: Any) -> None:
    assert small.new_runner(1, 2).resumes(50, 20)
    write_model("qwen3_5", tmp_path)
    runner = paged(weft.load(tmp_path, device="cpu", context=64), 1)
    assert runner.resumes(9, 9) and runner.resumes(9, 0) and not runner.resumes(9, 8)
    runner.prefill(0, IDS[:9])
    with pytest.raises(UsageError, match="cannot go on from 8"):
        runner.rows([1], [0], [8])


def test_how_many_pages_fit(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the slots can fill, or what memory has room for beside the weights."""
    size = small.page_bytes
    monkeypatch.setattr(type(small.device), "free_memory", lambda self: 10_000 * size)
    assert small.pages_that_fit(3) == 6
    assert small.pages_that_fit(1 << 20, 0.5) == 4608  # of 5,000 less the weights: 9 * 2**9
    monkeypatch.setattr(type(small.device), "free_memory", lambda self: 0)  # does not know
    assert small.pages_that_fit(3) == 6
    with pytest.raises(OutOfMemoryError, match="a page takes 100 bytes"):
        pages_in(99, lambda n: 100 * n, 8)
    assert [pages_in(100 * n, lambda n: 100 * n, 1000) for n in (1, 15, 17, 33, 999, 1000)] == [
        1, 15, 16, 32, 960, 1000,
    ]  # fmt: skip


def test_weights_are_shared(small: Any) -> None:
    """A runner of pages adds pages, not weights."""
    first, runner = small.runner(1), paged(small, 2)
    first.rows([1], [0], [0])
    runner.rows([1], [0], [0])
    assert runner.weight_buffers is first.weight_buffers  # type: ignore[attr-defined]
