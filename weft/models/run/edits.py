"""Changes that callers make to a model's values at named places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.models.arch.places import WEIGHTS, Change

Positions = int | slice | Sequence[int] | np.ndarray | None


class Edit:
    """A change of the value at a named place of a model (`Decoder.places` lists them), at some
    positions of each sequence. Make one with `Edit.add` (steering) or `Edit.replace` (patching).

    `values` are float32 [K, ...]: one for every position of `at`, or one for each. Other positions
    keep their bits. The numbers are an input of the compiled Program, so that other values of the
    same shape compile nothing.

    >>> edit = Edit.add("layers.1.out", [0.0] * 64)
    >>> edit
    Edit.add('layers.1.out', float32 [1, 64])
    """

    def __init__(self, place: str, values: Any, at: Positions, adds: bool) -> None:
        self.place, self.adds = place, adds
        self.at = _positions(at)
        try:
            self.values = np.asarray(values, np.float32)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"the values at {place} are not an array of numbers") from None
        if not np.isfinite(self.values).all():
            raise UsageError(f"the values at {place} hold NaN or infinity; expected finite numbers")

    @classmethod
    def add(cls, place: str, values: Any, at: Positions = None) -> Edit:
        """Returns a change that adds `values` at the positions `at`: a number, several, a slice, or
        all (None), those of generated tokens too. Raises UsageError for values that are not
        finite numbers, or positions below 0."""
        return cls(place, values, at, True)

    @classmethod
    def replace(cls, place: str, values: Any, at: Positions = None) -> Edit:
        """Returns a change that puts `values` in place of the model's; see `add`. Several values
        without `at` are those of the first positions."""
        return cls(place, values, at, False)

    def __repr__(self) -> str:
        how = "add" if self.adds else "replace"
        return f"Edit.{how}({self.place!r}, float32 {list(self.values.shape)})"

    def fitted(self, shapes: Mapping[str, tuple[int, ...]]) -> Edit:
        """Returns the change with values [K, *shape] for the place's shape. Raises UsageError for
        an unknown place, or values that do not fit it or the positions."""
        check_place(self.place, shapes)
        if self.place.endswith(WEIGHTS):
            raise UsageError(
                f"{self.place} can be read only: attention never holds its weights; change "
                "attn.q, attn.k or attn.v"
            )
        inner, given = shapes[self.place], self.values.shape
        one = given == inner
        if not one and given[1:] != inner:
            raise UsageError(
                f"the values at {self.place} are {list(given)}; expected {list(inner)}, or "
                f"{['K', *inner]} for K positions".replace("'K'", "K")
            )
        values = self.values[None] if one else self.values
        at, count = self.at, len(values)
        if at is None and count > 1:
            at = tuple(range(count))
        wanted = 1 if at is None or isinstance(at, slice) else len(at)
        if count not in (1, wanted) or not count:
            raise UsageError(f"{count} values at {self.place} for {wanted} positions; give 1 each")
        return Edit(self.place, values, at, self.adds)

    @property
    def padded(self) -> np.ndarray:
        """The values with zeros up to a power of two of them, so that few Programs suffice."""
        count = 1 << (len(self.values) - 1).bit_length()
        more = np.zeros((count - len(self.values), *self.values.shape[1:]), np.float32)
        return np.concatenate([self.values, more])

    @property
    def change(self) -> Change:
        """The change as a Program makes it."""
        return Change(self.place, self.padded.shape, self.adds)

    def numbers(self, pos: Sequence[int]) -> np.ndarray:
        """Returns the number of the value that a row at each position takes, int32; -1 for none."""
        at = self.at
        if at is None:
            return np.zeros(len(pos), np.int32)
        if isinstance(at, slice):
            inside = range(*at.indices(1 << 31))
            return np.array([0 if p in inside else -1 for p in pos], np.int32)
        several = len(self.values) > 1
        known = {p: i if several else 0 for i, p in enumerate(at)}
        return np.array([known.get(p, -1) for p in pos], np.int32)


def _positions(at: Any) -> slice | tuple[int, ...] | None:
    """Returns checked positions."""
    if at is None or (isinstance(at, tuple) and not at):
        return at
    numbers = [at.start or 0, at.stop or 0, at.step or 1] if isinstance(at, slice) else at
    array = np.asarray(numbers)
    flat = array.reshape(-1)
    if array.dtype.kind not in "iu" or array.ndim > 1 or not flat.size or flat.min() < 0:
        raise UsageError(
            f"positions {at!r:.60}; expected numbers of 0 or more, or a slice of such numbers"
        )
    if isinstance(at, slice):
        return at
    found = tuple(map(int, flat))
    if len({*found}) < len(found):
        raise UsageError(f"positions {at!r:.60} name one twice; give each once")
    return found


def check_place(name: Any, shapes: Mapping[str, Any]) -> None:
    """Raises UsageError for a place that the model does not have."""
    if name not in shapes:
        near = get_close_matches(str(name), shapes, 3) or list(shapes)[:3]
        raise UsageError(
            f"unknown place {name!r:.100}; this model has {', '.join(near)}, ...: "
            "model.places() lists all"
        )
