"""Vision towers run by NumPy or by compiled Programs, one picture or tile at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import LimitError
from weft.host.progress import progress
from weft.models.arch.tower_config import TowerConfig
from weft.models.arch.weights import Weights
from weft.models.run.compiled_runner import model_caps
from weft.models.run.placed import Placed
from weft.vision.steps import cubic
from weft.vision.tiles import patched

if TYPE_CHECKING:
    from weft.program.device import Device
    from weft.program.session import Session

Inputs = dict[str, np.ndarray]


class Tower:
    """A tower on a device (None: the NumPy oracle). Programs are compiled on first use, one for
    each number of patches, which is rounded up where pictures have any size."""

    def __init__(self, config: TowerConfig, weights: Weights, device: Device | None) -> None:
        self.config = config
        c, arrays = config, dict(weights)
        self._table = np.zeros((0, c.hidden), np.float32)
        self.newline = np.asarray(arrays.pop("newline", self._table), np.float32)
        if c.placed:
            table = np.asarray(arrays.pop("places"), np.float32)
            if c.leads and c.class_position:
                leads = np.asarray(arrays["leads"], np.float32)
                arrays["leads"] = leads + table[: c.leads]
                table = table[c.leads :]
            self._table = table
        self._placed = Placed(Weights.of(arrays), device)
        self._sessions: dict[tuple[object, ...], Session] = {}

    @property
    def dtype(self) -> DType:
        """The dtype of its matrices."""
        return self._placed.avals[self.config.matrix][1]

    @property
    def weights(self) -> Weights:
        """The weights by role, but for the table of positions."""
        return self._placed.weights

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(w.nbytes for w in self._placed.weights.outlines.values())

    def vectors(self, pixels: np.ndarray, filled: tuple[int, int] | None = None) -> np.ndarray:
        """Returns the vectors of one picture or tile, pixels float32 [3, H, W]: float32 [N, width
        * (1 + deep)], by rows. Where pictures have any size, N is that of the merged patches. A
        video's frames come in groups of those that a patch holds, [frames, 3, H, W]. Of a tile
        that a picture fills in part, `filled` has the rows and columns of patches."""
        c, block = self.config, self.config.projector.block
        rows, columns = pixels.shape[-2] // c.patch, pixels.shape[-1] // c.patch
        flat = _moving(pixels, c) if pixels.ndim == 4 else _repeated(patched(pixels, c.patch), c)
        if c.masked:
            return self._run(self._filled(flat, (rows, columns), filled or (rows, columns)))
        if not c.ropes and not c.axes:
            given = {"rows": flat, "lengths": np.array([len(flat)], np.int32)}
            if c.table:
                given["places"] = self.table(rows, columns)
            return self._run(given)
        order = block_order(rows, columns, block)
        back: np.ndarray | None = None
        if c.window:
            cells, counts = window_order(rows // block, columns // block, c.window // block)
            order = order.reshape(-1, block * block)[cells].reshape(-1)
            back = np.argsort(cells)
        given = {"rows": flat[order], "lengths": np.array([len(flat)], np.int32)}
        given |= turns(c, order // columns, order % columns) if c.ropes else {}
        if c.placed:
            given["places"] = self.table(rows, columns)[order]
        size = rounded_up(len(flat), block * block)
        given = {k: v if k == "lengths" else _padded(v, size) for k, v in given.items()}
        if c.window:
            given |= window_rows([n * block * block for n in counts], size, c.window**2)
        out = self._run(given)[: len(flat) // (block * block)]
        return out if back is None else out[back]

    def _filled(self, flat: np.ndarray, size: tuple[int, int], filled: tuple[int, int]) -> Inputs:
        """Returns the inputs of a tile: first the patches that the picture fills, which all see."""
        number = np.arange(len(flat)).reshape(size)
        inner = np.zeros(size, bool)
        inner[: filled[0], : filled[1]] = True
        order = np.concatenate([number[inner], number[~inner]])
        y, x = (_buckets(n, self.config.table) for n in filled)
        places = np.zeros(len(flat), np.int64)  # the others have the first place
        places[: filled[0] * filled[1]] = (y[:, None] * self.config.table + x).reshape(-1)
        return {
            "rows": flat[order], "lengths": np.array([filled[0] * filled[1]], np.int32),
            "places": self._table[places], "grid": np.argsort(order).astype(np.int32),
        }  # fmt: skip

    def many(self, pixels: np.ndarray) -> np.ndarray:
        """Returns what `vectors` gives for pictures of the tower's own size, pixels float32 [B, 3,
        H, W], in one step: float32 [B * N, width]."""
        c = self.config
        flat = np.concatenate([_repeated(patched(one, c.patch), c) for one in pixels])
        length, across = len(flat) // len(pixels), pixels.shape[3] // c.patch
        given = {"rows": flat, "lengths": np.full(len(pixels), length, np.int32)}
        if c.table:
            given["places"] = self.table(length // across, across)
        if c.ropes:
            turned = turns(c, *middled(length // across, across))
            for name, value in turned.items():  # what is before the patches does not turn
                still = np.full((c.leads, value.shape[1]), name == "cos", np.float32)
                given[name] = np.tile(np.concatenate([still, value]), (len(pixels), 1))
        return self._run(given)

    def texts(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns the vectors of tokens of a tower of text, from their embeddings float32 [B, T,
        hidden] of which lengths[b] count: float32 [B, T, hidden]."""
        given = {"rows": rows.reshape(-1, rows.shape[2]), "lengths": lengths.astype(np.int32)}
        return self._run(given).reshape(rows.shape)

    def table(self, rows: int, columns: int) -> np.ndarray:
        """Returns the table of positions for a grid, float32 [rows * columns, hidden]."""
        c = self.config
        if c.axes:
            return self._added(rows, columns)
        if (rows, columns) == (c.table, c.table):
            return self._table
        grid = self._table.reshape(c.table, c.table, c.hidden)
        if c.family == "qwen":
            by = [_linear(n, c.table) for n in (rows, columns)]
        else:
            by = [_cubic(n, c.table) for n in (rows, columns)]
        out = np.einsum("ya,xb,abh->yxh", *by, grid, optimize=True)
        return np.ascontiguousarray(out.reshape(rows * columns, c.hidden), np.float32)

    def _added(self, rows: int, columns: int) -> np.ndarray:
        """Returns the sums of a column's place and a row's. Raises LimitError beyond the tables."""
        c = self.config
        if max(rows, columns) > c.axes:
            raise LimitError(f"a picture has {rows} x {columns} patches; the tower has places for "
                             f"{c.axes} along a side: make the picture less long")  # fmt: skip
        by_column, by_row = self._table
        made = by_column[None, :columns] + by_row[:rows, None]
        return np.ascontiguousarray(made.reshape(rows * columns, c.hidden))

    def _run(self, given: Inputs) -> np.ndarray:
        if self._placed.device is None:
            from weft.models.arch.tower import Patches, forward

            return np.array(forward(self.config, self._placed.weights, Patches(**given)))
        batch, length = len(given["lengths"]), len(given["rows"]) // len(given["lengths"])
        windows = None
        if "into" in given:
            windows = len(given["windows"]), len(given["into"]) // len(given["windows"])
        key = batch, length, windows
        if key not in self._sessions:
            self._sessions[key] = self._session(batch, length, windows)
        return np.array(self._sessions[key].run(given)[0])

    def _session(self, batch: int, length: int, windows: tuple[int, int] | None) -> Session:
        from weft.models.arch.tower import tower_graph
        from weft.tensor.program_cache import program_for

        c, placed = self.config, self._placed
        avals = placed.avals
        with progress(f"compiling a tower of {length} patches for {placed.target.info.id}"):
            program = program_for(
                ("tower", c, sorted(avals.items()), batch, length, windows),
                model_caps(placed.target.caps),
                lambda: tower_graph(c, avals, batch, length, windows),
                placed.target,
            )
            return placed.session(program)


