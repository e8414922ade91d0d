"""DataLoader: batches of a data set, in this process or from workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from weft.core.errors import CallError, UsageError
from weft.data.collate import default_collate
from weft.data.datasets import IterableDataset
from weft.data.samplers import BatchSampler, RandomSampler, SequentialSampler, seed_of
from weft.data.workers import Worker, WorkerInfo

AHEAD = 2  # batches that a worker is asked for before the first is taken


class DataLoader:
    """Batches of `dataset` in the order of a sampler: one after another, or with `shuffle` a new
    random order each time. `generator` is the seed of the orders (None draws one). A batch has
    `batch_size` examples (None: single examples), which `collate_fn` joins. `num_workers` processes
    load batches ahead; the batches and their order are the same for any number of them. Random
    numbers that the data set draws in a worker depend on the seed and the batch. A worker that
    raises or is killed is a WorkerError, as is one that takes longer than `timeout` seconds.
    Leaving the loop ends the workers. `pin_memory`, `prefetch_factor` and `persistent_workers` are
    accepted, and change nothing. Raises UsageError for options that exclude each other.

    >>> pairs = data.TensorDataset(weft.tensor([1.0, 2.0, 3.0]), weft.tensor([4, 5, 6]))
    >>> [x.tolist() for x, y in data.DataLoader(pairs, batch_size=2)]
    [[1.0, 2.0], [3.0]]
    """

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Any = None, batch_sampler: Any = None, num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None, pin_memory: bool = False,
        drop_last: bool = False, timeout: float = 0.0,
        worker_init_fn: Callable[[int], Any] | None = None, generator: Any = None,
        prefetch_factor: int | None = None, persistent_workers: bool = False,
    ) -> None:  # fmt: skip
        if not (isinstance(timeout, int | float) and timeout >= 0):
            raise UsageError(f"DataLoader: timeout is {timeout!r}; give seconds >= 0")
        self._iterable = isinstance(dataset, IterableDataset)
        if not (self._iterable or hasattr(dataset, "__getitem__")):
            raise CallError(
                f"DataLoader: {type(dataset).__name__} is no data set; give a list, an object with "
                "__getitem__ and __len__, or an IterableDataset"
            )
        if collate_fn is not None and not callable(collate_fn):
            raise CallError(f"DataLoader: collate_fn is {collate_fn!r:.60}; give a function")
        _check(self._iterable, batch_size, shuffle, sampler, batch_sampler, num_workers, drop_last)
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, float(timeout)
        self.worker_init_fn, self.seed = worker_init_fn, seed_of(generator)
        if sampler is None and not self._iterable:
            if shuffle:
                sampler = RandomSampler(dataset, generator=self.seed)
            else:
                sampler = SequentialSampler(dataset)
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        if batch_sampler is None and batch_size is not None and not self._iterable:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_sampler = batch_sampler
        self.collate_fn = collate_fn
        self._epoch = 0

    def __len__(self) -> int:
        if self._iterable:
            raise CallError("DataLoader: an IterableDataset has no length")  # list() asks for it
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)

    def __iter__(self) -> Iterator[Any]:
        self._epoch += 1
        if self._iterable:
            return self._stream()
        orders = self.batch_sampler if self.batch_sampler is not None else self.sampler
        if not self.num_workers:
            return (self._load(indices) for indices in orders)
        return self._parallel(iter(orders))

    def _load(self, indices: Any) -> Any:
        if self.batch_sampler is None:
            return _as_it_is(self.collate_fn, self.dataset[indices])
        if self.collate_fn is None and hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices)
        return (self.collate_fn or default_collate)([self.dataset[i] for i in indices])

    def _stream(self) -> Iterator[Any]:
        batch: list[Any] = []
        for example in self.dataset:
            if self.batch_size is None:
                yield _as_it_is(self.collate_fn, example)
                continue
            batch.append(example)
            if len(batch) == self.batch_size:
                yield (self.collate_fn or default_collate)(batch)
                batch = []
        if batch and not self.drop_last:
            yield (self.collate_fn or default_collate)(batch)

    def _parallel(self, orders: Iterator[Any]) -> Iterator[Any]:
        """Batch i is that of worker i modulo their number; they are taken in order."""
        workers: list[Worker] = []
        seed = self.seed + (self._epoch << 20)
        try:
            for i in range(self.num_workers):
                info = WorkerInfo(i, self.num_workers, seed, self.dataset)
                workers.append(Worker(info, self._load, self.worker_init_fn, workers))
            waiting: deque[int] = deque()
            asked, more = 0, True
            while True:
                while more and len(waiting) < AHEAD * len(workers):
                    indices = next(orders, None)
                    if more := indices is not None:
                        workers[asked % len(workers)].ask(asked, indices)
                        waiting.append(asked)
                        asked += 1
                if not waiting:
                    return
                batch = waiting.popleft()
                yield workers[batch % len(workers)].answer(batch, self.timeout)
        finally:
            for worker in workers:
                worker.close()


def _as_it_is(collate: Callable[[Any], Any] | None, example: Any) -> Any:
    return example if collate is None else collate(example)


def _check(
    iterable: bool, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, workers: Any,
    drop_last: bool,
) -> None:  # fmt: skip
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise UsageError(f"DataLoader: num_workers is {workers!r}; give a number >= 0")
    if iterable and (shuffle or sampler is not None or batch_sampler is not None or workers):
        raise UsageError(
            "DataLoader: an IterableDataset has an order of its own and is read in this process; "
            "leave out shuffle, sampler, batch_sampler and num_workers"
        )
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None):
        raise UsageError("DataLoader: batch_sampler replaces batch_size, shuffle and sampler")
    if sampler is not None and shuffle:
        raise UsageError("DataLoader: sampler and shuffle exclude each other")
    if drop_last and (batch_size is None or batch_sampler is not None):
        raise UsageError("DataLoader: drop_last needs a batch_size")
