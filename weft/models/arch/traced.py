"""A decoder traced from another library's code: its steps run on the engine's rows.

Each row is a sequence of one token, [N, 1, ...], so axis 0 of every value is that of the rows.
Attention is the engine's: each call of it is a layer with a cache of its own. Products with
weights are the engine's too, so that packed weights, narrow inputs and adapters work as in other
decoders. All other steps are PyTorch's operators, as `weft.importers.aten` has them.

A body that reads `whole` texts has one sequence of all rows, [1, N, ...], and no caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weft import ops
from weft.core.dtypes import float32
from weft.core.errors import ModelError, WeftError
from weft.core.order import STREAM_ROWS
from weft.graph.ir import Node
from weft.importers.aten.table import entry
from weft.importers.ports import Ref
from weft.importers.steps import filled, keep_results, last_uses, refs
from weft.importers.torch_export.graph import CallNode
from weft.models.arch.feed_forward import pair_blocks
from weft.models.arch.layers import Pass, Value, product, rounded, weighted
from weft.models.arch.traced_body import TracedBody
from weft.ops.tape import plain
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.tensor.tracing import Trace

ATTENTION, PICKED = "weft.attention.default", "weft.picked.default"
CONV, RECURRENCE = "weft.short_conv.default", "weft.recurrence.default"
LINEAR, EMBEDDING = "aten.linear.default", "aten.embedding.default"
OWN = (
    ATTENTION,
    PICKED,
    CONV,
    RECURRENCE,
    LINEAR,
    EMBEDDING,
)  # targets with a meaning of the engine's


def last_reads(body: TracedBody) -> list[list[str]]:
    """Returns the values that no later call reads, for each call. Raises FileFormatError for calls
    out of order."""
    given = [*body.inputs, *body.tensors, *body.constants]
    named = [(call.target, refs((call.args, call.kwargs)), call.out) for call in body.calls]
    return last_uses(given, named, [body.result])


class _Constants(Trace):
    """A trace in which tensors from outside are constants."""

    def capture(self, tensor: Any) -> Node:
        found: Node = ops.const(tensor._value)
        return found


@contextmanager
def tracing(like: Value) -> Iterator[None]:
    """Makes tensors around Nodes usable, if `like` is one."""
    outer = CURRENT.trace
    if isinstance(plain(like), Node):
        CURRENT.trace = _Constants()
    try:
        yield
    finally:
        CURRENT.trace = outer


def traced_logits(p: Pass, ids: Value, pos: Value, last: Value | None) -> Value:
    """Returns logits float32 [N, vocab] of rows `ids` at positions `pos`, int32 [N]; of rows
    `last` [R], if given."""
    body = p.c.traced
    assert body is not None
    n = ops.aval(ids).shape[0]
    with tracing(ids):
        run = Replay(p, last)
        given = (Tensor(ops.reshape(x, (1, n) if body.whole else (n, 1))) for x in (ids, pos))
        out = run.all(*given).value
        rows = ops.reshape(out, (-1, ops.aval(out).shape[-1]))
        return ops.cast(rows if last is None or run.narrowed else ops.gather(rows, last), float32)


class Replay(dict[str, Any]):
    """The values of one pass by name; weights are made when they are read. `last` are the rows
    whose logits are wanted; `narrowed` is True once the others are left out."""

    narrowed = False

    def __init__(self, p: Pass, last: Value | None = None) -> None:
        super().__init__()
        assert p.c.traced is not None
        self.p, self.body, self.last = p, p.c.traced, last
        self.met = {ATTENTION: 0, CONV: 0, RECURRENCE: 0}  # calls of each so far
        self.own: Mapping[str, Callable[..., Any]] = {
            ATTENTION: self.attention, PICKED: self.picked, LINEAR: self.linear,
            EMBEDDING: self.embedding, CONV: self.short_conv, RECURRENCE: self.recurrence,
        }  # fmt: skip

    def __missing__(self, name: str) -> Any:
        return Tensor(ops.cast(self.p.w[self.body.tensors[name]], float32))

    def all(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Runs all calls on ids and positions [B, T], and returns the logits [B, T, vocab]."""
        self |= dict(zip(self.body.inputs, (ids, positions)))
        self |= {name: Tensor(array) for name, array in self.body.constants.items()}
        head = None if self.last is None else _head_of(self.body)
        for call, drops in zip(self.body.calls, last_reads(self.body)):
            if call is head:
                self._narrow(call)
            self.step(call)
            for name in drops:
                self.pop(name, None)
        out: Tensor = self[self.body.result]
        return out

    def step(self, call: CallNode) -> None:
        """Runs one call."""
        own, args = self.own.get(call.target), call.args
        try:
            if own is not None:
                made = own(*args, **call.kwargs)
            else:
                made = _rule(call.target)(*filled(args, self), **filled(call.kwargs, self))
            keep_results(call.out, made, self)
        except WeftError as error:
            raise type(error)(f"{call.target}, {call.where}: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
            kind = type(error).__name__
            raise ModelError(f"{call.target}, {call.where}: {kind}: {error}") from error

    def _narrow(self, head: CallNode) -> None:
        """Leaves only the wanted rows in what the output matrix multiplies, [1, N, K]."""
        name = head.args[0].name
        x = self[name]
        if x.ndim == 3:
            self[name], self.narrowed = Tensor(ops.gather(x.value, self.last, 1)), True

    def role(self, value: Any) -> str | None:
        """Returns the role of an argument that is a weight as it is."""
        return self.body.tensors.get(value.name) if isinstance(value, Ref) else None

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Tensor:
        role, x = self.role(weight), filled(input, self)
        if role is None or not (role in ("embed", "head") or role.endswith(".w")):
            made: Tensor = _rule(LINEAR)(x, *filled([weight, bias], self))
            return made
        flat = ops.reshape(x.value, (-1, x.shape[-1]))
        if role in ("embed", "head"):
            c, w = self.p.c, self.p.w
            out, stem = product(c, w, role, rounded(c, role, flat)), role
        else:
            stem = role.removesuffix(".w")
            out = self.p.project(stem, flat)
        out = Tensor(ops.reshape(out, (*x.shape[:-1], ops.aval(out).shape[-1])))
        return out if bias is None or self.role(bias) == f"{stem}.b" else out + filled(bias, self)

    def embedding(self, weight: Any, indices: Any, *rest: Any) -> Tensor:
        role, ids = self.role(weight), filled(indices, self)
        if role is None:
            made: Tensor = _rule(EMBEDDING)(filled(weight, self), ids)
            return made
        table = self.p.w[role]
        rows = ops.gather(table, ops.reshape(ids.value, (-1,)))
        return Tensor(ops.reshape(ops.cast(rows, float32), (*ids.shape, ops.aval(table).shape[1])))

    def number(self, target: str) -> int:
        """Counts a call of an operator with a state of its own, and returns its number."""
        self.met[target] += 1
        return self.met[target] - 1

    def attention(self, *args: Any) -> Tensor:
        q, k, v, sinks = (None if x is None else filled(x, self).value for x in args[:4])
        i = self.number(ATTENTION)
        call, n = self.body.attends[i], ops.aval(q).shape[0]
        heads, groups = call.heads, call.kv_heads
        if call.scale != self.p.c.scale:
            q = ops.mul(q, call.scale / self.p.c.scale)
        q = _wide(ops.reshape(q, (n, heads, call.key_dim)), call.width)
        k = _wide(ops.reshape(k, (n, groups, call.key_dim)), call.width)
        v = _wide(ops.reshape(v, (n, groups, call.value_dim)), call.width)
        out = self.p.past.attend(i, q, (k, v), sinks)
        if call.value_dim < call.width:
            out = ops.slice_(out, (0, 0, 0), (n, heads, call.value_dim))
        return Tensor(ops.reshape(out, (n, 1, heads, call.value_dim)))

    def short_conv(self, x: Any, taps: Any) -> Tensor:
        rows, w = (filled(value, self).value for value in (x, taps))
        n, (wide, count) = ops.aval(rows).shape[0], ops.aval(w).shape
        flat = ops.reshape(rows, (n, wide))
        recent = self.p.past.recent(self.number(CONV), flat, count)
        return Tensor(ops.reshape(weighted(recent, w), (n, 1, wide)))

    def recurrence(self, *args: Any) -> Tensor:
        *given, scale = args
        rows = [filled(x, self).value for x in given if x is not None]
        flat = (ops.reshape(x, (ops.aval(x).shape[0], *ops.aval(x).shape[2:])) for x in rows)
        out = self.p.past.recur(self.number(RECURRENCE), *flat, tiled=False, scale=scale)
        return Tensor(ops.reshape(out, ops.aval(rows[2]).shape))

    def picked(self, x: Any, w: Any, chosen: Any, turned: bool) -> Tensor:
        role = self.role(w)
        assert role is not None, "experts' weights are parameters"
        rows, numbers = (filled(value, self).value for value in (x, chosen))
        return Tensor(picked_rows(self.p, role.removesuffix(".w"), rows, numbers))


_POINTWISE = frozenset((
    "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.neg.default",
    "aten.tanh.default", "aten.to.dtype", "aten._to_copy.default", "aten.contiguous.default",
))  # fmt: skip


def _head_of(body: TracedBody) -> CallNode | None:
    """Returns the call that multiplies whole texts by the output matrix, if the calls after it keep
    rows apart and nothing else reads what it multiplies."""
    after: set[str] = {body.result}  # values that are read from there on
    made: set[str] = set()
    for call in reversed(body.calls) if body.whole else ():
        reads = set(refs((call.args, call.kwargs)))
        if call.target == LINEAR and call.out in after:
            known = {*made, call.out, *body.tensors, *body.constants}
            users = [c for c in body.calls if call.args[0].name in refs((c.args, c.kwargs))]
            return call if after <= known and users == [call] else None
        if call.target not in _POINTWISE:
            return None
        made.add(str(call.out))
        after |= reads
    return None


def _rule(target: str) -> Callable[..., Any]:
    rule = entry(target)
    assert rule is not None, target
    return rule.run


def _wide(x: Value, width: int) -> Value:
    """Returns x[N, H, D] with zeros up to `width` columns."""
    missing = width - ops.aval(x).shape[2]
    return ops.pad(x, (0, 0, 0), (0, 0, missing)) if missing else x


def picked_rows(p: Pass, role: str, x: Value, chosen: Value) -> Value:
    """Returns x[N, C, K] times the matrix `role`[chosen[N, C]] of each pair: float32 [N, C, M].
    Many rows are grouped by matrix first (`feed_forward.pair_blocks`)."""
    n, used, depth = ops.aval(x).shape
    if n <= STREAM_ROWS:
        rows = rounded(p.c, f"{role}.w", ops.reshape(x, (n, used, 1, depth)))
        out = p.pick(role, rows, chosen)
        return ops.reshape(out, (n, used, -1))
    numbers, pair, slot = pair_blocks(p, chosen)
    flat = ops.reshape(ops.transpose(x, (1, 0, 2)), (used * n, depth))
    out = p.pick(role, rounded(p.c, f"{role}.w", flat, lambda v: ops.gather(v, pair)), numbers)
    return ops.gather(ops.reshape(out, (-1, ops.aval(out).shape[-1])), slot)
