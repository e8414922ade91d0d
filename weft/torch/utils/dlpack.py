"""torch.utils.dlpack: arrays shared with other libraries."""

from __future__ import annotations

from typing import Any

from weft.tensor.core import Tensor
from weft.torch.creation import from_dlpack as from_dlpack
from weft.torch.tensor import public


@public
def to_dlpack(tensor: Tensor) -> Any:
    """The capsule of a CPU tensor, for another library's from_dlpack."""
    return tensor.__dlpack__()


def __dir__() -> list[str]:
    return ["from_dlpack", "to_dlpack"]
