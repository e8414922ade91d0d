"""Data sets, samplers and the loader of batches, under the names of torch.utils.data.

The order of batches follows from the seed alone, whatever the number of workers.
"""

from weft.data.collate import default_collate
from weft.data.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    mapped,
    random_split,
)
from weft.data.loader import DataLoader
from weft.data.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from weft.data.workers import get_worker_info
from weft.host.boundary import guard_calls as _guard_calls

__all__ = [
    "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler",
    "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler", "StackDataset", "Subset",
    "SubsetRandomSampler", "TensorDataset", "WeightedRandomSampler", "default_collate",
    "get_worker_info", "mapped", "random_split",
]  # fmt: skip

_guard_calls(
    globals(), ["ChainDataset", "ConcatDataset", "DataLoader", "StackDataset", "Subset"]
)  # they call users' data sets
_guard_calls(globals(), __all__, deep=True)
