"""Conversations as rows of tokens: the file format, and the order of batches.

The file is int32 [N]: for each conversation its number of tokens, then the tokens, as ~id where the
model does not say them. A row holds one conversation, or as many in sequence as fit. In such a row
the ids of a batch mark where each begins (`decoder.train_forward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.training.step import LEFT_OUT
from weft.training.tokens import Batch, write_array


def write_rows(rows: Sequence[np.ndarray], path: Path) -> int:
    """Writes conversations encoded by Turns; returns their number of tokens."""
    parts = [part for row in rows for part in (np.array([len(row)], np.int32), row)]
    flat = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    write_array(path, flat.astype(np.int32))
    return sum(map(len, rows))


class PackedRowsFile:
    """The conversations of a file that `write_rows` made, mapped; those longer than `room` tokens
    are left out. Raises FileFormatError, or ModelError for ids outside `vocab`."""

    def __init__(self, path: Path, vocab: int, room: int) -> None:
        try:
            self._flat: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{path}: not a token file: {error}; delete the file") from None
        flat = self._flat
        if flat.ndim != 1 or flat.dtype != np.int32:
            raise FileFormatError(f"{path}: {flat.dtype}{list(flat.shape)} are not conversations")
        starts, at = [], 0
        while at < len(flat):
            count = int(flat[at])
            if not 2 <= count <= len(flat) - at - 1:
                raise FileFormatError(f"{path}: a conversation of {count} tokens; delete the file")
            starts.append(at + 1)
            at += 1 + count
        first = np.array(starts, np.int64)
        lengths = np.asarray(flat[first - 1], np.int64)
        ids = np.where(flat < 0, ~flat, flat)
        ids[first - 1] = 0
        fits = lengths <= room
        self._starts, self.lengths = first[fits], lengths[fits]
        self.left_out, self.longest = int((~fits).sum()), int(lengths.max(initial=0))
        if (highest := int(ids.max(initial=0))) >= vocab:
            raise ModelError(
                f"{path} holds token {highest}; the model's vocabulary has {vocab}: "
                "the tokens were made with another tokenizer"
            )

    def __len__(self) -> int:
        """Returns the number of tokens."""
        return int(self.lengths.sum())

    @property
    def count(self) -> int:
        """The number of conversations."""
        return len(self.lengths)

    def row(self, numbers: Sequence[int], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (ids, targets) int32 [length - 1]: the conversations in sequence, then padding.
        The first token of each conversation except the first is ~id, and is not a target."""
        out = np.full(length, ~0, np.int32)
        begins, at = [], 0
        for n in numbers:
            start, size = self._starts[n], self.lengths[n]
            out[at : at + size] = self._flat[start : start + size]
            begins.append(at)
            at += size
        ids, targets = np.where(out < 0, ~out, out), np.where(out < 0, LEFT_OUT, out)
        later = begins[1:]
        ids[later], targets[later] = ~ids[later], LEFT_OUT
        return ids[:-1], targets[1:]


def stacked(rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Batch:
    """Returns a batch of rows."""
    ids, targets = (np.stack(part) for part in zip(*rows))
    return ids, targets


class RowBatches:
    """Batches of rows of `length` + 1 tokens, reordered every epoch. With `pack`, a row is filled
    with conversations until the next does not fit."""

    def __init__(
        self, rows: PackedRowsFile, batch: int, length: int, seed: int, pack: bool
    ) -> None:
        if not rows.count:
            raise UsageError("the data holds no conversation to train on")
        self.rows, self.batch, self.length, self.seed = rows, batch, length, seed
        self._pack = pack
        self._ends: list[int] = []  # cumulative number of rows, by epoch
        self._epoch, self._made = -1, [[0]]

    def at(self, number: int) -> Batch:
        """Returns batch `number` (0, 1, ...): ids and targets, int32 [batch, length]."""
        first = number * self.batch
        return stacked([self._row(i) for i in range(first, first + self.batch)])

    def epoch(self, number: int) -> float:
        """Returns how many times the data has been seen before batch `number`."""
        index = number * self.batch
        epoch = self._epoch_of(index)
        first = self._first(epoch)
        return epoch + (index - first) / (self._ends[epoch] - first)

    def batches(self, epochs: float) -> int:
        """Returns how many batches make `epochs` epochs; the last may run into the next epoch."""
        whole = int(epochs)
        self._reach(whole)
        rows = self._first(whole) + (epochs - whole) * (self._ends[whole] - self._first(whole))
        return max(int(np.ceil(rows / self.batch)), 1)

    def _row(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        epoch = self._epoch_of(index)
        if epoch != self._epoch:
            self._epoch, self._made = epoch, self._packed(epoch)
        return self.rows.row(self._made[index - self._first(epoch)], self.length + 1)

    def _first(self, epoch: int) -> int:
        return self._ends[epoch - 1] if epoch else 0

    def _epoch_of(self, index: int) -> int:
        while not self._ends or self._ends[-1] <= index:
            self._reach(len(self._ends))
        return int(np.searchsorted(self._ends, index, "right"))

    def _reach(self, epoch: int) -> None:
        """Computes the number of rows up to an epoch."""
        while len(self._ends) <= epoch:
            next_ = len(self._ends)
            self._ends.append(self._first(next_) + len(self._packed(next_)))

    def _packed(self, epoch: int) -> list[list[int]]:
        """Returns the rows of an epoch: the numbers of their conversations."""
        rng = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        order = rng.permutation(self.rows.count).tolist()
        return packed(order, self.rows.lengths, self.length + 1) if self._pack else [
            [n] for n in order]  # fmt: skip


def packed(order: Sequence[int], lengths: np.ndarray, room: int) -> list[list[int]]:
    """Returns the numbers of `order` in rows of at most `room` tokens; each row is filled until the
    next does not fit."""
    out: list[list[int]] = []
    left = 0
    for n in order:
        size = int(lengths[n])
        if size > left:
            out.append([])
            left = room
        out[-1].append(n)
        left -= size
    return out


def row_evaluation(rows: PackedRowsFile, batch: int, length: int, most: int) -> list[Batch]:
    """Returns at most `most` batches (ids, targets) of held-out conversations, evenly spread, one
    conversation per row. Rows without targets fill up the last batch."""
    count = min(most * batch, rows.count)
    if not count:
        return []
    picked = np.unique(np.linspace(0, rows.count - 1, count).astype(np.int64)).tolist()
    made = [rows.row([n], length + 1) for n in picked]
    made += [rows.row([], length + 1)] * (-len(made) % batch)
    return [stacked(made[i : i + batch]) for i in range(0, len(made), batch)]
