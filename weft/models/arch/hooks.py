"""Hooks between the parts of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from weft.core.records import dataclass

Value = Any  # np.ndarray, graph Node or Tracked


@dataclass(frozen=True)
class TrainingHooks:
    """Hooks between the parts of the model; the defaults do nothing.

    `layer(i, fn, x)` calls fn(x), layer i; it may recompute it in the backward pass, or look at the
    result. `drop` is the dropout of embeddings and residual branches, `adapter_drop` that of
    adapters' inputs. `place(name, x)` takes the value at each named place (`places.py`) and returns
    the one to go on with. `mapped` has the layers whose attention weights are shown to it. If
    `derived`, a derivative is taken, which reads rows that nothing else does.
    """

    layer: Callable[[int, Callable[[Value], Value], Value], Value] = lambda i, fn, x: fn(x)
    drop: Callable[[Value], Value] | None = None
    adapter_drop: Callable[[Value], Value] | None = None
    place: Callable[[str, Value], Value] = lambda name, x: x
    mapped: Container[int] = ()
    derived: bool = False


INFERENCE = TrainingHooks()
