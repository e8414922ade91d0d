"""The loader of batches: its order, its workers, and what ends it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rows import few

import weft
from weft import data
from weft.core.errors import FileFormatError, ShapeError, UsageError, WeftError, WorkerError


class Squares(data.Dataset):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> Any:
        return {"x": np.full(3, i * i, np.float32), "n": (i, str(i))}


def flat(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {k: flat(v) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(map(flat, batch))
    return batch.numpy().tolist() if isinstance(batch, weft.Tensor) else batch


def processes() -> set[int]:
    found: set[int] = set()
    for thread in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread of another test has just ended
            found.update(map(int, (thread / "children").read_text().split()))
    return found


_others: set[int] = set()


@pytest.fixture(autouse=True)
def _noted() -> None:
    """Other tests in this process may have left children, such as the tokenizers' and grammars'."""
    _others.clear()
    _others.update(processes())


def children() -> set[int]:
    """The children that the test has started."""
    return processes() - _others


OPTIONS: list[dict[str, Any]] = [
    {"batch_size": 4}, {"batch_size": 4, "shuffle": True, "drop_last": True},
    {"batch_sampler": [[3, 1], [4], [22, 0, 5]]}, {"batch_size": None, "sampler": [4, 2]},
    {"batch_size": 5, "collate_fn": lambda rows: [r["n"][0] for r in rows]},
]  # fmt: skip


@pytest.mark.parametrize("options", few(OPTIONS, *OPTIONS[1::2], OPTIONS[4]))
def test_batches_are_the_same_for_any_number_of_workers(options: dict[str, Any]) -> None:
    found = []
    for workers in (0, 1, 3):
        loader = data.DataLoader(Squares(), num_workers=workers, generator=5, **options)
        epochs = [[flat(b) for b in loader] for _ in range(2)]
        assert all(len(e) == len(loader) for e in epochs)
        found.append(repr(epochs))
    assert found[0] == found[1] == found[2]
    assert not children()


def test_orders_as_their_seed_says() -> None:
    rows = data.TensorDataset(weft.tensor(np.arange(50)))

    def order(seed: int | None) -> list[list[int]]:
        loader = data.DataLoader(rows, batch_size=7, shuffle=True, generator=seed)
        return [[i for (b,) in loader for i in b.tolist()] for _ in range(2)]

    first = order(1)
    assert first == order(1) != order(2)
    assert first[0] != first[1] and all(sorted(e) == list(range(50)) for e in first)
    weft.manual_seed(3)
    drawn = order(None)
    weft.manual_seed(3)
    assert drawn == order(None)
    seeded = torch.Generator().manual_seed(1)
    assert order(seeded) == first  # type: ignore[arg-type]  # what has initial_seed()


def test_collation_as_pytorch() -> None:
    rows = [{"a": (np.float32([i, 2]), i), "b": f"{i}", "c": [np.int64(i)]} for i in range(3)]
    ours = data.default_collate(rows)
    theirs = torch.utils.data.default_collate(rows)
    assert ours["a"][0].tolist() == theirs["a"][0].tolist() and ours["b"] == theirs["b"]
    assert ours["a"][1].tolist() == theirs["a"][1].tolist()
    assert ours["c"][0].tolist() == theirs["c"][0].tolist() and ours["c"][0].dtype == weft.int64
    with pytest.raises(ShapeError, match="collate_fn"):
        data.default_collate([np.zeros(2), np.zeros(3)])
    with pytest.raises(UsageError, match="collate_fn"):
        data.default_collate([object()])


class Odd(Squares):
    """Example 9 does what `act` says."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def __getitem__(self, i: int) -> Any:
        if i == 9:
            self.act()
        return super().__getitem__(i)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("act, said", [
    (lambda: {}["no such key"], r"worker 0, batch 2: KeyError: 'no such key' \(.*test_loader.py:"),
    (kill, "worker 0 was killed by SIGKILL while it loaded batch 2"),
    (lambda: os._exit(7), "gone with status 7"), (lambda: time.sleep(60), "in time"),
])  # fmt: skip
def test_a_worker_that_fails_is_a_named_error(act: Any, said: str) -> None:
    patience = 1 if said == "in time" else 60
    loader = data.DataLoader(Odd(act), batch_size=4, num_workers=2, timeout=patience)
    seen = []
    with pytest.raises(WorkerError, match=said):
        for batch in loader:
            seen.append(batch)
    assert len(seen) == 2 and not children()
    if said.startswith("worker 0, batch 2: Key"):
        with pytest.raises(KeyError, match="no such key"):  # here the error is the data set's own
            list(data.DataLoader(Odd(act), batch_size=4))


def test_what_a_worker_cannot_send() -> None:
    loader = data.DataLoader(Squares(), batch_size=2, num_workers=1, collate_fn=lambda rows: {1, 2})
    with pytest.raises(WorkerError, match="not set; make these in collate_fn"):
        list(loader)


def test_leaving_a_loop_ends_the_workers() -> None:
    loader = data.DataLoader(Squares(), batch_size=2, num_workers=3)
    for _ in loader:
        break
    assert not children()
    running = iter(loader)
    next(running)
    assert len(children()) == 3
    other = iter(loader)  # two loops at once
    assert flat(next(other)) == flat(next(iter(data.DataLoader(Squares(), batch_size=2))))
    del running, other
    assert not children()
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError
    assert not children()


def test_random_numbers_of_examples_depend_on_the_batch() -> None:
    class Noisy(Squares):
        def __getitem__(self, i: int) -> Any:
            return weft.rand(2), np.random.rand(2)

    def play(workers: int) -> list[Any]:
        return [flat(b) for b in data.DataLoader(Noisy(), 4, num_workers=workers, generator=1)]

    assert play(1) == play(3)
    values = [x for batch in play(2) for row in batch[0] for x in row]
    assert len(set(values)) == len(values)


