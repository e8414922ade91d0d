"""torch.nn.utils.rnn: sequences of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import UsageError
from weft.tensor.core import Tensor
from weft.torch.joining import stack
from weft.torch.tensor import function_only, functions


@function_only
def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    """Sequences [L, ...] in one tensor [T, B, ...] (batch_first: [B, T, ...]), T the longest."""
    if padding_side not in ("left", "right"):
        raise UsageError(f'pad_sequence: padding_side {padding_side!r}; "left" or "right"')
    most = max((s.shape[0] for s in sequences), default=0)
    rows: list[Any] = []
    for s in sequences:
        short = most - s.shape[0]
        first = (short, 0) if padding_side == "left" else (0, short)
        rows.append(Tensor.pad(s, [first, *[(0, 0)] * (s.ndim - 1)], padding_value))
    return stack(rows, 0 if batch_first else 1)


@function_only
def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False
) -> list[Tensor]:
    """The sequences that `pad_sequence` joined."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [rows[i, : int(n)] for i, n in enumerate(lengths.tolist())]


def __dir__() -> list[str]:
    return functions(globals(), "stack")
