"""Named places of a decoder's pass, where values can be read and changed.

Each part of the pass shows its values to one hook, `TrainingHooks.place`, under a name:

    embed                     the residual stream before layer 0
    layers.3.attn.in          layer 3's input of attention (or another mixer), normed
    layers.3.q.in .q.out      input and result of a linear layer: also k, v, o, gate, up, down, ...
    layers.3.attn.q .k .v     queries, keys and values of each head, turned
    layers.3.attn.weights     attention's weights, recomputed from queries and cached keys
    layers.3.attn.heads       what each head found, before the output projection
    layers.3.attn.out         what attention adds to the residual stream
    layers.3.mid              the residual stream after that
    layers.3.mlp.in .mlp.out  the same for the feed-forward part
    layers.3.out              the residual stream after layer 3
    norm, logits              the output layer's input, and its result

Values are [rows, ...]. A `Visit` is the hook that reads and changes. Without one the hook returns
its argument, so it leaves Programs of untouched models as they are. Changes are inputs of the
Program, so that other values need no other Program.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.core.records import dataclass
from weft.graph.ir import Node

Value = Any  # np.ndarray, graph Node or Tracked
WEIGHTS = "attn.weights"  # the end of the names of places that cannot be changed


def place_of(part: str) -> str:
    """Returns the name of a place, from a part of a layer ("3.attn.out") or of the model."""
    return f"layers.{part}" if part[0].isdecimal() else part


def before_widening(x: Node) -> Node:
    """Returns the narrower value that x was widened from, through reshapes; else x. Attention's
    results are in the cache's dtype."""
    inner = x
    while inner.op == "reshape":
        inner = inner.inputs[0]
    return inner.inputs[0] if inner.op == "cast" and inner.inputs[0].dtype.is_float else x


def linear_layer(name: str) -> str | None:
    """Returns the role of the linear layer whose input the place is; None for other places."""
    role, _, end = name.removeprefix("layers.").rpartition(".")
    return role if end == "in" and role.rpartition(".")[2] not in ("attn", "mlp") else None


@dataclass(frozen=True)
class Change:
    """A change at a place. `shape` is that of the values, float32 [K, ...], which are added if
    `adds` and else take the place of what is there."""

    place: str
    shape: tuple[int, ...]
    adds: bool


@dataclass(frozen=True)
class Places:
    """The places that a pass reads, and its changes, which come first at a place."""

    reads: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    def inputs(self, rows: int) -> dict[str, tuple[tuple[int, ...], DType, str | None]]:
        """Returns the inputs of a step of `rows` rows by name: shape, dtype and bound. The input
        "change.0.at" int32 [rows] says which of the change's values a row takes (-1: none)."""
        made: dict[str, tuple[tuple[int, ...], DType, str | None]] = {}
        for i, change in enumerate(self.changes):
            made[f"change.{i}.at"] = (rows,), int32, "n"
            made[f"change.{i}.values"] = change.shape, float32, None
        return made


class Visit:
    """The hook of one pass. `shapes` has the shape of each place's value, and `found` what was
    read."""

    def __init__(self, places: Places, everywhere: bool = False) -> None:
        """`everywhere`: attention's weights are computed in every layer."""
        self.places, self.everywhere = places, everywhere
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.found: dict[str, Value] = {}
        self._kept: list[Value] = []  # values that a Program is to store, as without changes
        self._inputs: Mapping[str, Value] = {}
        self._last: Value | None = None

    def begin(self, inputs: Mapping[str, Value], last: Value | None) -> None:
        """Gives the inputs of the changes, and `StepRows.last`."""
        self._inputs, self._last = inputs, last

    @property
    def mapped(self) -> Container[int]:
        """The layers whose attention weights are read."""
        if self.everywhere:
            return range(1 << 20)
        names = (name for name in self.places.reads if name.endswith(WEIGHTS))
        return {int(name.split(".")[1]) for name in names}

    def results(self) -> Sequence[Value]:
        """Returns the values of `places.reads` in their order, and others of no interest."""
        return [*(self.found[name] for name in self.places.reads), *self._kept]

    def __call__(self, name: str, x: Value) -> Value:
        shape = self.shapes[name] = ops.aval(x).shape
        # Kernels round a narrow value where they store it. One that is widened at once is stored
        # as it is without this visit, so that the bits stay.
        narrow = before_widening(x) if isinstance(x, Node) else x
        if narrow is not x and any(change.place == name for change in self.places.changes):
            self._kept.append(narrow)
        for i, change in enumerate(self.places.changes):
            if change.place == name:
                x = self._changed(i, x, change.adds)
                narrow = x
        if name in self.places.reads:
            self.found[name] = x if narrow is x else ops.reshape(narrow, shape)
        return x

    def _changed(self, i: int, x: Value, adds: bool) -> Value:
        """Returns x[N, ...] with a change in the rows that have one."""
        known, at = ops.aval(x), self._inputs[f"change.{i}.at"]
        if self._last is not None and ops.aval(at).shape[0] != known.shape[0]:
            at = ops.gather(at, self._last)
        new = ops.gather(self._inputs[f"change.{i}.values"], ops.maximum(at, 0))
        new = ops.cast(new, known.dtype)
        some = ops.reshape(ops.less_equal(0, at), (-1, *[1] * (len(known.shape) - 1)))
        return ops.where(ops.broadcast(some, known.shape), ops.add(x, new) if adds else new, x)