def _repeated(rows: np.ndarray, c: TowerConfig) -> np.ndarray:
    """Returns patches with each channel repeated in time."""
    if c.frames == 1:
        return rows
    parts = rows.reshape(len(rows), c.channels, 1, -1)
    return np.repeat(parts, c.frames, 2).reshape(len(rows), -1)


def _moving(frames: np.ndarray, c: TowerConfig) -> np.ndarray:
    """Returns the patches of frames [F, 3, H, W], each channel's F patches side by side."""
    parts = [patched(frame, c.patch) for frame in frames]
    return np.stack([p.reshape(len(p), c.channels, -1) for p in parts], 2).reshape(
        len(parts[0]), -1
    )


def block_order(rows: int, columns: int, block: int) -> np.ndarray:
    """Returns the numbers of patches block by block; patches beyond whole blocks are left out."""
    tall, wide = rows // block, columns // block
    number = np.arange(rows * columns).reshape(rows, columns)[: tall * block, : wide * block]
    return number.reshape(tall, block, wide, block).transpose(0, 2, 1, 3).reshape(-1)


def window_order(rows: int, columns: int, size: int) -> tuple[np.ndarray, list[int]]:
    """Returns the numbers of cells window by window, and the cells of each window."""
    number = np.arange(rows * columns).reshape(rows, columns)
    parts = [
        number[y : y + size, x : x + size].reshape(-1)
        for y in range(0, rows, size)
        for x in range(0, columns, size)
    ]
    return np.concatenate(parts), [len(part) for part in parts]


