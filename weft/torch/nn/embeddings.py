"""Tables of rows: rows shortened as they are looked up, and gradients divided by frequency."""

from __future__ import annotations

from weft.tensor import functional as F
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.torch.scattering import index_add, index_fill


def shortened(weight: Tensor, ids: Tensor, most: float, p: float) -> None:
    """Shortens the rows that are looked up to a p-norm of `most`, in place."""
    with no_grad():
        rows = weight.detach()
        length = F.vector_norm(rows, p, -1, True)
        factor = (length > most).where(most / (length + 1e-7), 1.0)
        used = index_fill(rows[:, 0] * 0, 0, ids.reshape(-1), 1.0) != 0
        weight.assign(used.unsqueeze(-1).where(rows * factor, rows).cast(weight.dtype))


def by_frequency(weight: Tensor, ids: Tensor) -> Tensor:
    """The same rows, whose gradients are divided by how often each is looked up."""
    flat = ids.reshape(-1)
    count = index_add((weight[:, 0] * 0).detach(), 0, flat, (flat * 0 + 1).cast(weight.dtype))
    share = 1.0 / count.maximum(1.0).unsqueeze(-1)
    return weight * share + (weight * (1.0 - share)).detach()
