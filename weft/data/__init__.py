"""Data sets, samplers and the loader of batches, under the names of torch.utils.data.

The order of batches follows from the seed alone, whatever the number of workers.
"""

from weft.data.collate import default_collate
from weft.data.datasets import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    mapped,
    random_split,
)
from weft.data.loader import DataLoader
from weft.data.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from weft.host.boundary import guard_calls as _guard_calls

__all__ = [
    "BatchSampler", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "RandomSampler",
    "Sampler", "SequentialSampler", "Subset", "SubsetRandomSampler", "TensorDataset",
    "WeightedRandomSampler", "default_collate", "mapped", "random_split",
]  # fmt: skip

_guard_calls(globals(), ["ConcatDataset", "DataLoader", "Subset"])  # they call users' data sets
_guard_calls(globals(), __all__, deep=True)
