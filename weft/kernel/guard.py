"""Makes a kernel from an untrusted source harmless: accesses not proved in range get a guard.

A load outside its memory gives 0 and a store outside is dropped (whole, or lane by lane where there
is a mask). A tile is moved to the nearest place inside. Address arithmetic that may leave int32 is
done unsigned, which wraps on every target. Shift counts are taken modulo the width, and a loop's
counter cannot step over the end of int32. Proved accesses stay unchanged, so one of weft's own
kernels comes out the same object, or nearly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.core import dtypes as dt
from weft.core.errors import KernelError
from weft.kernel import expr as kb, ir, sums
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel, Stmt
from weft.kernel.linear import address_vars, is_linear
from weft.kernel.printer import expr_text
from weft.kernel.ranges import INT32, SAME, Ranges
from weft.kernel.rewrite import lanes_within, no_more, reads, rebuilt, unsigned, within, zero
from weft.kernel.sums import Atom, Range, Sum
from weft.kernel.walk import assigned, changed, declared, operands

_ROUNDS = 4  # rounds in which ranges of contents grow before they become unlimited


@dataclass(frozen=True)
class Guarded:
    """A kernel made harmless.

    `accesses`: its accesses to memory.
    `guards`: the accesses that could not be proved in range.
    `steps`: an upper bound of the statements that all threads together execute.
    `code`: the statements written out, where loops are unrolled.
    """

    kernel: Kernel
    accesses: int
    guards: int
    steps: int
    code: int


def guard(kernel: Kernel, scalars: Mapping[int, Range] | None = None) -> Guarded:
    """The kernel, safe to run on any content of its buffers and with runtime scalars within
    `scalars` (ranges by slot; any int32 otherwise). `kernel` must pass the verifier. Raises
    KernelError for what no guard can mend."""
    contents: dict[str, Range] = {}
    for turn in itertools.count():
        walk = _Guard(kernel, scalars, contents)
        guarded = walk.run()
        grown = {name for name, r in walk.contents.items() if contents.get(name) != r}
        if not grown:
            return guarded
        widened = () if turn < _ROUNDS else grown if turn < 2 * _ROUNDS else walk.contents
        contents = walk.contents | dict.fromkeys(widened, INT32)
    raise AssertionError


class _Guard:
    """One walk over a kernel. `contents` are the ranges that variables which are assigned again and
    local arrays are taken to have; afterwards, with what the walk saw them given. Where nothing was
    added, the ranges hold: at the start, and after each step if before it."""

    def __init__(
        self, kernel: Kernel, scalars: Mapping[int, Range] | None, contents: Mapping[str, Range]
    ) -> None:
        self.kernel = kernel
        self.contents = dict(contents)
        self.ranges = Ranges(kernel, scalars, self.contents)
        self.turns: list[int] = []  # the turns of the enclosing loops
        # where a variable starts, and with which range
        self.depths: dict[str, tuple[int, Range]] = {}
        self.facts = self.ranges.facts
        self.addressing = address_vars(kernel.body)
        self.names = set(declared(kernel))
        self.written = assigned(kernel.body)  # the assignments to each variable
        self.hoisted = Builder(kernel.name, self.names)  # statements to put before the current one
        self.accesses = self.guards = 0
        self.local = False  # true if the kernel has memory of its own

    def run(self) -> Guarded:
        for entry in self.kernel.grid:
            self.grid(entry)
        body, steps, code = self.block(self.kernel.body)
        threads = math.prod(self.kernel.threads)
        for dim in range(3):
            threads *= self.ranges.axis("group", dim).range[1] + 1
        kernel = changed(self.kernel, body=body, clean=self.local or self.kernel.clean)
        return Guarded(kernel, self.accesses, self.guards, threads * (steps + 1), code)

    def grid(self, e: Expr) -> None:
        """Host and device must agree on a grid: no overflow, no division of or by less than 1."""
        if not isinstance(e, ir.Binary):
            return
        self.grid(e.a)
        self.grid(e.b)
        self.ranges.value(e)
        (a, _), (b, _) = (self.ranges.bounds(self.ranges.value(x)) for x in (e.a, e.b))
        if id(e) in self.ranges.overflows or (e.op in ("div", "rem") and (a < 0 or b < 1)):
            raise KernelError(
                f"kernel {self.kernel.name}: grid entry {expr_text(e)} may overflow or divide by 0"
            )

    # -- statements: each gives (statement or None, steps, code)

    def block(self, block: ir.Block, facts: list[Sum] | None = None) -> tuple[ir.Block, int, int]:
        """The block where `facts` hold."""
        if self.never(facts or []):
            return block, 0, 0
        body: list[Stmt] = []
        steps = code = 0
        with self.facts.given(facts or []):
            for s in block.body:
                made, more, longer = self.stmt(s)
                body += self.before()
                steps, code = steps + more, code + longer
                if made is not None:
                    body.append(made)
        same = len(body) == len(block.body) and all(a is b for a, b in zip(body, block.body))
        return (block if same else ir.Block(tuple(body))), steps, code

    def before(self) -> tuple[Stmt, ...]:
        """Returns the statements that must precede the current one."""
        found = self.hoisted.statements
        if found:
            self.hoisted = Builder(self.kernel.name, self.names)
        return found

    def stmt(self, s: Stmt) -> tuple[Stmt | None, int, int]:
        if isinstance(s, ir.Block):
            return self.block(s)
        if isinstance(s, ir.For):
            return self.loop(s)
        if isinstance(s, ir.If):
            return self.branch(s)
        if isinstance(s, ir.TileOp):
            return self.tile(s), sum(t.rows * t.cols for t in s.tiles), 1
        return self.simple(s), 1, 1

    def simple(self, s: Stmt) -> Stmt | None:
        if isinstance(s, ir.Let):
            linear = s.var.name in self.addressing and not s.mutable
            value = self.expr(s.value, linear)
            if not s.mutable:
                self.ranges.let(s.var, s.value)
            elif s.var.type.dtype == dt.int32:
                start = self.ranges.bounds(self.ranges.value(s.value))
                self.depths[s.var.name] = len(self.turns), start
                self.given(s.var.name, start)
                if all(no_more(value, s.var.name) for value in self.written[s.var.name]):
                    self.ranges.falling(s.var, s.value)
            return changed(s, value=value)
        if isinstance(s, ir.Assign):
            if s.var.type.dtype == dt.int32:
                self.given(s.var.name, self.becomes(s))
            value = self.expr(s.value)
            self.ranges.forget([s.var.name])
            return changed(s, value=value)
        if isinstance(s, ir.Array | ir.Tile):
            self.local = True
            self.given(s.name, (0, 0))
            return s
        if isinstance(s, ir.Store):
            return self.store(s)
        if isinstance(s, ir.AsyncCopy):
            return self.async_copy(s)
        if isinstance(s, ir.Prefetch):
            return changed(s, index=self.expr(s.index, True))
        return s

    def given(self, name: str, range_: Range) -> None:
        """Notes that a variable or an element of an array may be in a range."""
        low, high = self.contents.get(name, range_)
        low, high = min(low, range_[0]), max(high, range_[1])
        self.contents[name] = max(low, INT32[0]), min(high, INT32[1])

    def becomes(self, s: ir.Assign) -> Range:
        """Returns the range of a variable's next value; a counter's follows from its number of
        steps."""
        value = s.value
        counts = isinstance(value, ir.Binary) and value.op == "add" and reads(value.a, s.var)
        if not counts or len(self.written[s.var.name]) > 1:
            return self.ranges.bounds(self.ranges.value(value))
        depth, (low, high) = self.depths[s.var.name]
        times = math.prod(self.turns[depth:])
        least, most = self.ranges.bounds(self.ranges.value(value.b))  # type: ignore[attr-defined]
        low, high = low + times * min(least, 0), high + times * max(most, 0)
        return (low, high) if low >= INT32[0] and high <= INT32[1] else INT32

    def loop(self, s: ir.For) -> tuple[Stmt, int, int]:
        start, stop = self.expr(s.start, True), self.expr(s.stop, True)
        most = INT32[1] - s.step + 1
        if self.facts.high(self.ranges.value(s.stop), most) > most:
            stop = kb.const(min(stop.value, most)) if isinstance(stop, ir.Const) else (
                ir.Binary("min", stop, kb.const(most), ir.I32))  # fmt: skip
        bounds = self.before()
        with self.facts.given():
            turns = self.ranges.loop(s)
            self.turns.append(turns)
            self.ranges.forget(assigned(s.body))
            body, steps, code = self.block(s.body) if turns else (s.body, 0, 0)
            self.ranges.forget(assigned(s.body))
            self.turns.pop()
        made: Stmt = changed(s, start=start, stop=stop, body=body)
        if bounds:
            made = ir.Block((*bounds, made))
        return made, 1 + turns * (steps + 1), 1 + code * (turns if s.unroll else 1)

    def branch(self, s: ir.If) -> tuple[Stmt, int, int]:
        cond = self.expr(s.cond)
        first = self.before()
        then, steps, code = self.block(s.then, self.ranges.holds(s.cond))
        self.ranges.forget(assigned(s.then))
        other = s.other
        if s.other is not None:
            other, more, longer = self.block(s.other, self.ranges.holds(s.cond, False))
            steps, code = steps + more, code + longer
            self.ranges.forget(assigned(s.other))
        made: Stmt = changed(s, cond=cond, then=then, other=other)
        return (ir.Block((*first, made)) if first else made), steps + 1, code + 1

    # -- accesses

    def never(self, facts: list[Sum]) -> bool:
        """True if the facts cannot all hold here."""
        return any(self.facts.low(fact, 1) > 0 for fact in facts)

    def inside(self, index: Expr, lanes: int, mask: Expr | None, size: int) -> bool:
        """True if every element that `mask` lets through lies within `size` elements."""
        at = self.ranges.value(index)
        if index.type.lanes == 1 and lanes > 1:
            at = at.plus(sums.of(Atom(f"iota{lanes}", 0, lanes - 1, True, iota=True)))
        known = [] if mask is None else self.ranges.holds(mask)
        if self.never(known):
            return True
        with self.facts.given(known):
            return self.facts.within(at, 0, size - 1)

    def load(self, e: ir.Load) -> Expr:
        self.accesses += 1
        sound = self.inside(e.index, e.type.lanes, e.mask, e.source.size)
        index = self.expr(e.index, True)
        mask = None if e.mask is None else self.expr(e.mask)
        if sound:
            return changed(e, index=index, mask=mask)
        self.guards += 1
        lanes, size = e.type.lanes, e.source.size
        top = size - (lanes if index.type.lanes == 1 and mask is None else 1)
        if top < 0:
            return ir.Const(zero(e.type), e.type)
        at = self.hoisted.let(index, "at")
        if mask is not None and index.type.lanes == 1:
            return replace(e, index=at, mask=mask & lanes_within(at, lanes, size))
        ok = kb.splat(within(at, top), lanes)
        near = kb.minimum(kb.maximum(at, 0), min(top, INT32[1]))
        loaded = replace(e, index=near, mask=mask)
        return ir.Select(ok, loaded, ir.Const(zero(e.type), e.type), e.type)

    def store(self, s: ir.Store) -> Stmt | None:
        self.accesses += 1
        if s.value.type.dtype == dt.int32 and isinstance(s.target, ir.Array):
            self.given(s.target.name, self.ranges.bounds(self.ranges.value(s.value)))
        lanes, size = s.value.type.lanes, s.target.size
        sound = self.inside(s.index, lanes, s.mask, size)
        index, value = self.expr(s.index, True), self.expr(s.value)
        mask = None if s.mask is None else self.expr(s.mask)
        if sound:
            return changed(s, index=index, value=value, mask=mask)
        self.guards += 1
        top = size - (lanes if index.type.lanes == 1 and mask is None else 1)
        if top < 0:
            return None
        at, value = self.hoisted.let(index, "at"), self.hoisted.let(value, "value")
        if index.type.lanes == 1 and mask is None:
            kept = replace(s, index=at, value=value)
            return ir.If(within(at, top), ir.Block((kept,)))
        ok = within(at, top) if index.type.lanes > 1 else lanes_within(at, lanes, size)
        return replace(s, index=at, value=value, mask=ok if mask is None else mask & ok)

    def async_copy(self, s: ir.AsyncCopy) -> Stmt | None:
        """A plain store where something has to be guarded."""
        before = self.guards
        store = self.store(s.store)
        if self.guards > before or not isinstance(store, ir.Store):
            return store
        return changed(s, store=store)

    def tile(self, s: ir.TileOp) -> ir.TileOp:
        if s.memory is None or s.index is None:
            return s
        self.accesses += 1
        if s.op == "store":
            self.given(s.memory.name, INT32)
        rows, cols = s.tiles[0].rows, 1 if s.op == "scale" else s.tiles[0].cols
        span = (rows - 1) * s.stride + cols
        if s.stride < 0 or span > s.memory.size:
            raise KernelError(
                f"kernel {self.kernel.name}: tile.{s.op} with rows {s.stride} apart leaves "
                f"{s.memory.name} of {s.memory.size} elements"
            )
        index, top = self.expr(s.index, True), s.memory.size - span
        if self.facts.within(self.ranges.value(s.index), 0, min(top, INT32[1] - span)):
            return changed(s, index=index)
        self.guards += 1
        return replace(s, index=kb.minimum(kb.maximum(index, 0), min(top, INT32[1] - span)))

    # -- expressions

    def expr(self, e: Expr, linear: bool = False) -> Expr:
        """The expression with its loads guarded; `linear`: it forms an address."""
        if isinstance(e, ir.Load):
            return self.load(e)
        linear = linear and is_linear(e)
        if linear:
            self.ranges.value(e)
        made = rebuilt(e, [self.expr(c, linear) for c in operands(e)])
        if isinstance(e, ir.Binary) and e.op in ("shl", "shr"):
            made = self.shift(e, made)
        if isinstance(e, ir.Collective) and e.op in SAME and e.type.dtype == dt.int32:
            made = self.kept(e, made)
        if linear and id(e) in self.ranges.overflows:
            made = unsigned(made)
        return made

    def kept(self, e: ir.Collective, made: Expr) -> Expr:
        """Clamps a collective's result to the range of its operands. Hardware may give anything if
        some threads are missing, which the rules forbid."""
        low, high = self.ranges.value(e).range
        return made if (low, high) == INT32 else kb.minimum(kb.maximum(made, low), high)

    def shift(self, e: ir.Binary, made: Expr) -> Expr:
        bits = 8 * e.type.dtype.itemsize
        low, high = self.ranges.integer(e.b)
        if (low >= 0 and high < bits) or not isinstance(made, ir.Binary):
            return made
        return replace(made, b=kb.binary("and", made.b, bits - 1))