def window_rows(counts: list[int], size: int, places: int) -> Inputs:
    """Returns the windows of a step of `size` rows, of which `counts` are adjacent; the rest are in
    windows of their own."""
    rest = size - sum(counts)
    counts = counts + [places] * (rest // places) + ([rest % places] if rest % places else [])
    count = rounded_up(len(counts), 1)
    into = np.zeros((count, places), np.int32)
    back, start = np.zeros(size, np.int32), 0
    for k, n in enumerate(counts):
        into[k, :n] = np.arange(start, start + n)
        back[start : start + n] = k * places + np.arange(n)
        start += n
    lengths = np.array(counts + [1] * (count - len(counts)), np.int32)
    return {"into": into.reshape(-1), "windows": lengths, "back": back}


def turns(c: TowerConfig, rows: np.ndarray, columns: np.ndarray) -> Inputs:
    """Returns cos and sin of each patch's angles, float32 [T, head_dim / 2]: half of the pairs turn
    by its row, half by its column."""
    if c.alternating:
        freqs = 1.0 / c.theta ** (np.arange(0, c.head_dim, 2, dtype=np.float32) / c.head_dim)
        by_row, by_column = freqs[::2], freqs[1::2]
    else:
        half = c.head_dim // 2
        by_row = by_column = 1.0 / c.theta ** (np.arange(0, half, 2, dtype=np.float32) / half)
    parts = [np.outer(rows, by_row), np.outer(columns, by_column)]
    angles = np.concatenate([p.astype(np.float32) for p in parts], 1)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}


def middled(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the angle of each patch's row and column, in float32 as PyTorch does: a whole turn
    from the picture's middle to its edge."""
    ends = [np.arange(n, dtype=np.float32) + np.float32(0.5) for n in (rows, columns)]
    places = [np.float32(2) * (at / np.float32(len(at))) - np.float32(1) for at in ends]
    y, x = np.meshgrid(*(np.float32(2 * np.pi) * at for at in places), indexing="ij")
    return y.reshape(-1), x.reshape(-1)


def rounded_up(n: int, multiple: int) -> int:
    """Returns a number at least n, at most a quarter more, so that few are different."""
    step = max(1 << max(n.bit_length() - 3, 0), multiple)
    step = -(-step // multiple) * multiple
    return -(-n // step) * step


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])


def _buckets(count: int, size: int) -> np.ndarray:
    """Returns the place of each of `count` patches among `size`, in float32 as PyTorch does."""
    edges = np.arange(1 / size, 1.0, 1 / size).astype(np.float32)
    at = np.arange(count, dtype=np.float32) * (np.float32(1) / np.float32(count))
    found: np.ndarray = np.searchsorted(edges, np.minimum(at, np.float32(1 - 1e-6)), side="right")
    return found


def _linear(count: int, size: int) -> np.ndarray:
    """Returns weights [count, size] of a stretched axis, whose ends stay where they are."""
    at = np.linspace(0, size - 1, count, dtype=np.float32)
    low = at.astype(np.int64)
    high, part = np.minimum(low + 1, size - 1), at - low
    out = np.zeros((count, size), np.float32)
    number = np.arange(count)
    np.add.at(out, (number, low), 1 - part)
    np.add.at(out, (number, high), part)
    return out


def _cubic(count: int, size: int) -> np.ndarray:
    """Returns weights [count, size] of PyTorch's bicubic interpolation of an axis."""
    places, by = cubic(count, size)
    out = np.zeros((count, size), np.float32)
    np.add.at(out, (np.arange(count)[:, None], places), by)
    return out
