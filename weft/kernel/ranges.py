"""Ranges of a kernel's int32 expressions: sums of atoms, under the surrounding conditions.

An expression becomes a sum only if no step of its arithmetic can leave int32, given the known
ranges. Anything else is an atom of any value, since arithmetic wraps. Values loaded from memory and
variables that are assigned again are such atoms too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import gcd

from weft.core import dtypes as dt
from weft.kernel import ir, sums
from weft.kernel.facts import SignFacts
from weft.kernel.ir import Expr, Kernel
from weft.kernel.sums import Atom, Range, Sum

INT32: Range = (-(1 << 31), (1 << 31) - 1)
SAME = ("subgroup_max", "subgroup_xor")  # collectives that return the operand of one thread
_TERMS = 24  # most terms of a sum; a longer one is known by its range alone
Conditions = tuple[list[Sum], list[Sum]]  # facts if the condition is true, facts if it is false


class Ranges:
    """The values of a kernel's expressions at one place in it. A walk over the kernel binds the
    variables and adds the conditions it meets to `facts`. `scalars` are the ranges of the runtime
    scalars, by slot. `contents` are those of reassigned variables and of local arrays' elements, by
    name (any int32 otherwise). `overflows` collects the sums, products and shifts (by `id`) that
    may leave int32."""

    def __init__(
        self,
        kernel: Kernel,
        scalars: Mapping[int, Range] | None = None,
        contents: Mapping[str, Range] | None = None,
    ) -> None:
        self.kernel = kernel
        self.contents = {} if contents is None else contents
        self.facts = SignFacts()
        self.overflows: set[int] = set()
        self._scalars = scalars or {}
        self._vars: dict[str, Sum] = {}
        self._tests: dict[str, Conditions] = {}
        self._ceilings: dict[str, Sum] = {}
        self._now: dict[str, Sum] = {}  # reassigned variables, until the next assignment
        self._known: dict[int, tuple[Expr, Sum]] = {}  # keyed by id; the entry keeps it alive
        self._count = 0
        self._axes: dict[tuple[str, int], Sum] = {}
        for dim, entry in enumerate(kernel.grid):
            self._axes["thread", dim] = _axis("thread", dim, kernel.threads[dim])
            total = self.value(entry)
            group = _axis("group", dim, max(total.range[1], 1))
            self._axes["group", dim] = group
            if total.terms:
                self.facts.add([group.plus(total, -1).plus(Sum(1))])

    def axis(self, kind: str, dim: int) -> Sum:
        """The index of a group or thread."""
        return self._axes[kind, dim]

    # -- binding

    def let(self, var: ir.Var, value: Expr) -> None:
        """Binds a variable that is not assigned again."""
        if var.type.dtype == dt.int32:
            self._vars[var.name] = self.value(value)
        elif var.type.dtype == dt.bool_:
            self._tests[var.name] = (self.holds(value), self.holds(value, False))

    def falling(self, var: ir.Var, start: Expr) -> None:
        """Binds a variable that is assigned again, but never more than it was."""
        self._ceilings[var.name] = self.value(start)

    def forget(self, names: Iterable[str]) -> None:
        """Says that these variables may have been assigned."""
        for name in names:
            self._now.pop(name, None)

    def loop(self, s: ir.For) -> int:
        """Binds a loop's variable; the most turns that the loop may take."""
        start, stop = self.value(s.start), self.value(s.stop)
        length = self.facts.high(stop.plus(start, -1))
        turns = max(-(-length // s.step), 0)
        turn = sums.of(Atom(s.var.name, 0, max(turns - 1, 0)))
        at = start.plus(turn, s.step)
        self._vars[s.var.name] = at
        self.facts.add([at.plus(stop, -1).plus(Sum(1))])
        return turns

    # -- values

    def unknown(self, low: int = INT32[0], high: int = INT32[1], lanes: bool = False) -> Sum:
        """A number like no other."""
        self._count += 1
        return sums.of(Atom(f"?{self._count}", max(low, INT32[0]), min(high, INT32[1]), lanes))

    def value(self, e: Expr) -> Sum:
        """Returns the value of an int32 expression; for a vector, the value in each lane."""
        found = self._known.get(id(e))
        if found is None or isinstance(e, ir.Var | ir.Const):
            found = self._known[id(e)] = e, self._value(e)
        return found[1]

    def _value(self, e: Expr) -> Sum:
        if isinstance(e, ir.Const):
            return Sum(int(e.value))
        if isinstance(e, ir.Var):
            return self._vars[e.name] if e.name in self._vars else self._read(e)
        if isinstance(e, ir.Param):
            low, high = self._scalars.get(e.slot, INT32)
            return sums.of(Atom(f"${e.slot}", low, high))
        if isinstance(e, ir.Axis):
            return self._axes[e.kind, e.dim]
        if isinstance(e, ir.Load) and isinstance(e.source, ir.Array):
            return self._content(e, e.source.name)
        if isinstance(e, ir.Binary):
            return self._binary(e)
        if isinstance(e, ir.Unary):
            return self._unary(e)
        if isinstance(e, ir.Vec):
            return self._vec(e)
        if isinstance(e, ir.Select):
            return self._select(e)
        if isinstance(e, ir.Collective) and e.op in SAME:
            low, high = self.bounds(self.value(e.args[0]))
            bounded = INT32[0] < low and high < INT32[1]
            return self.unknown(low, high, e.type.lanes > 1) if bounded else self._any(e)
        if isinstance(e, ir.Cast | ir.Bitcast) and e.x.type.lanes == e.type.lanes:
            low, high = self.integer(e.x)
            fits = low >= INT32[0] and high <= INT32[1]
            return self.unknown(low, high, e.type.lanes > 1) if fits else self._any(e)
        return self._any(e)

    def _content(self, e: Expr, name: str) -> Sum:
        return self.unknown(*self.contents.get(name, INT32), e.type.lanes > 1)

    def _read(self, e: ir.Var) -> Sum:
        if e.name not in self._now:
            found = self._content(e, e.name)
            if e.name in self._ceilings:
                ((_, atom),) = found.terms.values()
                found = sums.of(replace(atom, bounds=((True, 1, self._ceilings[e.name]),)))
            self._now[e.name] = found
        return self._now[e.name]

    def _any(self, e: Expr) -> Sum:
        return self.unknown(lanes=e.type.lanes > 1)

    def _unary(self, e: ir.Unary) -> Sum:
        x = self.value(e.x)
        if e.op == "neg" and x.range[0] > INT32[0]:
            return x.times(-1)
        if e.op == "abs" and x.range[0] > INT32[0]:
            low, high = x.range
            return self.unknown(max(low, -high, 0), max(-low, high), e.type.lanes > 1)
        return self._any(e)

    def _vec(self, e: ir.Vec) -> Sum:
        lanes = e.type.lanes > 1
        if e.op == "iota":
            return sums.of(Atom(f"iota{e.type.lanes}", 0, e.type.lanes - 1, lanes, iota=True))
        args = [self.value(a) for a in e.args]
        if e.op == "splat":
            return args[0]
        if e.op == "extract" and not any(a.lanes and not a.iota for _, a in args[0].terms.values()):
            found = args[0]
            for c, atom in args[0].terms.values():
                if atom.iota:
                    found = found.plus(sums.of(atom), -c).plus(Sum(c * e.lanes[0]))
            return found
        return self._either(args, lanes)

    def _either(self, values: list[Sum], lanes: bool) -> Sum:
        if all(v.text == values[0].text for v in values) and not values[0].lanes:
            return values[0]
        ranges = [v.range for v in values]
        return self.unknown(min(low for low, _ in ranges), max(high for _, high in ranges), lanes)

    def _select(self, e: ir.Select) -> Sum:
        """One of two, each where its condition holds."""
        found = []
        for x, holds in ((e.a, True), (e.b, False)):
            value = self.value(x)
            with self.facts.given(self.holds(e.cond, holds)):
                found.append(self.bounds(value))
        low, high = min(low for low, _ in found), max(high for _, high in found)
        return self.unknown(low, high, e.type.lanes > 1)

    def bounds(self, total: Sum) -> Range:
        """Returns the least and greatest value of a sum."""
        return self.facts.low(total), self.facts.high(total)

    # -- arithmetic

    def _binary(self, e: ir.Binary) -> Sum:
        a, b = self.value(e.a), self.value(e.b)
        if e.op in ("add", "sub", "mul", "shl"):
            exact = self._exact(e.op, a, b)
            if exact is not None and self.facts.within(exact, *INT32):
                short = len(exact.terms) <= _TERMS
                return exact if short else self.unknown(*self.bounds(exact), exact.lanes)
            self.overflows.add(id(e))
            return self._any(e)
        if e.op in ("min", "max"):
            return self._extreme(e.op, a, b)
        if not b.terms:
            found = self._by_constant(e.op, a, b.const)
            if found is not None:
                return found
        return self.unknown(*_loose(e.op, a.range, b.range), e.type.lanes > 1)

    def _exact(self, op: str, a: Sum, b: Sum) -> Sum | None:
        if op in ("add", "sub"):
            return sums.rejoin(a.plus(b, 1 if op == "add" else -1))
        if op == "mul" and not a.terms:
            a, b = b, a
        if not b.terms:
            if op == "mul":
                return a.times(b.const)
            return a.times(1 << b.const) if 0 <= b.const < 32 else None
        if op == "shl":
            if b.range[0] < 0 or b.range[1] > 31:
                return None
            text, second = f"({a.text}) << ({b.text})", [1 << x for x in b.range]
        else:
            text, second = " * ".join(sorted((f"({a.text})", f"({b.text})"))), [*b.range]
        corners = [x * y for x in a.range for y in second]
        return sums.of(Atom(sums.name(text), min(corners), max(corners), a.lanes or b.lanes))

    def _extreme(self, op: str, a: Sum, b: Sum) -> Sum:
        low, high = self.facts.low(a.plus(b, -1), 0), self.facts.high(a.plus(b, -1), 0)
        if high <= 0 or low >= 0:
            return a if (high <= 0) == (op == "min") else b
        g = gcd(a.divisor, b.divisor)
        a, b = a.parts(g), b.parts(g)
        pick = min if op == "min" else max
        low, high = (pick(x, y) for x, y in zip(self.bounds(a), self.bounds(b)))
        first, second = sorted((a.text, b.text))
        known, lanes = ((op == "min", 1, a), (op == "min", 1, b)), a.lanes or b.lanes
        key = sums.name(f"{op}({first}, {second})")
        return sums.of(Atom(key, low, high, lanes, kind=op, bounds=known, arms=(a, b))).times(g)

    def _by_constant(self, op: str, a: Sum, c: int) -> Sum | None:
        """Division, remainder and bits of what is never negative, by a constant."""
        if op == "shr" and 0 <= c < 31:
            op, c = "div", 1 << c
        elif op == "and" and c > 0 and c & (c + 1) == 0:
            op, c = "rem", c + 1
        if op not in ("div", "rem") or c < 1 or self.facts.low(a, 0) < 0:
            return None
        return self._tight(sums.div(a, c) if op == "div" else sums.rem(a, c))

    def _tight(self, total: Sum) -> Sum:
        """The sum with its quotients as narrow as what is known of their dividends together."""
        terms = dict(total.terms)
        for key, (n, atom) in total.terms.items():
            if atom.kind == "div" and atom.inner is not None:
                low, high = (x // atom.c for x in self.bounds(atom.inner))
                if low > atom.low or high < atom.high:
                    narrow = replace(atom, low=max(low, atom.low), high=min(high, atom.high))
                    terms[key] = (n, narrow)
        return Sum(total.const, terms)

    # -- other integers

    def integer(self, e: Expr) -> Range:
        """The range of an expression of any integer dtype or bool; of anything else, int32 and
        more."""
        dtype, full = e.type.dtype, whole(e.type.dtype)
        if dtype == dt.int32:
            return self.value(e).range
        if isinstance(e, ir.Const) and dtype.is_int:
            return int(e.value), int(e.value)
        if isinstance(e, ir.Cast | ir.Bitcast) and e.x.type.lanes == e.type.lanes:
            low, high = self.integer(e.x)
            return (low, high) if full[0] <= low and high <= full[1] else full
        if isinstance(e, ir.Vec) and e.op == "splat":
            return self.integer(e.args[0])
        if isinstance(e, ir.Binary) and dtype.kind == "uint":
            low, high = _loose(e.op, self.integer(e.a), self.integer(e.b))
            return max(low, full[0]), min(high, full[1])
        return full

    # -- conditions

    def holds(self, e: Expr, truth: bool = True) -> list[Sum]:
        """Sums that are not positive where a condition is true (or false)."""
        if isinstance(e, ir.Var):
            return self._tests.get(e.name, ([], []))[not truth]
        if isinstance(e, ir.Const):
            return [] if bool(e.value) == truth else [Sum(1)]  # never
        if isinstance(e, ir.Vec) and e.op == "splat":
            return self.holds(e.args[0], truth)
        if isinstance(e, ir.Unary) and e.op == "not":
            return self.holds(e.x, not truth)
        if not isinstance(e, ir.Binary):
            return []
        if e.op == ("and" if truth else "or") and e.type.dtype == dt.bool_:
            return self.holds(e.a, truth) + self.holds(e.b, truth)
        if e.op in ir.COMPARE and e.a.type.dtype == dt.int32:
            return _compared(e.op, self.value(e.a).plus(self.value(e.b), -1), truth)
        return []


def _axis(kind: str, dim: int, length: int) -> Sum:
    return sums.of(Atom(f"{kind}.{dim}", 0, length - 1)) if length > 1 else Sum()


def _compared(op: str, difference: Sum, truth: bool) -> list[Sum]:
    """Returns sums that are at most 0 if a - b compares with 0 as stated."""
    if op == ("eq" if truth else "ne"):
        return [difference, difference.times(-1)]
    if op == "lt":
        return [difference.plus(Sum(1))] if truth else [difference.times(-1)]
    if op == "le":
        return [difference] if truth else [difference.times(-1).plus(Sum(1))]
    return []


def whole(dtype: dt.DType) -> Range:
    """All numbers of an integer dtype (of others: beyond int32)."""
    if dtype.kind == "bool":
        return 0, 1
    if not dtype.is_int:
        return -(1 << 62), 1 << 62
    bits = 8 * dtype.itemsize
    return (0, (1 << bits) - 1) if dtype.kind == "uint" else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _loose(op: str, a: Range, b: Range) -> Range:
    """Returns a range that always holds, from the operands' ranges alone (division truncates)."""
    (al, ah), (bl, bh) = a, b
    if op == "min":
        return min(al, bl), min(ah, bh)
    if op == "max":
        return max(al, bl), max(ah, bh)
    if op == "and" and (al >= 0 or bl >= 0):
        return 0, min(h for low, h in (a, b) if low >= 0)
    if op in ("or", "xor") and al >= 0 and bl >= 0:
        return 0, (1 << max(ah, bh).bit_length()) - 1
    if op == "div" and bl > 0:
        return (al // bh if al >= 0 else -(-al // bl)), (ah // bl if ah >= 0 else -(-ah // bh))
    if op == "rem" and bl > 0:
        return (0 if al >= 0 else max(al, 1 - bh)), (min(ah, bh - 1) if ah >= 0 else 0)
    if op == "shr" and bl == bh and 0 <= bl < 31:
        return al >> bl, ah >> bl
    return -(1 << 62), 1 << 62
