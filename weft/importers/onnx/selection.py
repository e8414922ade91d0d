"""Operators that pick elements by their values or by indices, and those that put them back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft
from weft.core.errors import ShapeError, UsageError
from weft.importers.onnx.table import MICROSOFT, NodeCall, Value, is_host, op, scalar
from weft.importers.onnx.values import places
from weft.tensor.core import Tensor
from weft.tensor.scattering import scatter_join


@op("TopK", host=(1,))
def topk(call: NodeCall, x: Tensor, k: Any = None) -> tuple[Tensor, Tensor]:
    count = call.need("k") if k is None else int(scalar(k))
    largest = bool(call.get("largest", 1))
    return x.topk(count, call.get("axis", -1), largest)


@op("GatherElements", either=True)
def gather_elements(call: NodeCall, x: Value, indices: Value) -> Value:
    axis = call.get("axis", 0) % x.ndim
    if is_host(x):
        near = [slice(None) if i == axis else slice(0, n) for i, n in enumerate(indices.shape)]
        return np.take_along_axis(x[tuple(near)], indices, axis)
    for i, n in enumerate(indices.shape):
        x = x if i == axis or n == x.shape[i] else x.narrow(i, 0, n)
    return x.take_along_axis(indices, axis)


@op("GatherND", domain=MICROSOFT, either=True)
@op("GatherND", either=True)
def gather_nd(call: NodeCall, x: Value, indices: Value) -> Value:
    """Slices of x at the vectors that the last axis of indices holds, batch by batch."""
    batch, depth = call.get("batch_dims", 0), indices.shape[-1]
    if is_host(x) or is_host(indices):
        x, indices = call.tensor(x), call.tensor(indices)
    flat, sizes = _flat_index(call, indices, x.shape[batch : batch + depth])
    lead = x.shape[:batch]
    inner = x.shape[batch + depth :]
    rows = math.prod(lead)
    count = math.prod(sizes)
    table = x.reshape((rows * count, *inner))
    places = flat.reshape(rows, math.prod(indices.shape[batch:-1]))
    start = call.tensor((np.arange(rows) * count).astype(np.int32)).reshape(rows, 1)
    shape = (*indices.shape[:-1], *inner)
    return table.take((places + start).reshape(-1), 0).reshape(shape)


def _flat_index(
    call: NodeCall, indices: Tensor, sizes: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Vectors of indices (negative ones from the end) as places in the axes made one."""
    at = indices.cast("int32")
    flat: Any = call.tensor(np.zeros(indices.shape[:-1], np.int32))
    for i, n in enumerate(sizes):
        one = at[..., i]
        flat = flat * n + (one < 0).where(one + n, one)
    return flat, sizes


