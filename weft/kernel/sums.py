"""Linear algebra over the integers: sums of constant multiples of atoms.

An atom is what the algebra does not look into: a number of which only the range is known, or
`R // c` and `R % c` of a sum R that is never negative. Everything is exact; whether a machine's
arithmetic is too is for the caller to prove.
"""

from __future__ import annotations

import hashlib
from dataclasses import field
from math import gcd

from weft.core.records import dataclass

_LONGEST = 200  # characters of a key

Range = tuple[int, int]  # inclusive
Bound = tuple[bool, int, "Sum"]  # (True, k, S): k * atom <= S; (False, k, S): k * atom >= S; k > 0


@dataclass(frozen=True, slots=True)
class Atom:
    """One unknown number, the same wherever its key occurs. `lanes`: each lane has its own (`iota`:
    and it is the lane's number)."""

    key: str
    low: int
    high: int
    lanes: bool = False
    iota: bool = False
    kind: str = ""  # "div" or "rem" of `inner` by `c`; "min" or "max" of `arms`
    inner: Sum | None = None
    c: int = 1
    bounds: tuple[Bound, ...] = ()
    arms: tuple[Sum, ...] = ()


@dataclass(frozen=True, slots=True)
class Sum:
    """const + sum of coefficient * atom, by the atoms' keys."""

    const: int = 0
    terms: dict[str, tuple[int, Atom]] = field(default_factory=dict)

    @property
    def range(self) -> Range:
        """The least and greatest value, as far as its atoms' ranges tell."""
        low = high = self.const
        for c, atom in self.terms.values():
            low += c * (atom.low if c > 0 else atom.high)
            high += c * (atom.high if c > 0 else atom.low)
        return low, high

    @property
    def lanes(self) -> bool:
        """True if it may differ between lanes."""
        return any(atom.lanes for _, atom in self.terms.values())

    @property
    def text(self) -> str:
        """The same for equal sums."""
        parts = [f"{c}*{key}" for key, (c, _) in sorted(self.terms.items())]
        return " + ".join([*parts, str(self.const)])

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        terms = dict(self.terms)
        for key, (c, atom) in other.terms.items():
            total = terms.get(key, (0, atom))[0] + factor * c
            if total:
                terms[key] = (total, atom)
            else:
                terms.pop(key, None)
        return Sum(self.const + factor * other.const, terms)

    def times(self, factor: int) -> Sum:
        return Sum().plus(self, factor) if factor else Sum()

    def parts(self, c: int) -> Sum:
        """The sum divided by a number that divides everything in it."""
        return Sum(self.const // c, {k: (n // c, atom) for k, (n, atom) in self.terms.items()})

    @property
    def divisor(self) -> int:
        """The largest number that divides everything in it (0 of nothing)."""
        return gcd(self.const, *(c for c, _ in self.terms.values()))

    def single(self) -> Atom | None:
        """The atom, when the sum is exactly one atom."""
        if self.const or len(self.terms) != 1:
            return None
        ((c, atom),) = self.terms.values()
        return atom if c == 1 else None


def name(text: str) -> str:
    """A key for an atom that is this: of bounded length, the same for the same text."""
    return text if len(text) < _LONGEST else hashlib.sha256(text.encode()).hexdigest()


def of(atom: Atom) -> Sum:
    """The sum of one atom."""
    return Sum(0, {atom.key: (1, atom)})


# -- division and remainder of a sum that is never negative, by a positive constant


def _part(total: Sum, c: int) -> tuple[Sum, Sum]:
    """(Q, R): total = c * Q + R with R not negative if that can be had. Only what c divides is
    taken out, unless R is then less than c: of the rest, more is known together than in parts."""
    for every in (True, False):
        terms = {k: (n // c, atom) for k, (n, atom) in total.terms.items() if every or n % c == 0}
        quotient = Sum(total.const // c, {k: t for k, t in terms.items() if t[0]})
        rest = total.plus(quotient, -c)
        low, high = rest.range
        if low >= 0 and (high < c or not every):
            return quotient, rest
    return Sum(), total


def _shrink(rest: Sum, c: int) -> tuple[Sum, int, int]:
    """(R', c', g): what divides every coefficient of R and c taken out: R // c = R' // c'."""
    g = gcd(c, *(factor for factor, _ in rest.terms.values()))
    return rest.parts(g), c // g, g


def div(total: Sum, c: int) -> Sum:
    """total // c."""
    quotient, rest = _part(total, c)
    inner, c, _ = _shrink(rest, c)
    if inner.range[1] < c:
        return rejoin(quotient)
    one = inner.single()
    if one and one.kind == "div":
        assert one.inner is not None
        return rejoin(quotient.plus(div(one.inner, one.c * c)))
    return rejoin(quotient.plus(inner if c == 1 else _make("div", inner, c)))


def rem(total: Sum, c: int) -> Sum:
    """total % c."""
    rest = _part(total, c)[1]
    for key in list(rest.terms):
        factor, atom = rest.terms.get(key, (0, None))
        if atom and atom.kind == "rem" and factor > 0 and factor * atom.c % c == 0:  # (x % d) % c
            assert atom.inner is not None
            without = Sum(rest.const, {k: t for k, t in rest.terms.items() if k != key})
            rest = _part(without.plus(atom.inner, factor), c)[1]
    inner, c, g = _shrink(rest, c)
    result = inner if inner.range[1] < c else _make("rem", inner, c)
    return rejoin(result.times(g).plus(Sum(rest.const % g)))


def _make(kind: str, inner: Sum, c: int) -> Sum:
    low, high = (max(x, 0) for x in inner.range)
    key, lanes = name(f"{kind}({inner.text}, {c})"), inner.lanes
    if kind == "rem":
        known: tuple[Bound, ...] = ((True, 1, inner),)
        return of(Atom(key, 0, min(high, c - 1), lanes, False, kind, inner, c, known))
    known = ((True, c, inner), (False, c, inner.plus(Sum(1 - c))))
    return of(Atom(key, low // c, high // c, lanes, False, kind, inner, c, known))


def rejoin(total: Sum) -> Sum:
    """Joins quotients and remainders of one number by one divisor.

    Uses that c (x // c) + x % c is x, x - x % c is c (x // c) and x - c (x // c) is x % c.
    """
    for atom, (n, _) in [(t[1], t) for t in total.terms.values()]:
        if atom.kind == "rem":
            found = _whole(total, n, atom)
        elif atom.kind == "div":
            found = _remainder(total, n, atom)
        else:
            continue
        if found is not None:
            return rejoin(found)
    return total


def _whole(total: Sum, n: int, atom: Atom) -> Sum | None:
    """Removes n * (x % c) if the sum also holds x // c or x."""
    assert atom.inner is not None
    quotient = div(atom.inner, atom.c)
    one = quotient.single()
    if one and total.terms.get(one.key, (0, atom))[0] == n * atom.c:
        return total.plus(of(atom), -n).plus(of(one), -n * atom.c).plus(atom.inner, n)
    without = total.plus(of(atom), -n).plus(atom.inner, n)
    if any(key in without.terms for key in atom.inner.terms):
        return None
    return without.plus(quotient, -n * atom.c)


def _remainder(total: Sum, n: int, atom: Atom) -> Sum | None:
    """Removes n * (x // c) if the sum also holds -n / c times x."""
    assert atom.inner is not None
    others = [a for _, a in total.terms.values() if a.kind == "div" and a.c < atom.c]
    same = [a for a in others if a.inner and a.inner.text == atom.inner.text]
    for x, c in [(atom.inner, atom.c), *((of(a), atom.c // a.c) for a in same if not atom.c % a.c)]:
        if n % c:
            continue
        without = total.plus(of(atom), -n).plus(x, n // c)
        if not any(key in without.terms for key in x.terms):
            return without.plus(rem(x, c), -(n // c))
    return None
