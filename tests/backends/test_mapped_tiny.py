"""Each primitive and composite under vmap: what a loop over the examples gives, and its gradients.

The cases are the tiny calls of every public function, which between them meet every primitive and
composite (tests/backends/test_wgsl_tiny.py).
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from test_wgsl_tiny import ON_VALUES, ONCE, OWN, gradients
from tiny_cases import PUBLIC, maker
from tiny_kit import Draw, tensors

import weft
from weft import func, ops
from weft.core.tolerance import compare
from weft.ops.batching import FOLDED, ROWS, RULES, WEIGHTS

pytestmark = pytest.mark.filterwarnings("ignore")
# Random numbers without a key, and functions of shapes alone.
APART = {"rand", "randn", "randint", "dropout"}
SIZE = 3


def variants(array: np.ndarray) -> np.ndarray:
    """Three arrays of the same numbers in other places."""
    rolled = [np.roll(array.reshape(-1), i).reshape(array.shape) for i in range(SIZE)]
    return np.stack(rolled)


def agree(got: Any, want: list[Any]) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.dtype == w[0].dtype and g.shape == (SIZE, *w[0].shape)
        stacked = np.stack([x.numpy() for x in w])
        result = compare(g.numpy(), stacked, "dot" if g.dtype.is_float else "exact", g.dtype)
        assert result.ok, result.message


def by_loop(fn: Any, given: list[Any], dims: tuple[int | None, ...]) -> list[Any]:
    rows = [
        tensors(fn(*(x if d is None else x[i] for x, d in zip(given, dims)))) for i in range(SIZE)
    ]
    return list(zip(*rows))


@pytest.mark.parametrize("name", [n for n in ONCE if n.rpartition(".")[2] not in ON_VALUES | APART])
def test_a_map_is_a_loop(name: str) -> None:
    fn, arrays = maker(name)(Draw(random.Random(name).randint), PUBLIC[name])
    if not arrays:
        return
    whole, one = [weft.tensor(variants(a)) for a in arrays], [weft.tensor(a) for a in arrays]
    masks = {(0,) * len(arrays), *((0 if i == j else None for i in range(len(arrays)))
                                   for j in range(len(arrays)))}  # fmt: skip
    for mask in map(tuple, masks):
        given = [w if d == 0 else x for w, x, d in zip(whole, one, mask)]
        dims = tuple(mask)
        got = tensors(func.vmap(lambda *ts: tuple(tensors(fn(*ts))), dims)(*given))
        agree(got, by_loop(fn, given, dims))
        if name.rpartition(".")[2] in OWN or not gradients(fn, one):
            continue
        slopes = func.vmap(lambda *ts: tuple(gradients(fn, ts)), dims)
        agree(tensors(slopes(*given)), by_loop(lambda *ts: gradients(fn, ts), given, dims))


def test_every_primitive_has_a_rule() -> None:
    kinds = {name: p.kind for name, p in ops.PRIMITIVES.items()}
    without = {n for n, kind in kinds.items() if kind not in ("elementwise", "source", "result")}
    assert without - {"call"} == set(RULES)
    assert set(WEIGHTS) | ROWS | set(FOLDED) <= set(ops.COMPOSITES)
