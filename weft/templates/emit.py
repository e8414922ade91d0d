"""The fused-expression emitter: the value of any node of a group at any index, as kernel code.

    em = Emitter(b, group, caps)              # declares the group's buffers
    i = em.axis(b.thread(0), extent)          # an Affine over a kernel expression
    em.store(group.outputs[0], (i,))          # loads, computes, casts, stores

Movement ops change the index, elementwise ops call their primitive's lowering, and each value is
bound once per (node, index, guard). Narrow floats become f32 on load and are rounded only by an
explicit cast or a store. With a lane symbol (`em.lane(n)`) in an index, a value is `n` lanes wide
where it depends on the lane and scalar where it does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError, LimitError
from weft.graph.ir import Node
from weft.kernel import expr as kb, ir
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr
from weft.ops.primitive import PRIMITIVES
from weft.templates import affine, view
from weft.templates.affine import Affine, Sym
from weft.templates.emit_special import SPECIAL, all_of, emits
from weft.templates.group import Group
from weft.templates.view import Index

Definition = Callable[[Index], Expr]
T = TypeVar("T")


def declare(b: Builder, group: Group) -> dict[int, ir.Buffer]:
    """Declares the group's buffers in contract order: inputs, then outputs that are not in place.

    The result maps id(node) of inputs to the buffer read, and ~id(node) of outputs to the buffer
    written.
    """
    updated = {i: o for o, i in group.in_place.items()}
    buffers: dict[int, ir.Buffer] = {}
    for i, node in enumerate(group.inputs):
        access: ir.Access = "rw" if i in updated else "r"
        buffers[id(node)] = b.buffer(f"in{i}", node.dtype, max(node.size, 1), access)
    for o, node in enumerate(group.outputs):
        if o in group.in_place:
            buffers[~id(node)] = buffers[id(group.inputs[group.in_place[o]])]
        else:
            buffers[~id(node)] = b.buffer(f"out{o}", node.dtype, max(node.size, 1), "w")
    return buffers


class Emitter:
    """Emits values of one group's nodes into a Builder. See the module's head."""

    def __init__(self, b: Builder, group: Group, caps: Caps) -> None:
        self.b = b
        self.group = group
        self.caps = caps
        self.buffers = declare(b, group)
        self.mask: Expr | None = None  # lanes that vector loads and stores may touch
        self._defined: dict[int, Definition] = {}
        self._kept: dict[Any, Any] = {}  # the values that open scopes remember
        self._scopes: list[list[tuple[Any, Any]]] = [[]]  # their keys, and values hidden by them
        self._guards: tuple[Expr, ...] = ()
        self.addresses: list[Affine] = []  # every affine value emitted, for choosing loops
        self.loads: list[Affine] = []  # addresses of loads among them
        self.tests: list[tuple[Affine, int, int]] = []  # what `between` compared

    # -- indices

    def axis(self, expr: Expr | int, extent: int, step: int = 1) -> Affine:
        """An index over a kernel expression with 0 <= value < extent, a multiple of `step`. Raises
        LimitError for an extent that the target cannot count."""
        self._countable(extent)
        if isinstance(expr, int):
            return affine.number(expr)
        if isinstance(expr, ir.Const):
            return affine.number(int(expr.value))
        bound = self.b.let(expr, "i")
        name = bound.name if isinstance(bound, ir.Var | ir.Param) else self.b.unique("i")
        return affine.symbol(Sym(name, "var", extent, step, expr=bound))

    def _countable(self, extent: int) -> None:
        limit = self.caps.max_elements
        if extent > limit:
            raise LimitError(
                f"an index over {extent:,} elements; {self.caps.name} counts at most {limit:,}: "
                "split the value"
            )

    def lane(self, lanes: int) -> Affine:
        """0, 1, 2, ... across `lanes` lanes; 0 for one lane."""
        return affine.symbol(Sym(f"lane{lanes}", "lane", lanes))

    def expr(self, x: Affine) -> Expr:
        """The int32 value of an affine index: a scalar, or a vector when it depends on the lane."""
        self.addresses.append(x)
        hit: Expr | None = self.find(("index", x))
        if hit is not None:
            return hit
        self._countable(x.reach)
        result: Expr | None = None
        for sym, c in x.terms:
            term = self._sym(sym)
            term = -term if c == -1 else term * c
            result = term if result is None else result + term
        if result is None:
            return kb.const(x.const)
        result = result + x.const
        return self.remember(("index", x), self.b.let(result, "at"))

    def _sym(self, sym: Sym) -> Expr:
        if sym.kind == "lane":
            return kb.iota(sym.extent)
        if sym.src is None:
            assert sym.expr is not None
            return sym.expr
        hit: Expr | None = self.find(("sym", sym))
        if hit is not None:
            return hit
        src = self.expr(sym.src)
        value = src // sym.d if sym.kind == "div" else src % sym.d
        return self.remember(("sym", sym), self.b.let(value, "q" if sym.kind == "div" else "r"))

    # -- scopes and definitions

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Values emitted inside are forgotten at its end: open one around every nested block."""
        self._scopes.append([])
        try:
            yield
        finally:
            for key, outer in reversed(self._scopes.pop()):
                self._kept[key] = outer

    @contextlib.contextmanager
    def masked(self, mask: Expr | None) -> Iterator[None]:
        """Vector loads and stores inside touch only the lanes of `mask`, and the innermost scope
        is fresh."""
        outer, self.mask = self.mask, mask
        try:
            with self.scope():
                yield
        finally:
            self.mask = outer

    def define(self, node: Node, fn: Definition) -> None:
        """Makes `fn(index)` the value of `node` (in its compute dtype): a template's result."""
        self._defined[id(node)] = fn

    def only(self, node: Node, index: Index, value: Expr) -> Definition:
        """A definition for `define`: `value` at `index`, and a CompileError anywhere else."""

        strides = affine.contiguous(node.shape)
        linear = affine.flatten(index, strides)

        def definition(at: Index) -> Expr:
            if affine.flatten(at, strides) != linear:
                raise CompileError(f"{node!r} is wanted at another element than the one at hand")
            return value

        return definition

    def find(self, key: Any) -> Any:
        """Returns the value remembered under `key` in an open scope, or None."""
        return self._kept.get(key)

    def remember(self, key: Any, value: T) -> T:
        """Keeps `value` until the innermost scope closes, and returns it."""
        self._scopes[-1].append((key, self._kept.get(key)))
        self._kept[key] = value
        return value

    # -- values

    def value(self, node: Node, index: Sequence[Affine]) -> Expr:
        """The value of `node` at `index` (one Affine per axis): f32 for narrow floats, else its
        own dtype; a scalar or as many lanes as the index has."""
        asked = node, tuple(index)
        todo = [asked]  # not recursive: chains are long
        while todo:
            at = todo[-1]
            if self._known(*at) is None:
                missing = (x for x in self._operands(*at) if self._known(*x) is None)
                first = next(missing, None)
                if first is not None:
                    todo.append(first)
                    continue
                made = self.b.let(_widen(self._compute(*at)), at[0].op)
                self.remember(self._key(*at), made)
            todo.pop()
        found: Expr = self._known(*asked)
        return found

    def _key(self, node: Node, index: Index) -> Any:
        return id(node), index, tuple(id(g) for g in self._guards)

    def _known(self, node: Node, index: Index) -> Any:
        return self.find(self._key(node, index))

    def _operands(self, node: Node, index: Index) -> Sequence[tuple[Node, Index]]:
        """Returns further values that `_compute` needs, at places known beforehand. (The other
        SPECIAL ops compute their operands inside; grouping limits how deeply they nest.)"""
        if id(node) in self._defined or id(node) in self.buffers:
            return ()
        if node.op in view.PURE:
            return ((node.inputs[0], self._source_index(node, index)),)
        if node.op in SPECIAL and node.op != "cast":
            return ()
        return [(x, index) for x in node.inputs]

    def stored(self, node: Node, index: Sequence[Affine]) -> Expr:
        """The value of `node` at `index` in the dtype it is stored in."""
        if node.op == "cast" and id(node) not in self.buffers and id(node) not in self._defined:
            wide = kb.cast(self.value(node.inputs[0], index), dt.compute_dtype(node.dtype))
            return kb.cast(wide, node.dtype)
        return kb.cast(self.value(node, index), node.dtype)

    def store(self, node: Node, index: Sequence[Affine], nontemporal: bool = False) -> None:
        """Computes `node` at `index` and writes it to its output buffer, under the mask."""
        self.put(node, index, self.stored(node, index), nontemporal)

    def put(
        self, node: Node, index: Sequence[Affine], value: Expr, nontemporal: bool = False
    ) -> None:
        """Writes a given value of an output (cast to its dtype) at `index`, under the mask."""
        value = kb.cast(value, node.dtype)
        linear = affine.flatten(index, affine.contiguous(node.shape))
        lanes = linear.lanes
        start, contiguous = self._address(linear)
        if lanes > 1:
            value = kb.splat(value, lanes)
        mask = self.mask if lanes > 1 else None
        nontemporal = nontemporal and contiguous and mask is None
        self.b.store(self.buffers[~id(node)], start, value, mask, nontemporal)

    def _compute(self, node: Node, index: Index) -> Expr:
        if id(node) in self._defined:
            return self._defined[id(node)](index)
        if id(node) in self.buffers:
            return self.load(node, affine.flatten(index, affine.contiguous(node.shape)))
        if node.op in view.PURE:
            return self.value(node.inputs[0], self._source_index(node, index))
        if not emits(node):
            raise CompileError(f"{node!r} cannot be computed inside a {self.group.kind} group")
        special = SPECIAL.get(node.op)
        if special is not None:
            return special(self, node, index)
        lower = PRIMITIVES[node.op].lower
        assert lower is not None
        args = [self.value(x, index) for x in node.inputs]
        return lower(self.b, *args, **node.attrs)

    def _source_index(self, node: Node, index: Index) -> Index:
        """The operand's index of a movement op, whose starts may be read from memory."""
        source = list(view.source_index(node, index))
        for axis, const in self.group.starts.get(id(node), ()):
            last = (node.shape[axis] - 1) * node.attrs["steps"][axis]
            start = self._start(const, node.inputs[0].shape[axis] - last)
            source[axis] = source[axis] - node.attrs["starts"][axis] + start
        return tuple(source)

    def _start(self, const: Node, extent: int) -> Affine:
        key = ("start", id(const), extent)
        hit: Affine | None = self.find(key)
        if hit is None:
            hit = self.remember(key, self.axis(kb.load(self.buffers[id(const)], 0), extent))
        return hit

    # -- loads

    def load(self, node: Node, linear: Affine) -> Expr:
        """Elements of a materialised node at a linear offset: a scalar load where the lanes agree,
        a vector load where they are consecutive, else a gather."""
        if "interleave" in node.attrs:
            raise CompileError(f"{self.group.name} reads interleaved {node!r} element by element")
        buffer = self.buffers[id(node)]
        lanes = linear.lanes
        self.loads.append(linear)
        if lanes == 1:
            scalars = [g for g in self._guards if g.type.lanes == 1]
            return kb.load(buffer, self.expr(linear), 1, all_of(scalars))
        guards = [*self._guards, *((self.mask,) if self.mask is not None else ())]
        mask = all_of([kb.splat(g, lanes) for g in guards])
        if mask is None and _lane_step(linear) == -1:
            lane = next(s for s, _ in linear.terms if s.kind == "lane")
            first = linear + affine.symbol(lane) + (1 - lanes)
            forward = kb.load(buffer, self.expr(first), lanes)
            return kb.shuffle(range(lanes - 1, -1, -1), self.b.let(forward, "v"))
        start, _ = self._address(linear)
        return kb.load(buffer, start, lanes, mask)

    def _address(self, linear: Affine) -> tuple[Expr, bool]:
        """A scalar start when the lanes are consecutive, else one index per lane."""
        if _lane_step(linear) == 1:
            self.addresses.append(linear)
            uniform = tuple(t for t in linear.terms if t[0].kind != "lane")
            return self.expr(Affine(linear.const, uniform)), True
        return self.expr(linear), False

    def address(self, linear: Affine) -> Expr:
        """The index for a vector access at `linear`: its start, since the lanes are consecutive."""
        start, contiguous = self._address(linear)
        assert contiguous or linear.lanes == 1, linear
        return start

    # -- guards

    @contextlib.contextmanager
    def guarded(self, conditions: Sequence[Expr]) -> Iterator[None]:
        """Loads inside read only where all conditions hold (and give 0 elsewhere)."""
        outer = self._guards
        self._guards = outer + tuple(c for c in conditions if c not in outer)
        try:
            yield
        finally:
            self._guards = outer

    def between(self, x: Affine, low: int, high: int) -> Expr | None:
        """Returns the condition low <= x < high (bound), or None when it always holds."""
        key = ("between", x, low, high)
        self.tests.append((x, low, high))
        hit: Expr | None = self.find(key)
        if hit is not None:
            return hit
        tests = []
        if x.low < low:
            tests.append(self.expr(x) >= low)
        if x.high >= high:
            tests.append(self.expr(x) < high)
        if not tests:
            return None
        test = tests[0] if len(tests) == 1 else tests[0] & tests[1]
        return self.remember(key, self.b.let(test, "inside"))


def _widen(x: Expr) -> Expr:
    return kb.cast(x, dt.compute_dtype(x.type.dtype))


def _lane_step(x: Affine) -> int | None:
    """The element distance between lanes; None when it is not constant."""
    if any(s.lanes > 1 and s.kind != "lane" for s, _ in x.terms):
        return None
    return next((c for s, c in x.terms if s.kind == "lane"), 0)
