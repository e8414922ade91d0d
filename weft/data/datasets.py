"""Data sets: what has a length and examples by number, or what yields examples."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, ShapeError, UsageError, unreadable
from weft.data.samplers import permutation
from weft.importers.safetensors import SafetensorsFile
from weft.tensor.core import Tensor


class Dataset:
    """The base: examples by number. A class of one's own defines __len__ and __getitem__."""

    def __getitem__(self, index: int) -> Any:
        raise UsageError(f"{type(self).__name__} defines no __getitem__")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset:
    """The base of data without indices: __iter__ yields the examples, in its own order. A loader
    reads it in this process alone."""

    def __iter__(self) -> Iterator[Any]:
        raise UsageError(f"{type(self).__name__} defines no __iter__")

    def __add__(self, other: IterableDataset) -> ChainDataset:
        return ChainDataset([self, other])


class ChainDataset(IterableDataset):
    """The examples of several IterableDatasets one after another. Raises UsageError for data sets
    of another kind.

    >>> class Count(data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(2))
    >>> list(data.ChainDataset([Count(), Count()]))
    [0, 1, 0, 1]
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        if not isinstance(datasets, Iterable):
            kind = type(datasets).__name__
            raise UsageError(f"ChainDataset: {kind} is no list of data sets; give IterableDatasets")
        self.datasets = list(datasets)
        for d in self.datasets:
            if not isinstance(d, IterableDataset):
                raise UsageError(
                    f"ChainDataset: {type(d).__name__} is not an IterableDataset; join data sets "
                    "with indices by ConcatDataset"
                )

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        return sum(len(d) for d in self.datasets)


class TensorDataset(Dataset):
    """Row i of each tensor or NumPy array, as a tuple. Arrays may be mapped files, of which a batch
    reads its rows alone. Raises ShapeError for arrays of different lengths.

    >>> data.TensorDataset(weft.tensor([[1.0], [2.0]]), np.array([5, 6]))[1]
    (Tensor([2.]), Tensor(6, dtype=int64))
    """

    def __init__(self, *tensors: Any) -> None:
        lengths = {len(t) for t in tensors}
        if len(lengths) != 1:
            raise ShapeError(f"TensorDataset: lengths {sorted(lengths)}; give equally long tensors")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        return tuple(_tensor(t[index]) for t in self.tensors)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Any, ...]:
        """The rows of a batch, already stacked."""
        rows = np.asarray(indices, np.int64)
        return tuple(_tensor(t[rows]) for t in self.tensors)


def _tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else Tensor(np.array(x))


class ConcatDataset(Dataset):
    """Several data sets one after another.

    >>> parts = [data.TensorDataset(weft.zeros(2)), data.TensorDataset(weft.ones(3))]
    >>> len(data.ConcatDataset(parts)), data.ConcatDataset(parts)[2][0].item()
    (5, 1.0)
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets) if isinstance(datasets, Iterable) else []
        if not self.datasets:
            raise UsageError("ConcatDataset: no data sets; give a list of at least one")
        for d in self.datasets:
            if not hasattr(d, "__len__"):
                raise UsageError(f"ConcatDataset: {type(d).__name__} is no data set with a length")
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        at = index % len(self)
        which = bisect_right(self.cumulative_sizes, at)
        return self.datasets[which][at - (self.cumulative_sizes[which - 1] if which else 0)]


class StackDataset(Dataset):
    """Example i of each data set, as a tuple; of data sets given by name, as a dict. Raises
    ShapeError for data sets of different lengths, UsageError for none.

    >>> data.StackDataset([1, 2], ["a", "b"])[1], data.StackDataset(x=[1, 2], y=[3, 4])[0]
    ((2, 'b'), {'x': 1, 'y': 3})
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise UsageError("StackDataset: give data sets either in order or by name")
        for d in (*args, *kwargs.values()):
            if not hasattr(d, "__len__"):
                raise UsageError(f"StackDataset: {type(d).__name__} is no data set with a length")
        lengths = {len(d) for d in (*args, *kwargs.values())}
        if len(lengths) != 1:
            raise ShapeError(f"StackDataset: lengths {sorted(lengths)}; give equally long ones")
        self.datasets: Any = args or kwargs
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: d[index] for name, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)


class Subset(Dataset):
    """The examples with the given numbers.

    >>> data.Subset(data.TensorDataset(weft.tensor([5.0, 6.0, 7.0])), [2])[0][0].item()
    7.0
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]


def random_split(
    dataset: Any, lengths: Sequence[int | float], generator: Any = None
) -> list[Subset]:
    """Returns the data set in parts of the given lengths, or shares (which add up to 1), with the
    examples in a random order, which the seed `generator` decides. Raises UsageError for lengths
    that do not add up.

    >>> whole = data.TensorDataset(weft.zeros(10))
    >>> [len(part) for part in data.random_split(whole, [0.8, 0.2], generator=7)]
    [8, 2]
    """
    counts, total = list(lengths), len(dataset)
    if all(isinstance(n, float) for n in counts) and abs(sum(counts) - 1.0) < 1e-6:
        counts = [int(total * n) for n in counts]
        for i in range(total - int(sum(counts))):
            counts[i % len(counts)] += 1
    if sum(counts) != total or any(n < 0 for n in counts):
        raise UsageError(f"random_split: lengths {list(lengths)} for {total} examples")
    order, ends = permutation(total, generator, 0), list(accumulate(map(int, counts)))
    return [Subset(dataset, order[end - int(n) : end].tolist()) for n, end in zip(counts, ends)]


def mapped(path: str | os.PathLike[str]) -> Any:
    """Returns the array of a .npy file, or a dict of a .safetensors file's arrays, without reading
    them: rows come from the disk as they are used. Nothing in a file is executed. Raises
    FileFormatError for other files and for objects, MissingFileError if there is none.

    >>> np.save("rows.npy", np.ones((3, 2), np.float32))
    >>> data.mapped("rows.npy")[1].tolist()
    [1.0, 1.0]
    """
    name = os.fspath(path)
    if name.endswith(".safetensors"):
        return dict(SafetensorsFile(name).items())
    if not name.endswith(".npy"):
        raise FileFormatError(f"{name}: is neither .npy nor .safetensors; convert it to one")
    try:
        return np.load(name, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise unreadable(name, error) from None
    except (ValueError, EOFError) as error:
        raise FileFormatError(f"{name}: is no .npy file of numbers: {error}") from None
