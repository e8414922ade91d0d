"""A Program's steps as the native table: entries, pointer arguments, grids over the scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from weft.backends.cpu.layout import ENTRY_DTYPE
from weft.core.errors import DeviceError
from weft.kernel.grid import grid_function, grid_text
from weft.program.checks import check_args
from weft.program.program import BufferRef, Copy, Dispatch, Fill, Program
from weft.program.values import INT32, check_scalars

_BLOCK = 256 << 10  # bytes of a Copy or Fill that make one group


class ProgramTable:
    """The entries of `program`; `handles` are the kernels' addresses, `functions` the runtime's.

    Pointers are in one flat array, so that rebinding a buffer is one indexed assignment.
    """

    def __init__(
        self, program: Program, handles: Sequence[int], functions: Mapping[str, int]
    ) -> None:
        self.program = program
        self.steps = len(program.steps)
        self._memory = np.zeros(self.steps * 64 + 64, np.uint8)
        start = -self._memory.ctypes.data % 64
        self._entries = self._memory[start : start + self.steps * 64].view(ENTRY_DTYPE)
        self.address = self._memory.ctypes.data + start
        self._scalars = np.zeros(max(len(program.scalars), 1), np.int32)
        self.scalars_address = self._scalars.ctypes.data
        self._seen: tuple[int, ...] | None = None
        self._moving: list[tuple[Callable[[Sequence[int]], tuple[int, ...]], np.ndarray]] = []
        self._ends: dict[int, int] = {}  # buffer -> bytes that the steps reach
        self._written: set[int] = set()  # buffers that the steps write
        self._fill(handles, functions)

    def _fill(self, handles: Sequence[int], functions: Mapping[str, int]) -> None:
        words: list[int] = []  # the arguments of all steps
        uses: dict[int, list[tuple[int, int]]] = {}  # buffer -> (word, byte offset)
        starts: list[int] = []
        grids: dict[str, list[int]] = {}
        e = self._entries

        def pointer(ref: BufferRef) -> None:
            uses.setdefault(ref.buffer, []).append((len(words), ref.offset))
            self._ends[ref.buffer] = max(
                self._ends.get(ref.buffer, 0), ref.offset + ref.nbytes if ref.nbytes else 0
            )
            words.append(0)

        for i, step in enumerate(self.program.steps):
            starts.append(len(words))
            if isinstance(step, Dispatch):
                kernel = self.program.kernels[step.kernel]
                check_args(kernel, step)
                e["fn"][i] = handles[step.kernel]
                for ref in step.args:
                    pointer(ref)
                pairs = zip(kernel.buffers, step.args)
                self._written.update(ref.buffer for buffer, ref in pairs if buffer.access != "r")
                grids.setdefault(grid_text(kernel), []).append(i)
                continue
            pointer(step.dst)
            self._written.add(step.dst.buffer)
            if isinstance(step, Copy):
                pointer(step.src)
                nbytes = min(step.src.nbytes, step.dst.nbytes)
                block = max(nbytes, 1) if step.src.buffer == step.dst.buffer else _BLOCK
            else:
                assert isinstance(step, Fill)
                words.append(step.byte & 0xFF)
                nbytes, block = step.dst.nbytes, _BLOCK
            words += [nbytes, block]
            e["fn"][i] = functions["weft_copy" if isinstance(step, Copy) else "weft_fill"]
            e["gx"][i] = e["groups"][i] = -(-nbytes // block)
        self._words = np.array([*words, 0], np.uint64)
        base = self._words.ctypes.data
        e["args"] = [base + 8 * s for s in starts]
        self._uses = {
            buffer: (np.array([w for w, _ in pairs]), np.array([o for _, o in pairs], np.uint64))
            for buffer, pairs in uses.items()
        }
        self._grids(grids)

    def _grids(self, grids: Mapping[str, list[int]]) -> None:
        """Constant grids are written now; the others become functions of the scalars."""
        for text, indices in grids.items():
            at = np.array(indices)
            if "s[" in text:
                self._moving.append((grid_function(text), at))
            else:
                self._write_grid(at, grid_function(text)(()))

    def _write_grid(self, at: np.ndarray, grid: tuple[int, ...]) -> None:
        e = self._entries
        groups = grid[0] * grid[1] * grid[2] if min(grid) > 0 else 0
        if max(grid) > INT32[1]:
            raise DeviceError(f"{self.program.name}: a grid of {grid} groups; an axis ends at 2^31")
        e["gx"][at], e["gy"][at], e["gz"][at] = grid if groups else (0, 0, 0)
        e["groups"][at] = groups

    def check(self, index: int, nbytes: int, writable: bool) -> None:
        """Raises DeviceError if a buffer of `nbytes` cannot serve as Program buffer `index`."""
        need = self._ends.get(index, 0)
        where = f"{self.program.name}: buffer {self.program.buffers[index].name}"
        if nbytes < need:
            raise DeviceError(f"{where} needs {need} bytes, got {nbytes}")
        if index in self._written and not writable:
            raise DeviceError(f"{where} is written by the Program; a read-only array was given")

    def groups(self, step: int) -> int:
        """The number of groups of a step."""
        return int(self._entries["groups"][step])

    @contextmanager
    def part(self, step: int, first: int, groups: int) -> Iterator[int]:
        """Yields the address of an entry that is, within the block, only these groups of a step."""
        entry = self._entries[step : step + 1]
        whole = entry["first"].copy(), entry["groups"].copy()
        entry["first"], entry["groups"] = first, groups
        try:
            yield self.address + step * ENTRY_DTYPE.itemsize
        finally:
            entry["first"], entry["groups"] = whole

    def point(self, index: int, address: int) -> None:
        """Use the memory at `address` for Program buffer `index`."""
        use = self._uses.get(index)
        if use is not None:
            self._words[use[0]] = use[1] + np.uint64(address)

    def uses(self, index: int) -> list[tuple[int, int]]:
        """The addresses of the words that point into Program buffer `index`, each with the byte of
        the buffer that it points at."""
        words, offsets = self._uses.get(index, ((), ()))
        base = self._words.ctypes.data
        return [(base + 8 * int(w), int(o)) for w, o in zip(words, offsets)]

    def fits(self, index: int, written: bool) -> bool:
        """True if an array with the shape of Program buffer `index` covers everything that the
        steps reach. The steps may write to it only if `written` is true."""
        spec = self.program.buffers[index]
        nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        return self._ends.get(index, 0) <= nbytes and (written or index not in self._written)

    @property
    def ticks(self) -> int:
        """The clock ticks that a run takes on one thread, as far as runs so far have shown."""
        return int((self._entries["cost"] * np.maximum(self._entries["groups"], 0) >> 8).sum())

    def set_scalars(self, scalars: Sequence[int]) -> None:
        """Writes the scalar buffer and the grids that depend on it. Raises DeviceError for a
        wrong count or a value beyond int32."""
        values = tuple(int(v) for v in scalars)
        if values == self._seen:
            return
        check_scalars(self.program, values)
        self._seen = None
        if values:
            self._scalars[:] = values
        for grid, at in self._moving:
            self._write_grid(at, grid(values))
        self._seen = values
