"""torch.utils: loading of data."""

from weft.torch.utils import data as data
