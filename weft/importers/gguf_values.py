"""Values of a GGUF file's header, read one after the other; no number is believed before the
bytes that it speaks of are known to be there.

A string's bytes are decoded as UTF-8 with "surrogateescape": what is no UTF-8 (some vocabularies
hold raw bytes) comes back exactly by `text.encode("utf-8", "surrogateescape")`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from weft.core.errors import FileFormatError

MAX_HEADER = 128 << 20  # bytes before the tensors' data; a vocabulary of 262,144 takes about 15 MB
MAX_OBJECTS = 1 << 22  # strings and arrays of one header in all: 500 MB of Python objects at worst
MAX_NAME = 65_535  # bytes of a key or a tensor's name
MAX_DEPTH = 4  # levels of arrays in arrays

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]


class Texts(Sequence[str]):
    """An array of strings, each decoded when it is looked up: a vocabulary has 100,000. `data`
    holds each after the 8 bytes of its length; `stops` are the ends of all, after a 0."""

    def __init__(self, data: bytes, stops: Sequence[int]) -> None:
        self.data, self._stops = data, stops

    def __len__(self) -> int:
        return len(self._stops) - 1

    def __iter__(self) -> Iterator[str]:
        data, start = self.data, 0
        for stop in self._stops[1:]:
            yield data[start + 8 : stop].decode("utf-8", "surrogateescape")
            start = stop

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        i = range(len(self))[at]
        found = self.data[self._stops[i] + 8 : self._stops[i + 1]]
        return found.decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class Cursor:
    """A place in the header that moves on with each value read. `item` says what is being read,
    for the errors: all are FileFormatError."""

    def __init__(self, data: mmap.mmap | bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.at = 0
        self.end = min(len(data), MAX_HEADER)
        self.item = "the header"
        self._objects = 0

    def fail(self, said: str) -> NoReturn:
        raise FileFormatError(f"{self.where}: {self.item}: {said}")

    def need(self, count: int, what: str) -> None:
        """Checks that `count` more bytes are there."""
        if count > self.end - self.at:
            limit = f"a header of more than {MAX_HEADER} bytes is not read"
            cut = f"the file ends at byte {self.end} (truncated or damaged)"
            why = limit if self.end < len(self.data) else cut
            self.fail(
                f"{what} at byte {self.at} needs {count} bytes, {self.end - self.at} are "
                f"left; {why}"
            )

    def number(self, form: struct.Struct = _U32, what: str = "a number") -> Any:
        self.need(form.size, what)
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def size(self, what: str) -> int:
        return int(self.number(_U64, what))

    def count(self, what: str, least: int) -> int:
        """A count of items that take `least` bytes or more each."""
        value = self.size(f"the number of {what}")
        self.need(value * least, f"{value} {what}, {least} bytes each or more,")
        return value

    def text(self, what: str) -> str:
        found: str = self._texts(1, what)[0]
        return found

    def name(self, what: str) -> str:
        found = self.text(what)
        if not 0 < len(found) <= MAX_NAME:
            self.fail(f"{what} has {len(found)} characters; expected 1 to {MAX_NAME}")
        return found

    def value(self) -> Any:
        """A value of the type whose number precedes it: bool, int, float, str, or an array. An
        array is a read-only NumPy array of numbers or bools, Texts, or a list of arrays."""
        kind = self.number(what="the value's type")
        if kind == _ARRAY:
            return self._array(MAX_DEPTH)
        if kind == _STRING:
            return self.text("a string")
        if kind == _BOOL:
            return bool(self._truths(1)[0])
        return self.number(self._scalar(kind), "a number")

    def _scalar(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            self.fail(f"values of type {kind} before byte {self.at}; GGUF has types 0 to 12")
        return _SCALARS[kind]

    def _array(self, depth: int) -> Any:
        if depth == 0:
            self.fail(f"arrays within arrays, more than {MAX_DEPTH} deep")
        kind = self.number(what="the type of an array's elements")
        if kind == _STRING:
            return self._texts(self.count("strings", 8), "a string")
        if kind == _ARRAY:
            count = self.count("arrays", 12)
            self._hold(count)
            return [self._array(depth - 1) for _ in range(count)]
        if kind == _BOOL:
            return self._truths(self.count("truths", 1))
        form = self._scalar(kind)
        return self._numbers(self.count("numbers", form.size), np.dtype(form.format))

    def _numbers(self, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        size = count * dtype.itemsize
        self.need(size, f"{count} numbers")
        values = np.frombuffer(self.data[self.at : self.at + size], dtype)
        self.at += size
        return values

    def _truths(self, count: int) -> np.ndarray:
        values = self._numbers(count, np.dtype(np.uint8))
        if count and values.max() > 1:
            self.fail(f"a truth value is {values.max()} before byte {self.at}; expected 0 or 1")
        return values.view(np.bool_)

    def _texts(self, count: int, what: str) -> Texts:
        self._hold(count)
        data, end, first = self.data, self.end, self.at
        at, unpack, stops = first, _U64.unpack_from, [0]
        for _ in range(count):
            start = at + 8
            if start > end or (at := start + unpack(data, start - 8)[0]) > end:
                self.at = start - 8
                self.need(self.size(f"the length of {what}"), what)
            stops.append(at - first)
        self.at = at
        return Texts(data[first:at], stops)

    def _hold(self, count: int) -> None:
        self._objects += count
        if self._objects > MAX_OBJECTS:
            self.fail(f"more than {MAX_OBJECTS} strings and arrays, which are not read")
