"""torch.nn.utils.rnn: sequences of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import ShapeError, UsageError
from weft.host.boundary import guard_calls
from weft.tensor.core import Tensor
from weft.torch.creation import tensor
from weft.torch.joining import cat, stack
from weft.torch.picking import index_select
from weft.torch.tensor import adopt, function_only, functions


class PackedSequence(NamedTuple):
    """Sequences without padding: `data` [sum of lengths, ...] has step 0 of all sequences, longest
    first, then step 1 of the sequences that have one, and so on; `batch_sizes` counts them by
    step."""

    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence, in the order in which they were given."""
        sizes = np.array(self.batch_sizes.tolist())
        ranks = np.arange(sizes[0])
        found: np.ndarray = (sizes[:, None] > ranks).sum(0)
        return found if self.unsorted_indices is None else found[self.unsorted_indices.numpy()]

    @property
    def order(self) -> np.ndarray:
        """The sequences from the longest to the shortest."""
        if self.sorted_indices is None:
            return np.arange(int(self.batch_sizes[0]))
        return np.asarray(self.sorted_indices.numpy())

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The data on another device or in another dtype."""
        return self._replace(data=self.data.to(*args, **kwargs))


def _places(lengths: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps and the sequences of the packed rows."""
    there = lengths[order] > np.arange(lengths.max())[:, None]
    steps, ranks = np.nonzero(there)
    return steps, order[ranks]


@function_only
def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """The first lengths[i] steps of each sequence of [T, B, ...] (batch_first: [B, T, ...]) as a
    PackedSequence. Raises ShapeError for lengths below 1 or above T, UsageError for unsorted ones
    where enforce_sorted is True."""
    x = input if batch_first else input.transpose(0, 1)
    sizes = np.array(lengths.tolist() if isinstance(lengths, Tensor) else lengths)
    if sizes.shape != x.shape[:1] or sizes.min() < 1 or sizes.max() > x.shape[1]:
        raise ShapeError(
            f"pack_padded_sequence: lengths {sizes.tolist()} of {x.shape[0]} sequences of up to "
            f"{x.shape[1]} steps; give one of 1..{x.shape[1]} for each"
        )
    order = np.argsort(-sizes, kind="stable")
    if enforce_sorted and (np.diff(sizes) > 0).any():
        raise UsageError(
            f"pack_padded_sequence: lengths {sizes.tolist()} are not sorted from the longest on; "
            "pass enforce_sorted=False"
        )
    steps, rows = _places(sizes, order)
    flat = x.reshape(-1, *x.shape[2:])
    data = index_select(flat, 0, tensor(rows * x.shape[1] + steps))
    counts = tensor(np.bincount(steps))
    if enforce_sorted:
        return PackedSequence(data, counts)
    return PackedSequence(data, counts, tensor(order), tensor(np.argsort(order)))


@function_only
def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sequences as [T, B, ...] (batch_first: [B, T, ...]), and their lengths, in the order in
    which they were packed."""
    lengths, data = sequence.lengths, adopt(sequence.data)
    most = int(lengths.max()) if total_length is None else total_length
    if most < lengths.max():
        raise ShapeError(f"pad_packed_sequence: total_length {most} of {int(lengths.max())} steps")
    steps, rows = _places(lengths, sequence.order)
    places = np.full((len(lengths), most), len(steps))
    places[rows, steps] = np.arange(len(steps))
    spare = data.new_full((1, *data.shape[1:]), padding_value)
    flat = index_select(cat([data, spare]), 0, tensor(places.reshape(-1)))
    padded = flat.reshape(len(lengths), most, *data.shape[1:])
    return padded if batch_first else padded.transpose(0, 1), tensor(lengths)


@function_only
def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences [L, ...] as a PackedSequence."""
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences, True), lengths, True, enforce_sorted)


@function_only
def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a PackedSequence."""
    padded, lengths = pad_packed_sequence(packed_sequences, True)
    return unpad_sequence(padded, lengths, True)


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


guard_calls(globals(), [n for n in globals() if n.startswith(("pack_", "pad_", "unpa"))], deep=True)


def __dir__() -> list[str]:
    return ["PackedSequence", *functions(globals(), "cat index_select stack")]
