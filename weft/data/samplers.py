"""Samplers: the order in which a loader takes examples. A random order is a function of a seed and
of how often the sampler was started, computed from weft's own random words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.tensor.random import draw_seed, threefry


def seed_of(generator: Any) -> int:
    """The seed of an int or of an object with initial_seed(); None draws one."""
    if generator is None:
        return draw_seed()
    if isinstance(generator, int | np.integer) and not isinstance(generator, bool):
        return int(generator)
    if callable(initial := getattr(generator, "initial_seed", None)):
        return int(initial())
    raise UsageError(f"generator is {generator!r}; give a seed (an int), or None")


def words(count: int, seed: int, epoch: int) -> np.ndarray:
    """`count` random words, uint64."""
    key = [np.full(count, (seed >> s) & 0xFFFFFFFF, np.uint32) for s in (0, 32)]
    counter = (np.arange(count, dtype=np.uint32), np.full(count, epoch & 0xFFFFFFFF, np.uint32))
    high, low = threefry((key[0], key[1]), counter)
    return np.asarray(high, np.uint64) << np.uint64(32) | np.asarray(low, np.uint64)


def permutation(count: int, generator: Any, epoch: int) -> np.ndarray:
    """The numbers below `count` in a random order, int64."""
    return np.argsort(words(count, seed_of(generator), epoch), kind="stable")


class Sampler:
    """The base: __iter__ yields the numbers of examples, __len__ counts them."""

    def __init__(self, data_source: Any = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[Any]:
        raise UsageError(f"{type(self).__name__} defines no __iter__")


class SequentialSampler(Sampler):
    """The examples in order.

    >>> list(data.SequentialSampler([7, 8, 9]))
    [0, 1, 2]
    """

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class _Random(Sampler):
    """A sampler with a seed and a count of its starts, each of which has an order of its own."""

    def __init__(self, data_source: Any, generator: Any) -> None:
        super().__init__(data_source)
        self.seed, self.epoch = seed_of(generator), 0

    def _start(self) -> int:
        self.epoch += 1
        return self.epoch - 1


class RandomSampler(_Random):
    """The examples in a random order, another one at each start; with `replacement` each number is
    drawn by itself, `num_samples` times. The same `generator` (a seed) gives the same orders.

    >>> sampler = data.RandomSampler(range(5), generator=7)
    >>> list(sampler) == list(data.RandomSampler(range(5), generator=7))
    True
    """

    def __init__(
        self, data_source: Any, replacement: bool = False, num_samples: int | None = None,
        generator: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(data_source, generator)
        self.replacement, self._samples = replacement, num_samples
        if num_samples is not None and num_samples < 1:
            raise UsageError(f"RandomSampler: num_samples is {num_samples}; give at least 1")

    def __len__(self) -> int:
        return len(self.data_source) if self._samples is None else self._samples

    def __iter__(self) -> Iterator[int]:
        count, epoch, n = len(self), self._start(), len(self.data_source)
        if self.replacement:
            drawn = words(count, self.seed, epoch) % np.uint64(max(n, 1))
            return iter(drawn.tolist() if n else [])
        rounds = range(-(-count // n) if n else 0)
        orders = [permutation(n, self.seed, epoch + (i << 20)) for i in rounds]
        return iter(np.concatenate([np.zeros(0, np.int64), *orders])[:count].tolist())


class SubsetRandomSampler(_Random):
    """These numbers in a random order.

    >>> sorted(data.SubsetRandomSampler([3, 5, 9], generator=1))
    [3, 5, 9]
    """

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        super().__init__(indices, generator)

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        order = permutation(len(self), self.seed, self._start())
        return iter([self.data_source[i] for i in order])


class WeightedRandomSampler(_Random):
    """`num_samples` numbers, each as likely as its weight says; without `replacement` each at most
    once (by the exponential race of Efraimidis and Spirakis 2006).

    >>> set(data.WeightedRandomSampler([0.0, 1.0, 3.0], 20, generator=1)) <= {1, 2}
    True
    """

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True,
        generator: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(np.asarray(weights, np.float64), generator)
        w, self.num_samples, self.replacement = self.data_source, num_samples, replacement
        possible = int((w > 0).sum())
        if not (w >= 0).all() or not possible or num_samples < 1:
            raise UsageError("WeightedRandomSampler: weights >= 0, one > 0, and num_samples >= 1")
        if not replacement and num_samples > possible:
            raise UsageError(
                f"WeightedRandomSampler: {num_samples} samples without replacement of {possible}"
            )

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        w, epoch = self.data_source, self._start()
        if not self.replacement:
            unit = (words(len(w), self.seed, epoch) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            with np.errstate(divide="ignore"):
                race = -np.log1p(-unit) / w
            return iter(np.argsort(race, kind="stable")[: self.num_samples].tolist())
        unit = (words(self.num_samples, self.seed, epoch) >> np.uint64(11)).astype(np.float64)
        ends = np.cumsum(w)
        found = np.searchsorted(ends, unit * 2.0**-53 * ends[-1], side="right")
        return iter(np.minimum(found, np.flatnonzero(w)[-1]).tolist())


class BatchSampler(Sampler):
    """Lists of `batch_size` numbers of another sampler; `drop_last` leaves out a shorter last one.

    >>> list(data.BatchSampler(range(5), 2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise UsageError(f"batch_size is {batch_size!r}; give a positive number")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, bool(drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + bool(rest and not self.drop_last)


class DistributedSampler(Sampler):
    """The numbers that process `rank` of `num_replicas` takes: every num_replicas-th, as many for
    each, in a random order that `seed` and the epoch decide (`set_epoch`), or in order without
    `shuffle`. Where the count does not divide, numbers from the start are repeated, or with
    `drop_last` the last ones left out. Raises UsageError for a rank that is not one of them.

    >>> list(data.DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 0]
    """

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None,
        shuffle: bool = True, seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        if num_replicas is None or rank is None:
            raise UsageError(
                "DistributedSampler: give num_replicas and rank; weft.ranks.join() has them as "
                "size and rank"
            )
        if not 0 <= rank < num_replicas:
            raise UsageError(f"DistributedSampler: rank {rank} of {num_replicas} processes")
        super().__init__(dataset)
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        count = len(dataset)
        self.num_samples = count // num_replicas if drop_last else -(-count // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        count = len(self.dataset)
        order = permutation(count, self.seed, self.epoch) if self.shuffle else np.arange(count)
        return iter(np.resize(order, self.total_size)[self.rank :: self.num_replicas].tolist())

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, each of which has an order of its own."""
        self.epoch = epoch