def test_mapped_files(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    weft.save({"y": rows * 2}, tmp_path / "y.safetensors")
    x, y = data.mapped(tmp_path / "x.npy"), data.mapped(tmp_path / "y.safetensors")["y"]
    assert isinstance(x, np.memmap)
    loader = data.DataLoader(data.TensorDataset(x, y), 4, shuffle=True, num_workers=2, generator=3)
    for a, b in loader:
        np.testing.assert_array_equal(a.numpy() * 2, b.numpy())
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    for name in ("o.npy", "none.npz"):
        with pytest.raises(FileFormatError):
            data.mapped(tmp_path / name)
    with pytest.raises(weft.errors.MissingFileError):
        data.mapped(tmp_path / "missing.npy")


def test_samplers_and_parts() -> None:
    drawn = list(data.WeightedRandomSampler([0.0, 1.0, 3.0], 4000, generator=1))
    assert 0 not in drawn and abs(drawn.count(2) / 4000 - 0.75) < 0.03
    once = list(data.WeightedRandomSampler([1.0, 0.0, 2.0], 2, replacement=False, generator=1))
    assert sorted(once) == [0, 2]
    assert len(set(data.RandomSampler(range(9), num_samples=20, generator=2))) == 9
    parts = data.random_split(Squares(), [0.5, 0.5], generator=1)
    assert [len(p) for p in parts] == [12, 11]
    numbers = sorted(p[i]["n"][0] for p in parts for i in range(len(p)))
    assert numbers == list(range(23))
    both = Squares() + Squares()
    assert len(both) == 46 and both[-1]["n"] == (22, "22") and both[23]["n"] == (0, "0")


class Stream(data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(np.arange(7.0))


def test_streams() -> None:
    assert [b.tolist() for b in data.DataLoader(Stream(), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(list(data.DataLoader(Stream(), 3, drop_last=True))) == 2
    for wrong in ({"shuffle": True}, {"num_workers": 1}):
        with pytest.raises(UsageError, match="IterableDataset"):
            data.DataLoader(Stream(), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [
    {"batch_size": 0}, {"batch_size": True}, {"num_workers": -1}, {"generator": "x"},
    {"shuffle": True, "sampler": [1]}, {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_size": None, "drop_last": True},
])  # fmt: skip
def test_options_that_exclude_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        data.DataLoader(Squares(), **options)


def test_a_training_loop() -> None:
    from weft import nn, optim

    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3)).astype(np.float32)
    y = x @ np.float32([[1.0], [-2.0], [0.5]])
    model = nn.Linear(3, 1)
    opt = optim.Adam(model.parameters(), lr=0.05)

    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    run = weft.compile(step, "cpu")
    loader = data.DataLoader(data.TensorDataset(x, y), 20, shuffle=True, generator=0)
    losses = [run(*batch).item() for _ in range(12) for batch in loader]
    assert np.mean(losses[-10:]) < 1e-2 < losses[0]
    assert list(itertools.islice(loader, 0)) == []


class Counting(data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


def test_stacked_and_chained_data_sets() -> None:
    theirs, mine = torch.utils.data, data
    x, y = list(range(4)), list("abcd")
    for args, named in (((x, y), {}), ((), {"x": x, "y": y})):
        a, b = (lib.StackDataset(*args, **named) for lib in (mine, theirs))  # type: ignore
        assert len(a) == len(b) and [a[i] for i in range(4)] == [b[i] for i in range(4)]
    batch = next(iter(data.DataLoader(data.StackDataset(x, y), batch_size=2)))
    assert flat(batch) == ([0, 1], ["a", "b"])
    chained = Counting() + Counting()
    assert list(chained) == [0, 1, 2] * 2 and len(chained) == 6
    with pytest.raises(ShapeError, match="lengths"):
        data.StackDataset([1], [1, 2])
    with pytest.raises(UsageError, match="ConcatDataset"):
        data.ChainDataset([x])


@pytest.mark.parametrize("count", [1, 7, 8])
@pytest.mark.parametrize("drop", [False, True])
def test_distributed_samplers_share_the_data_set(count: int, drop: bool) -> None:
    parts = []
    for rank in range(3):
        options = {"num_replicas": 3, "rank": rank, "drop_last": drop}
        mine, theirs = (
            lib.DistributedSampler(range(count), shuffle=False, **options)  # type: ignore
            for lib in (data, torch.utils.data)
        )
        assert len(mine) == len(theirs) and list(mine) == list(theirs)
        shuffled = data.DistributedSampler(range(count), shuffle=True, **options)  # type: ignore
        parts.append(list(shuffled))
        shuffled.set_epoch(1)
        assert count < 7 or parts[-1] != list(shuffled)
    together = [i for part in parts for i in part]
    assert len(set(together)) == (count if not drop else len(together))
    with pytest.raises(UsageError, match="give num_replicas and rank"):
        data.DistributedSampler(range(3))


def test_workers_know_what_they_are() -> None:
    class Asked(data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            info = data.get_worker_info()
            return (-1, 0) if info is None else (info.id, info.num_workers)

    loader = data.DataLoader(Asked(), batch_size=None, num_workers=2)
    assert sorted(set(map(tuple, loader))) == [(0, 2), (1, 2)]
    assert data.get_worker_info() is None


@pytest.mark.parametrize("wrong", [3, None, object()])
def test_what_is_no_data_set(wrong: Any) -> None:
    for kind in (data.ChainDataset, data.ConcatDataset, data.StackDataset):
        with pytest.raises(WeftError):
            kind(wrong)
