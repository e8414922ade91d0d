"""Arrays of other libraries, taken through DLPack without importing the libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.core.errors import UsageError


def is_foreign(x: Any) -> bool:
    """True if `x` is another library's array that exports its memory (NumPy's own is not
    foreign)."""
    return hasattr(type(x), "__dlpack__") and not isinstance(x, np.ndarray | np.generic)


def shared_array(op: str, data: Any) -> np.ndarray:
    """The memory of another library's CPU array. PyTorch's tensors come without their history, and
    bfloat16, which NumPy's DLPack lacks, as its bits. Raises UsageError, naming `op`, for what
    cannot be shared."""
    try:
        if hasattr(data, "detach"):  # PyTorch: with a history, or to be negated when it is read
            data = data.detach().resolve_neg()
        if str(getattr(data, "dtype", "")) == "torch.bfloat16":
            bits = data.view(data.new_empty(0).short().dtype)
            return np.from_dlpack(bits).view(bfloat16.numpy)
        return np.from_dlpack(data)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise UsageError(f"{op}: cannot share this {type(data).__name__}: {said}") from None
