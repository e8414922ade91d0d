"""torch.utils.data over weft.data: batches are tensors of weft.torch, in PyTorch's dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft import data
from weft.core.dtypes import float64
from weft.data import (
    BatchSampler as BatchSampler,
    ChainDataset as ChainDataset,
    ConcatDataset as ConcatDataset,
    Dataset as Dataset,
    DistributedSampler as DistributedSampler,
    IterableDataset as IterableDataset,
    RandomSampler as RandomSampler,
    Sampler as Sampler,
    SequentialSampler as SequentialSampler,
    StackDataset as StackDataset,
    Subset as Subset,
    SubsetRandomSampler as SubsetRandomSampler,
    TensorDataset as TensorDataset,
    WeightedRandomSampler as WeightedRandomSampler,
    get_worker_info as get_worker_info,
    random_split as random_split,
)
from weft.host.boundary import guard_calls
from weft.tensor.core import Tensor
from weft.torch.creation import tensor
from weft.torch.joining import stack
from weft.torch.tensor import own


def default_collate(batch: Sequence[Any]) -> Any:
    """Examples as one batch: tensors, arrays and numbers are stacked, dicts and sequences entry by
    entry; text stays a list. Python's floats give float64, integers int64."""
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(batch)
    if isinstance(first, np.ndarray | np.generic):
        return tensor(np.stack(batch))
    if isinstance(first, bool | int):
        return tensor(list(batch))
    if isinstance(first, float):
        return tensor(list(batch), dtype=float64)
    if isinstance(first, Mapping):
        return {k: default_collate([example[k] for example in batch]) for k in first}
    if isinstance(first, str | bytes) or not isinstance(first, Sequence):
        return list(batch)
    parts = [default_collate(list(column)) for column in zip(*batch, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else parts


def default_convert(data: Any) -> Any:
    """Arrays as tensors, in dicts and sequences too; tuples become lists, all else stays."""
    if isinstance(data, np.ndarray | np.generic):
        return data if data.dtype.kind in "SUO" else tensor(data)
    if isinstance(data, Mapping):
        return {k: default_convert(v) for k, v in data.items()}
    if isinstance(data, str | bytes | Tensor) or not isinstance(data, Sequence):
        return data
    parts = [default_convert(x) for x in data]
    return type(data)(*parts) if hasattr(data, "_fields") else parts


class DataLoader(data.DataLoader):
    """Batches of a data set: see weft.data.DataLoader."""

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("multiprocessing_context", "pin_memory_device", "in_order"):
            kwargs.pop(name, None)  # they change no batch
        super().__init__(dataset, *args, **kwargs)
        if self.collate_fn is None:
            self.collate_fn = default_convert if self.batch_size is None else default_collate

    def __iter__(self) -> Iterator[Any]:
        return (own(batch) for batch in super().__iter__())


guard_calls(globals(), ["DataLoader"])
guard_calls(globals(), ["default_collate", "default_convert"], deep=True)


def __dir__() -> list[str]:
    return sorted([*(n for n in data.__all__ if n != "mapped"), "default_convert"])
