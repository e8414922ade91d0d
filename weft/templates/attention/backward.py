"""The derivative of attention in parts: dq, and dk with dv, for every target.

Some items stay and others pass. For dq query rows stay and keys pass; for dk and dv keys stay, and
the rows that see them pass, head after head. The rows' log-sum-exp and delta (see
`weft.ops.attention_grad`) exist already. Each pair has two products (q . k, g . v), which give its
weight p and ds = p (g . v - delta). The results add up weights times passing items. A
`BackwardWorker` computes them: one thread with vectors, a thread per item, threads that share
tiles, or matrix units.

A result is a chain of fused multiply-adds in ascending order over CHUNK passing items, and chunks
are added in ascending order, head after head. Matrix units make one chain of everything. So every
element is one sum in a fixed order. In f32 the parts give the same bits with vectors of any width
and in threads, where targets keep products and sums as written. `attention_grad` has bits of its
own, the same for vectors of any width, since it does not take weights from a rounded log-sum-exp.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import CHUNK
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.kernel import math as km
from weft.kernel.builder import Builder
from weft.kernel.expr import const, fma, maximum, minimum, select
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.positions import length_of, seeing_rows, visible_keys
from weft.templates.emit import Emitter
from weft.templates.following import store_all
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.operand import Reader
from weft.templates.view import operand

Q, K, V, G = range(4)  # operands that hold components; then come lse and delta


@dataclass(frozen=True)
class GradientKind:
    """The form of a composite: its results, products per pair, and if query rows stay (else
    keys)."""

    results: tuple[str, ...]
    products: int
    rows_stay: bool = False


FORMS = {
    "attention_dq": GradientKind(("dq",), 3, True),
    "attention_dkv": GradientKind(("dk", "dv"), 4),
    "attention_grad": GradientKind(("dk", "dv"), 5),  # and dq, from each passing block
}


class BackwardKernel:
    """One call of a composite in FORMS: its pairs, their weights, and the places of results. Axis 0
    of the grid counts blocks of staying items, 1 heads, 2 batches."""

    def __init__(self, group: Group, node: Node, caps: Caps) -> None:
        self.group, self.node, self.caps = group, node, caps
        self.name, self.params = node.attrs["name"], node.attrs["params"]
        self.b = b = Builder(group.name or self.name)
        self.em = Emitter(b, group, caps)
        self.batch, self.heads, self.t, self.depth = node.inputs[0].shape
        self.groups, self.s = node.inputs[1].shape[1:3]
        self.share = self.heads // self.groups
        self.form = form = FORMS[self.name]
        self.results, self.rows_stay = form.results, form.rows_stay
        sides = ((Q, G), (K, V))
        self.held, self.passing = sides if self.rows_stay else sides[::-1]
        self.items, self.others = (self.t, self.s) if self.rows_stay else (self.s, self.t)
        self.views = [operand(group, x) for x in node.inputs[:4]]
        self.sums = () if self.name == "attention_grad" else node.inputs[4:6]  # lse, delta
        self.bi = self.em.axis(b.group(2), self.batch)
        self.length = length_of(self.em, node, 4 + len(self.sums), self.bi)
        at = b.let(b.group(1), "head")
        self.own = self.em.axis(at, self.heads if self.rows_stay else self.groups)
        self.head = self.own  # the current query head
        self._at = at

    # -- the algorithm

    def kernel(self, worker: BackwardWorker) -> Kernel:
        """The finished kernel."""
        b = self.b
        blocks = -(-self.items // worker.rows)
        block = (blocks - 1) - b.group(0) if self.rows_stay else b.group(0)  # the longest first
        self.first = b.let(block * worker.rows, "first_item")
        with worker.inside():
            worker.hold([self.source(i, self.own) for i in self.held])
            self._gradients(worker)
            worker.finish()
        heads = self.heads if self.rows_stay else self.groups
        pairs = self.batch * self.heads * self.t * self.s
        flops = 2 * self.form.products * pairs * self.depth
        return b.kernel((blocks, heads, self.batch), worker.threads, flops, traffic(self.group))

    def _gradients(self, worker: BackwardWorker) -> None:
        whole = not worker.cut or (
            self.others <= worker.cut and (self.rows_stay or self.share == 1)
        )
        worker.clear(not whole)
        with self._met() as sources:
            start, stop = worker.range()
            if whole:
                worker.meet(sources, start, stop)
            else:
                with self.b.loop(stop, start - start % worker.cut, worker.cut, "c0") as c0:
                    low = self.b.let(maximum(start, c0), "low")
                    high = self.b.let(minimum(stop, c0 + worker.cut), "high")
                    with self.em.scope():
                        worker.meet(sources, low, high)
                        worker.join()

    @contextlib.contextmanager
    def _met(self) -> Iterator[list[Reader]]:
        """The heads of what passes, one after the other: their sources."""
        b, em = self.b, self.em
        if self.rows_stay:
            kv = em.axis(b.let(self._at // self.share, "kv"), self.groups)
            yield [self.source(i, kv) for i in self.passing]
            return
        with b.loop(self.share, name="h") as h, em.scope():
            self.head = em.axis(self._at * self.share + h, self.heads)
            yield [self.source(i, self.head) for i in self.passing]

    # -- places

    def source(self, i: int, head: Affine) -> Reader:
        view = self.views[i]
        at = affine.flatten((self.bi, head), view.strides[:2], view.offset)
        base = self.b.let(self.em.expr(at), "base")
        row, step = view.strides[2:]
        return Reader(self.em.buffers[id(view.node)], base, row, step, dt.float32)

    def sees(self, item: Expr) -> tuple[Expr, Expr]:
        """Returns the first passing item that an item meets, and the one after the last (bound);
        nothing for items that do not exist."""
        b = self.b
        if self.rows_stay:
            low, high = self.keys_of(item)
            exists = item < self.t
        else:
            low, high = self._rows(item, 1)
            exists = item < self.length
        return b.let(low, "low"), b.let(select(exists, high, 0), "high")

    def meets(self, first: Expr, count: int) -> tuple[Expr, Expr]:
        """The same of `count` items together; the first of them exists."""
        b = self.b
        if self.rows_stay:
            last = b.let(minimum(first + (count - 1), self.t - 1), "last")
            return b.let(self.keys_of(first)[0], "start"), b.let(self.keys_of(last)[1], "stop")
        start, stop = self._rows(first, count)
        return start, b.let(select(first < self.length, stop, 0), "stop")

    def keys_of(self, row: Expr) -> tuple[Expr, Expr]:
        """The keys that a query row sees."""
        causal, window = self.params["causal"], self.params["window"]
        return visible_keys(self.b, row, self.t, self.s, self.length, causal, window)

    def _rows(self, key: Expr, keys: int) -> tuple[Expr, Expr]:
        ahead, rows = const(self.s - self.t), const(self.t)
        causal, window = self.params["causal"], self.params["window"]
        return seeing_rows(self.b, key, keys, ahead, rows, causal, window)

    def note(self, row: Expr) -> list[Expr]:
        """lse and delta of a query row of the head at work (bound)."""
        at = (self.bi, self.head, self.em.axis(row, self.t))
        return [self.em.value(x, at) for x in self.sums]

    # -- formulas

    def score(self, product: Expr) -> tuple[Expr, Expr | None]:
        """The (capped) score of q . k, and the cap's derivative (both bound)."""
        b, cap, scale = self.b, self.params["softcap"], self.params["scale"]
        if not cap:
            return b.let(product * scale, "s"), None
        bent = b.let(km.tanh(b, b.let(product * (scale / cap), "s")), "bent")
        return b.let(bent * cap, "s"), b.let(fma(-bent, bent, 1.0), "slope")

    def weigh(
        self, score: Expr, slope: Expr | None, change: Expr, note: Sequence[Expr],
        seen: Expr | None = None,
    ) -> list[Expr]:  # fmt: skip
        """ds without the scale and p (bound), from the score and the product g . v of a pair."""
        b, (lse, delta) = self.b, note
        p = b.let(km.exp(b, b.let(score - lse, "gap")), "p")
        p = p if seen is None else b.let(select(seen, p, 0.0), "p")
        ds = p * (change - delta)
        return [b.let(ds if slope is None else ds * slope, "ds"), p]

    # -- results

    def factor(self, result: str) -> float:
        """Returns the factor that a result's sums lack: dq and dk are computed without the
        scale."""
        return 1.0 if result == "dv" else self.params["scale"]

    def write(
        self, result: str, item: Affine, column: Affine, value: Expr, mask: Expr | None = None
    ) -> None:
        """Components of a result ("dq", "dk", "dv") of an item (with its factor)."""
        head = self.head if result == "dq" else self.own
        node = self.node
        where: tuple[Affine, ...] = (self.bi, head, item, column)
        if self.name == "attention_dkv":
            where = (affine.number(self.results.index(result)), *where)
        elif self.name == "attention_grad":
            node = self.group.results[("dq", "dk", "dv").index(result)]
            where = (self.bi, item, head, column)
        with self.em.scope():
            store_all(self.em, node, where, value, mask)


class BackwardWorker(abc.ABC):
    """The worker of a call. Each group keeps `rows` items, from `call.first` on."""

    rows: int
    threads: tuple[int, ...] = (1,)
    cut = CHUNK  # passing items in one chain; 0: all

    def __init__(self, call: BackwardKernel) -> None:
        self.call, self.b, self.em = call, call.b, call.em

    def inside(self) -> AbstractContextManager[None]:
        """Wraps everything that a thread does."""
        return nullcontext()

    def range(self) -> tuple[Expr, Expr]:
        """Returns the first passing item that meets any staying one, and the one after the last."""
        return self.call.meets(self.call.first, self.rows)

    @abc.abstractmethod
    def hold(self, sources: Sequence[Reader]) -> None:
        """Takes what stays."""

    @abc.abstractmethod
    def clear(self, totals: bool) -> None:
        """Sums (and, should chunks be joined, totals) from zero."""

    @abc.abstractmethod
    def meet(self, sources: Sequence[Reader], start: Expr, stop: Expr) -> None:
        """Adds start .. stop of what passes (bound) to the sums."""

    @abc.abstractmethod
    def join(self) -> None:
        """Adds the sums to the totals; they are zero again."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Writes the results."""
