"""vmap: a function of one example, run on a whole batch at once (weft.ops.batching)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft import ops
from weft.core.errors import ShapeError, UsageError
from weft.core.trees import flatten, unflatten
from weft.ops.batching import Batched, MapFrame, leading, mapping
from weft.ops.tape import Tracked
from weft.tensor.base import TensorBase
from weft.tensor.core import Tensor
from weft.tensor.derivatives import is_tensor, transforming
from weft.tensor.shapes import cat

Dims = Any  # an int, None, or a tuple, list or dict of them
RANDOMNESS = ("error", "same", "different")


def vmap(
    fn: Callable[..., Any],
    in_dims: Dims = 0,
    out_dims: Dims = 0,
    randomness: str = "error",
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Returns `fn`, a function of one example, as a function of a batch: each op runs once for all.

    `in_dims` gives the axis of the batch in each positional argument, None for one that all
    examples share; a tuple has an entry per argument, which may nest as the argument does. Keyword
    arguments have it at axis 0. `out_dims` gives its place in the results. fn sees tensors without
    that axis and may use derivatives, another vmap and compiled functions; only shapes are known
    to it. `randomness` says what random numbers without a key are: "error", the "same" for all
    examples, or "different". At most `chunk_size` examples run at once. Raises ShapeError for
    batches of two sizes, UsageError for axes that fit no argument.

    >>> rows = weft.func.vmap(lambda x, y: (x * y).sum())
    >>> rows(weft.tensor([[1.0, 2.0], [3.0, 4.0]]), weft.tensor([[1.0, 1.0], [0.0, 2.0]])).tolist()
    [3.0, 8.0]
    """
    if randomness not in RANDOMNESS:
        raise UsageError(f"vmap: randomness is {randomness!r}; give one of {', '.join(RANDOMNESS)}")
    if chunk_size is not None and chunk_size < 1:
        raise UsageError(f"vmap: chunk_size is {chunk_size}; give a positive number, or None")

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = flatten((args, kwargs), is_tensor, "vmap's arguments")
        shown = in_dims if isinstance(in_dims, tuple | list) else (in_dims,) * len(args)
        if len(shown) != len(args):
            raise UsageError(f"vmap: {len(shown)} in_dims for {len(args)} arguments")
        dims = [d for dim, a in zip(shown, args) for d in _dims("in_dims", dim, a)]
        dims += _dims("in_dims", 0, kwargs)
        size, moved = _fronts(leaves, dims)
        step = size if chunk_size is None else chunk_size
        if size <= step:
            return _run(fn, tree, moved, size, out_dims, randomness)
        parts = []
        for start in range(0, size, step):
            part = [x if d is None else x[start : start + step] for x, d in moved]
            count = min(step, size - start)
            made = _run(fn, tree, list(zip(part, dims)), count, 0, randomness)
            parts.append(flatten(made, is_tensor, "vmap's results"))
        joined = [cat(list(each), 0) for each in zip(*(p[0] for p in parts))]
        return _placed(unflatten(parts[0][1], joined), out_dims)

    return mapped


def _dims(name: str, dims: Dims, x: Any) -> list[int | None]:
    """The axis for each tensor nested in x."""
    if dims is None or (isinstance(dims, int) and not isinstance(dims, bool)):
        return [dims] * len(flatten(x, is_tensor, "vmap")[0])
    if isinstance(dims, Mapping) and isinstance(x, Mapping) and dims.keys() == x.keys():
        return [d for key in x for d in _dims(name, dims[key], x[key])]
    sequences = isinstance(dims, Sequence) and isinstance(x, Sequence) and len(dims) == len(x)
    if sequences and not isinstance(dims, str):
        return [d for dim, part in zip(dims, x) for d in _dims(name, dim, part)]
    raise UsageError(f"vmap: {name} {dims!r} does not nest as the value {type(x).__name__} does")


def _fronts(leaves: Sequence[TensorBase], dims: Sequence[int | None]) -> tuple[int, list[Any]]:
    """The size of the batch, and the arguments with the batch as axis 0."""
    size: int | None = None
    moved: list[Any] = []
    for x, dim in zip(leaves, dims):
        if dim is None:
            moved.append((x, None))
            continue
        if not -x.ndim <= dim < x.ndim:
            raise UsageError(f"vmap: in_dims {dim} of {x._known()}; it has {x.ndim} axes")
        axis = dim % x.ndim
        if size is not None and x.shape[axis] != size:
            raise ShapeError(
                f"vmap: batches of {size} and {x.shape[axis]} examples; all must be equally long"
            )
        size = x.shape[axis]
        order = (axis, *(i for i in range(x.ndim) if i != axis))
        moved.append((x if not axis else x._wrap(ops.transpose(x.value, order)), 0))
    if size is None:
        raise UsageError("vmap: no argument has a batch; give one an axis with in_dims")
    return size, moved


def _run(
    fn: Callable[..., Any], tree: Any, given: Sequence[Any], size: int, out_dims: Dims, draws: str
) -> Any:
    with mapping(size, draws) as frame, transforming():
        inside = [x if dim is None else x._wrap(Batched(x.value, frame)) for x, dim in given]
        args, kwargs = unflatten(tree, inside)
        try:
            made, shape = flatten(fn(*args, **kwargs), is_tensor, "vmap's results")
        except BaseException:
            _undo(frame, inside)
            raise
        whole = [_whole(t, frame) for t in made]
        if outside := _undo(frame, [*inside, *made]):
            name = outside[0].name or "a tensor"
            raise UsageError(
                f"vmap: the function wrote values of its examples to {name} "
                f"{outside[0]._known()} from outside; return them instead (norms: use eval())"
            )
    return _placed(unflatten(shape, whole), out_dims)


def _undo(frame: MapFrame, mine: Sequence[Any]) -> list[Any]:
    """Gives tensors from outside that hold a batch now what they held before; returns these. A
    tensor of the function's own that is not in `mine` is gone by now."""
    known, found = {id(t) for t in mine}, {}
    for reference, (value, history) in reversed(frame.written):
        if (t := reference()) is not None and id(t) not in known:
            t._value, t._tape, found[id(t)] = value, history, t
    return list(found.values())


def _whole(t: TensorBase, frame: MapFrame) -> Tensor:
    value = t.value
    while isinstance(value, Tracked) and value.level >= frame.level:
        value = value.value
    return Tensor(leading(value, frame))


def _placed(results: Any, out_dims: Dims) -> Any:
    """Results with the batch where out_dims says."""
    leaves, tree = flatten(results, is_tensor, "vmap's results")
    moved = []
    for x, dim in zip(leaves, _dims("out_dims", out_dims, results)):
        if dim is None or not -x.ndim <= dim < x.ndim:
            raise UsageError(f"vmap: out_dims {dim} of a result {x._known()}")
        axis = dim % x.ndim
        order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))
        moved.append(x if not axis else x._wrap(ops.transpose(x.value, order)))
    return unflatten(tree, moved)
