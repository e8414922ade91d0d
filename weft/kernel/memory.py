"""The interpreter's memory: bounds, uninitialised elements and races, checked at every access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.core.errors import KernelError

_NONE, _MANY = -1, -2
# An owner is a number: group * SPAN + the thread. Numbers from SPAN - 1 down are for accesses by no
# single thread: a subgroup together, or hardware by itself (a new number each time).
SPAN = 1 << 20


@dataclass
class Who:
    """The owners of K element accesses: numbers as SPAN defines them, groups and barrier epochs.

    Each is int64[K]; an epoch counts the barriers that the group has passed. Most accesses are
    neither tracked nor wrong, so all three are computed on demand.
    """

    find: Callable[[], tuple[np.ndarray, np.ndarray, np.ndarray]]

    @cached_property
    def found(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.find()

    @property
    def owner(self) -> np.ndarray:
        return self.found[0]

    @property
    def group(self) -> np.ndarray:
        return self.found[1]

    @property
    def epoch(self) -> np.ndarray:
        return self.found[2]

    def describe(self, k: int) -> str:
        return _name(int(self.owner[k]))


def _name(owner: int) -> str:
    group, thread = divmod(owner, SPAN)
    return f"group {group}, {f'thread {thread}' if thread < SPAN // 2 else 'a tile or async copy'}"


class Tracker:
    """Finds two threads touching one element, at least one of them writing, with no barrier of
    their common group between. Across groups nothing orders accesses."""

    def __init__(self, size: int) -> None:
        self.w_owner = np.full(size, _NONE, np.int64)
        self.w_epoch = np.zeros(size, np.int64)
        self.r_owner = np.full(size, _NONE, np.int64)
        self.r_group = np.full(size, _NONE, np.int64)
        self.r_epoch = np.zeros(size, np.int64)
        self.serial = np.zeros(size, np.int64)

    def _after_write(self, at: np.ndarray, who: Who) -> np.ndarray:
        """Returns a mask of the accesses that race with an earlier write."""
        writer = self.w_owner[at]
        ordered = (writer // SPAN == who.group) & (self.w_epoch[at] < who.epoch)
        races: np.ndarray = (writer != _NONE) & (writer != who.owner) & ~ordered
        return races

    def read(self, at: np.ndarray, who: Who) -> None:
        """Records reads of elements `at`; raises KernelError for a race."""
        self._report("read", at, who, self._after_write(at, who), self.w_owner)
        group, epoch = self.r_group[at], self.r_epoch[at]
        fresh = (group == _NONE) | ((group == who.group) & (epoch < who.epoch))
        new = at[fresh]
        self.r_group[new], self.r_owner[new] = who.group[fresh], who.owner[fresh]
        self.r_epoch[new] = who.epoch[fresh]
        # If several accesses met in one element, the last one's mark remains, and the others see
        # it.
        self.r_owner[at[self.r_owner[at] != who.owner]] = _MANY
        self.r_group[at[self.r_group[at] != who.group]] = _MANY

    def write(self, at: np.ndarray, who: Who, after: int = 0) -> None:
        """Records writes to elements `at`, to be seen after the next barrier and `after` more;
        raises KernelError for a race or colliding lanes."""
        self._report("write", at, who, self._after_write(at, who), self.w_owner)
        group = self.r_group[at]
        late = (group == who.group) & (self.r_epoch[at] == who.epoch)
        late &= self.r_owner[at] != who.owner
        late |= (group != _NONE) & (group != who.group)
        self._report("write", at, who, late, self.r_owner)
        self.w_owner[at], self.w_epoch[at] = who.owner, who.epoch + after
        self._report("write", at, who, self.w_owner[at] != who.owner, self.w_owner)
        mine = np.arange(len(at))
        self.serial[at] = mine
        double = self.serial[at] != mine
        if double.any():
            k = int(double.argmax())
            raise KernelError(f"two lanes of one thread write element {at[k]} ({who.describe(k)})")

    def _report(
        self, what: str, at: np.ndarray, who: Who, bad: np.ndarray, others: np.ndarray
    ) -> None:
        if bad.any():
            k = int(bad.argmax())
            other = int(others[at[k]])
            name = _name(other) if other >= 0 else "several threads"
            raise KernelError(
                f"race: element {at[k]}, {what} here by {who.describe(k)}, was "
                f"touched by {name} with no barrier between"
            )


class CheckedMemory:
    """A buffer or local array: `copies` of `size` elements in one flat NumPy array (one copy per
    group for shared arrays, per thread for private ones). `undefined` marks elements never stored;
    `tracker` finds races; either may be None (not checked)."""

    def __init__(
        self,
        data: np.ndarray,
        size: int,
        undefined: np.ndarray | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        self.data = data
        self.size = size
        self.undefined = undefined
        self.tracker = tracker

    def check_bounds(self, index: np.ndarray, who: Who) -> None:
        """`index` int64[K] within one copy."""
        if index.size and index.view(np.uint64).max() >= self.size:  # negative indices become large
            bad = (index < 0) | (index >= self.size)
            k = int(bad.argmax())
            raise KernelError(
                f"index {index[k]} is outside 0..{self.size - 1} ({who.describe(k)}; "
                f"{int(bad.sum())} of {len(index)} accesses)"
            )

    def read(self, at: np.ndarray, who: Who) -> np.ndarray:
        """The elements at flat positions `at`, already in bounds."""
        if self.tracker is not None:
            self.tracker.read(at, who)
        if self.undefined is not None:
            bad = self.undefined[at]
            if bad.any():
                k = int(bad.argmax())
                raise KernelError(
                    f"element {at[k] % self.size} is read before anything was stored there "
                    f"({who.describe(k)})"
                )
        found: np.ndarray = self.data[at]
        return found

    def write(self, at: np.ndarray, values: np.ndarray, who: Who, after: int = 0) -> None:
        """Stores `values` at flat positions `at`, already in bounds; others see them after the next
        barrier and `after` more."""
        if self.tracker is not None:
            self.tracker.write(at, who, after)
        if self.undefined is not None:
            self.undefined[at] = False
        self.data[at] = values