@op("ScatterND")
def scatter_nd(call: NodeCall, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth = indices.shape[-1]
    flat, sizes = _flat_index(call, indices, x.shape[:depth])
    inner = x.shape[depth:]
    table = x.reshape((math.prod(sizes), *inner))
    rows = updates.reshape((math.prod(indices.shape[:-1]), *inner))
    return _put(table, flat.reshape(-1), rows, call.get("reduction", "none")).reshape(x.shape)


@op("ScatterElements", "Scatter")
def scatter_elements(call: NodeCall, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    at = indices.cast("int32")
    at = (at < 0).where(at + x.shape[axis], at)
    grid = np.meshgrid(*map(np.arange, indices.shape), indexing="ij", sparse=True)
    flat: Any = call.tensor(np.zeros(indices.shape, np.int32))
    for i, n in enumerate(x.shape):
        flat = flat * n + (at if i == axis else call.tensor(grid[i].astype(np.int32)))
    table = x.reshape(-1)
    made = _put(table, flat.reshape(-1), updates.reshape(-1), call.get("reduction", "none"))
    return made.reshape(x.shape)


def _put(table: Tensor, index: Tensor, rows: Tensor, how: str) -> Tensor:
    """Rows of a table replaced by others, or joined with them."""
    if how == "none":
        if table.dtype.kind == "bool":
            return _put(table.cast("int32"), index, rows.cast("int32"), how).cast("bool")
        return weft.functional.update(table, index, rows)
    if how == "add":
        return weft.functional.scatter_add(table, index, rows)
    if how not in ("mul", "max", "min"):
        raise UsageError(f"reduction {how!r:.40}; ONNX has none, add, mul, max and min")
    return scatter_join(table, index, rows, how)


@op("TensorScatter")
def tensor_scatter(
    call: NodeCall, cache: Tensor, update: Tensor, start: Tensor | None = None
) -> Tensor:
    """A key-value cache with new entries from `start[b]` on; circular ones wrap around."""
    axis = call.get("axis", -2) % cache.ndim
    most, count, n = cache.shape[axis], update.shape[axis], cache.shape[0]
    first = call.tensor(np.zeros(n, np.int32)) if start is None else start.cast("int32")
    at = first.reshape(n, 1) + call.tensor(np.arange(count, dtype=np.int32)).reshape(1, count)
    at = at % most if call.get("mode", "linear") == "circular" else at
    rows = call.tensor((np.arange(n) * most).astype(np.int32)).reshape(n, 1)
    order = [0, axis, *(i for i in range(1, cache.ndim) if i != axis)]
    back = [order.index(i) for i in range(cache.ndim)]
    moved, new = cache.permute(order), update.permute(order)
    flat = moved.reshape((n * most, *moved.shape[2:]))
    made = weft.functional.update(
        flat, (rows + at).reshape(-1), new.reshape((n * count, *moved.shape[2:]))
    )
    return made.reshape(moved.shape).permute(back)


# -- results whose size depends on values: on the host --------------------------------------------


@op("NonZero", host=(0,))
def nonzero(call: NodeCall, x: np.ndarray) -> np.ndarray:
    return np.stack(np.nonzero(x)).astype(np.int64)


@op("Compress", host=(1,))
def compress(call: NodeCall, x: Tensor, condition: np.ndarray) -> Tensor:
    axis = call.get("axis")
    seen = x.reshape(-1) if axis is None else x
    kept = np.nonzero(condition[: seen.shape[axis or 0]])[0]
    return seen.take(kept, axis or 0)


@op("Unique", host=(0,))
def unique(call: NodeCall, x: np.ndarray) -> tuple[np.ndarray, ...]:
    axis = call.get("axis")
    made, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not call.get("sorted", 1):
        order = np.argsort(first, kind="stable")
        rank = np.argsort(order, kind="stable")
        made = made[order] if axis is None else np.take(made, order, axis)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return made, *(a.astype(np.int64) for a in (first, inverse, counts))


@op("Unique", domain=MICROSOFT, host=(0,))
def unique_ms(call: NodeCall, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The distinct elements of x[N] in their order, where each element is among them, and how many
    there are of each."""
    made, first, inverse, counts = np.unique(x.reshape(-1), True, True, True)
    order = np.argsort(first, kind="stable")
    rank = np.argsort(order, kind="stable")
    return made[order], *(a.astype(np.int64) for a in (rank[inverse.reshape(-1)], counts[order]))


@op("NonMaxSuppression", host=(-1,))
def non_max_suppression(
    call: NodeCall, boxes: np.ndarray, scores: np.ndarray, most: Any = None, overlap: Any = None,
    least: Any = None,
) -> np.ndarray:  # fmt: skip
    """[image, class, box] of the best boxes whose overlap with a better one is within the limit."""
    limit = 0 if most is None else int(scalar(most))
    edge = 0.0 if overlap is None else float(scalar(overlap))
    found: list[tuple[int, int, int]] = []
    for image, kind in np.ndindex(*scores.shape[:2]):
        corners = _corners(boxes[image], call.get("center_point_box", 0))
        best = scores[image, kind]
        order = np.argsort(-best, kind="stable")
        order = order if least is None else order[best[order] > float(scalar(least))]
        kept: list[int] = []
        for i in order.tolist():
            if len(kept) >= limit:
                break
            if not kept or _overlaps(corners[i], corners[kept]).max() <= edge:
                kept.append(i)
        found += [(image, kind, i) for i in kept]
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, centred: int) -> np.ndarray:
    """[y0, x0, y1, x1] of boxes given by two corners, or by centre and size."""
    if centred:
        x, y, w, h = boxes.T
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], 1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box with others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    inner = np.prod(np.maximum(high - low, 0), 1)
    area = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], 1) - inner
    made: np.ndarray = np.where(area > 0, inner / np.where(area > 0, area, 1), 0)
    return made


@op("TfIdfVectorizer", host=(0,))
def tf_idf(call: NodeCall, x: np.ndarray) -> np.ndarray:
    """The count of each n-gram of a pool of integers in each row, by term frequency, inverse
    document frequency, or both."""
    pool = call.attrs.get("pool_int64s")
    if pool is None:
        raise UsageError("TfIdfVectorizer of strings; weft has numbers alone")
    starts, places_ = call.need("ngram_counts"), call.need("ngram_indexes")
    shortest, longest = call.need("min_gram_length"), call.need("max_gram_length")
    skips = call.need("max_skip_count")
    width = x.shape[-1] if x.ndim else 1
    longest, skips = min(longest, width), min(skips, width)  # beyond a row nothing is found
    slots = places(max(places_, default=-1) + 1, "TfIdfVectorizer").size
    ends = [0, *starts, len(pool)]
    if min(places_, default=0) < 0 or shortest < 1 or sorted(ends) != ends:
        raise ShapeError(
            f"TfIdfVectorizer of {shortest} words or more that begin at {starts!r:.80}"
        )
    grams: dict[tuple[int, ...], int] = {}
    for n, (a, z) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        for i in range(a, z, n):
            grams.setdefault(tuple(pool[i : i + n]), len(grams))
    rows = x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1)
    counts = np.zeros((len(rows), slots), np.float32)
    for r, row in enumerate(rows.tolist()):
        for n in range(shortest, longest + 1):
            for step in range(1, skips + 2 if n > 1 else 2):
                for i in range(len(row) - (n - 1) * step):
                    number = grams.get(tuple(row[i : i + (n - 1) * step + 1 : step]))
                    if number is not None:
                        counts[r, places_[number]] += 1
    mode, given = call.need("mode"), call.get("weights")
    weights = np.ones(counts.shape[1], np.float32)
    for i, w in enumerate(given or []):
        weights[places_[i]] = w
    made = counts if mode == "TF" else (counts > 0) * weights if mode == "IDF" else counts * weights
    return made.astype(np.float32).reshape((*x.shape[:-1], counts.shape[1]))
