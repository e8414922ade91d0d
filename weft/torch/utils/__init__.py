"""torch.utils: loading of data, derivatives that compute values again, shared arrays."""

from weft.torch.utils import checkpoint as checkpoint, data as data, dlpack as dlpack
