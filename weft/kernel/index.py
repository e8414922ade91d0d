"""Index algebra: int32 expressions brought to a sum of constant multiples of atoms, with the ranges
of variables dropping divisions and remainders.

An atom is what the algebra does not look into (a variable, a load, a product of two unknowns), or
`R // c` and `R % c` of a sum R that is never negative. Index arithmetic is assumed not to overflow;
IR division truncates, so a division is touched only where its dividend cannot be negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from weft.core import dtypes as dt
from weft.kernel import builder as k
from weft.kernel import ir
from weft.kernel.ir import Expr
from weft.kernel.printer import expr_text

Range = tuple[int, int]  # inclusive
FULL: Range = (-(1 << 31), (1 << 31) - 1)


@dataclass(frozen=True)
class _Atom:
    expr: Expr
    low: int
    high: int
    kind: str = ""  # "div" or "rem" of `inner` by `c`
    inner: _Sum | None = None
    c: int = 1


@dataclass
class _Sum:
    """const + sum of coefficient * atom, the atoms keyed by their text."""

    const: int = 0
    terms: dict[str, tuple[int, _Atom]] = field(default_factory=dict)

    def range(self) -> Range:
        low = high = self.const
        for c, atom in self.terms.values():
            low += c * (atom.low if c > 0 else atom.high)
            high += c * (atom.high if c > 0 else atom.low)
        return low, high

    def plus(self, other: _Sum, factor: int = 1) -> _Sum:
        result = _Sum(self.const + factor * other.const, dict(self.terms))
        for key, (c, atom) in other.terms.items():
            total = result.terms.get(key, (0, atom))[0] + factor * c
            if total:
                result.terms[key] = (total, atom)
            else:
                result.terms.pop(key, None)
        return result

    def times(self, factor: int) -> _Sum:
        return _Sum().plus(self, factor)

    def single(self) -> tuple[str, _Atom] | None:
        """The atom, when the sum is exactly one atom."""
        if self.const or len(self.terms) != 1:
            return None
        key, (c, atom) = next(iter(self.terms.items()))
        return (key, atom) if c == 1 else None


def simplify(expr: Expr, ranges: Mapping[str, Range] | None = None) -> Expr:
    """An equal expression, usually smaller, for values of variables within `ranges`.

    `ranges` maps names to inclusive (low, high): of a Var or Param by its name, of an Axis by
    "group.0", "thread.1" and so on (by default any non-negative value). Handles int32 scalars and
    vectors, and comparisons of them; anything else comes back as it is. The result may share
    opaque subtrees (loads, products) with `expr`: use one of the two.
    """
    known = ranges or {}
    if isinstance(expr, ir.Binary) and expr.op in ir.COMPARE and _is_index(expr.a):
        return _compare(expr, known)
    if not _is_index(expr):
        return expr
    return k.splat(_build(_sum(expr, known)), expr.type.lanes)


def split(
    expr: Expr, var: ir.Var | str, ranges: Mapping[str, Range] | None = None
) -> tuple[int, Expr] | None:
    """(coefficient, rest) with expr = coefficient * var + rest and `rest` free of `var`; None when
    `expr` is not linear in `var`. Coefficient 1 proves that an access is contiguous in `var`."""
    name = var if isinstance(var, str) else var.name
    total = _sum(expr, ranges or {})
    coefficient, rest = 0, _Sum(total.const)
    for key, (c, atom) in total.terms.items():
        if isinstance(atom.expr, ir.Var) and atom.expr.name == name:
            coefficient = c
        elif _mentions(atom.expr, name):
            return None
        else:
            rest.terms[key] = (c, atom)
    return coefficient, _build(rest)


def bounds(expr: Expr, ranges: Mapping[str, Range] | None = None) -> Range:
    """Inclusive (low, high) between which the index lies; loose, never wrong."""
    return _sum(expr, ranges or {}).range()


def _is_index(e: Expr) -> bool:
    return e.type.dtype == dt.int32


def _mentions(e: Expr | ir.Stmt, name: str) -> bool:
    if isinstance(e, ir.Var):
        return e.name == name
    return any(_mentions(c, name) for c in ir.children(e))


def _compare(e: ir.Binary, known: Mapping[str, Range]) -> Expr:
    """A comparison, decided where the ranges tell."""
    a, b = _sum(e.a, known), _sum(e.b, known)
    low, high = a.plus(b, -1).range()
    decided = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "eq": (low == high == 0, high < 0 or low > 0),
        "ne": (high < 0 or low > 0, low == high == 0),
    }[e.op]
    if any(decided):
        return ir.Const(decided[0], e.type)
    lanes = e.a.type.lanes
    return ir.Binary(e.op, k.splat(_build(a), lanes), k.splat(_build(b), lanes), e.type)


# -- expression to sum


def _sum(e: Expr, known: Mapping[str, Range]) -> _Sum:
    if isinstance(e, ir.Const):
        return _Sum(int(e.value))
    if isinstance(e, ir.Vec) and e.op == "splat":
        return _sum(e.args[0], known)
    if isinstance(e, ir.Unary) and e.op == "neg":
        return _sum(e.x, known).times(-1)
    if isinstance(e, ir.Binary):
        return _binary(e, known)
    return _opaque(e, known)


def _binary(e: ir.Binary, known: Mapping[str, Range]) -> _Sum:
    a, b = _sum(e.a, known), _sum(e.b, known)
    if e.op in ("add", "sub"):
        return _rejoin(a.plus(b, 1 if e.op == "add" else -1))
    if e.op == "mul" and not a.terms:
        a, b = b, a
    if not b.terms:
        c = b.const
        if e.op == "mul":
            return a.times(c)
        if e.op == "shl" and 0 <= c < 31:
            return a.times(1 << c)
        if a.range()[0] >= 0:
            if (e.op == "div" and c > 0) or (e.op == "shr" and 0 <= c < 31):
                return _div(a, c if e.op == "div" else 1 << c)
            if (e.op == "rem" and c > 0) or (e.op == "and" and c >= 0 and c & (c + 1) == 0):
                return _rem(a, c if e.op == "rem" else c + 1)
        if not a.terms and (folded := k.binary(e.op, k.const(a.const), c)) and k.is_const(folded):
            return _Sum(int(folded.value))  # type: ignore[attr-defined]
    if e.op in ("min", "max"):
        low, high = a.plus(b, -1).range()
        if high <= 0 or low >= 0:
            return a if (high <= 0) == (e.op == "min") else b
    lanes = e.type.lanes
    rebuilt = ir.Binary(e.op, k.splat(_build(a), lanes), k.splat(_build(b), lanes), e.type)
    return _atom(rebuilt, _binary_range(e.op, a, b))


def _binary_range(op: str, a: _Sum, b: _Sum) -> Range:
    (al, ah), (bl, bh) = a.range(), b.range()
    if op == "min":
        return min(al, bl), min(ah, bh)
    if op == "max":
        return max(al, bl), max(ah, bh)
    if op == "mul":
        products = (al * bl, al * bh, ah * bl, ah * bh)
        return min(products), max(products)
    if op == "and" and (al >= 0 or bl >= 0):
        return 0, min(h for low, h in ((al, ah), (bl, bh)) if low >= 0)
    if op == "div" and al >= 0 and bl > 0:
        return al // bh, ah // bl
    if op == "rem" and bl > 0:
        return (0 if al >= 0 else 1 - bh), bh - 1
    return FULL


def _atom(e: Expr, given: Range) -> _Sum:
    low, high = max(given[0], FULL[0]), min(given[1], FULL[1])
    return _Sum(0, {expr_text(e): (1, _Atom(e, low, high))})


def _opaque(e: Expr, known: Mapping[str, Range]) -> _Sum:
    if isinstance(e, ir.Var | ir.Param):
        return _atom(e, known.get(e.name, FULL))
    if isinstance(e, ir.Axis):
        return _atom(e, known.get(f"{e.kind}.{e.dim}", (0, FULL[1])))
    if isinstance(e, ir.Vec) and e.op == "iota":
        return _atom(e, (0, e.type.lanes - 1))
    if isinstance(e, ir.Select):
        a, b = _sum(e.a, known).range(), _sum(e.b, known).range()
        return _atom(e, (min(a[0], b[0]), max(a[1], b[1])))
    if isinstance(e, ir.Cast) and e.x.type.dtype == dt.bool_:
        return _atom(e, (0, 1))
    return _atom(e, FULL)


# -- division and remainder of a sum that is never negative, by a positive constant


def _part(total: _Sum, c: int) -> tuple[_Sum, _Sum]:
    """(Q, R): total = c * Q + R, every coefficient of R in 0..c-1."""
    quotient, rest = _Sum(total.const // c), _Sum(total.const % c)
    for key, (factor, atom) in total.terms.items():
        q, r = divmod(factor, c)
        if q:
            quotient.terms[key] = (q, atom)
        if r:
            rest.terms[key] = (r, atom)
    return quotient, rest


def _shrink(rest: _Sum, c: int) -> tuple[_Sum, int, int]:
    """(R', c', g): what divides every coefficient of R and c taken out: R // c = R' // c'."""
    g = gcd(c, *(factor for factor, _ in rest.terms.values()))
    terms = {key: (factor // g, atom) for key, (factor, atom) in rest.terms.items()}
    return _Sum(rest.const // g, terms), c // g, g


def _div(total: _Sum, c: int) -> _Sum:
    quotient, rest = _part(total, c)
    if rest.range()[0] < 0:  # the split would need a floor division of a negative number
        quotient, rest = _Sum(), total
    inner, c, _ = _shrink(rest, c)
    low, high = inner.range()
    if high < c:
        return _rejoin(quotient)
    one = inner.single()
    if one and one[1].kind == "div":
        assert one[1].inner is not None
        return _rejoin(quotient.plus(_div(one[1].inner, one[1].c * c)))
    if c == 1:
        return _rejoin(quotient.plus(inner))
    return _rejoin(quotient.plus(_make("div", inner, c, (low // c, high // c))))


def _rem(total: _Sum, c: int) -> _Sum:
    _, rest = _part(total, c)
    for key, (factor, atom) in list(rest.terms.items()):
        if atom.kind == "rem" and factor * atom.c % c == 0:  # (x % d) % c with d a multiple of c
            assert atom.inner is not None
            del rest.terms[key]
            rest = _part(rest.plus(atom.inner, factor), c)[1]
    if rest.range()[0] < 0:
        rest = total
    left = rest.const
    inner, c, g = _shrink(rest, c)
    high = inner.range()[1]
    result = inner if high < c else _make("rem", inner, c, (0, min(high, c - 1)))
    return _rejoin(result.times(g).plus(_Sum(left % g)))


def _make(kind: str, inner: _Sum, c: int, given: Range) -> _Sum:
    e = _build(inner)
    rebuilt = ir.Binary(kind, e, k.splat(k.const(c), e.type.lanes), e.type)
    return _Sum(0, {expr_text(rebuilt): (1, _Atom(rebuilt, *given, kind, inner, c))})


def _rejoin(total: _Sum) -> _Sum:
    """n * c * (x // c) + n * (x % c) is n * x."""
    for key, (n, atom) in list(total.terms.items()):
        if atom.kind != "rem":
            continue
        assert atom.inner is not None
        one = _div(atom.inner, atom.c).single()
        if one and total.terms.get(one[0], (0, atom))[0] == n * atom.c:
            rest = dict(total.terms)
            del rest[key], rest[one[0]]
            return _rejoin(_Sum(total.const, rest).plus(atom.inner, n))
    return total


# -- sum to expression


def _build(total: _Sum) -> Expr:
    """Scalars first, so that they are added once and not in every lane."""
    result: Expr | None = None
    terms = sorted(total.terms.values(), key=lambda term: (term[1].expr.type.lanes, term[0] < 0))
    scalar_const = total.const
    for n, (c, atom) in enumerate(terms):
        e = atom.expr
        if result is None:
            result = k.binary("mul", e, c)
        elif c < 0:
            result = k.binary("sub", result, k.binary("mul", e, -c))
        else:
            result = k.binary("add", result, k.binary("mul", e, c))
        last_scalar = n + 1 == len(terms) or terms[n + 1][1].expr.type.lanes > 1
        if scalar_const and e.type.lanes == 1 and last_scalar:
            result = k.binary("add", result, scalar_const)
            scalar_const = 0
    if result is None:
        return k.const(total.const)
    return k.binary("add", result, scalar_const)
