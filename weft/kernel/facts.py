"""Known facts about sums: inequalities, and the bounds that follow from several of them
together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from math import gcd

from weft.kernel.sums import Atom, Bound, Range, Sum, div, of

_DEPTH, _TRIES, _ROUNDS = 4, 300, 4  # limits of the search for a bound
_KEPT = 32  # bounds kept per atom, the latest ones
_FUEL = 1 << 20  # steps of all searches together, so that no kernel can prolong them


class SignFacts:
    """Sums that are known not to be positive. Those added inside `given` go with it."""

    def __init__(self) -> None:
        self._added: list[list[str]] = []  # the keys of each fact's atoms
        self._bounds: dict[str, list[Bound]] = {}
        self._limits: dict[str, Range] = {}  # bounds of single atoms, while the facts stay the same
        self._fuel = _FUEL

    @contextlib.contextmanager
    def given(self, facts: Iterable[Sum] = ()) -> Iterator[None]:
        """Inside, these hold as well."""
        mark = len(self._added)
        self.add(facts)
        yield
        if len(self._added) > mark:
            self._limits.clear()
        while len(self._added) > mark:
            for key in self._added.pop():
                self._bounds[key].pop()

    def add(self, facts: Iterable[Sum]) -> None:
        """Adds facts, and their consequences for the operands of a quotient, minimum or maximum in
        them."""
        found = [fact for fact in facts if fact.range[1] > 0 and fact.terms]
        for fact in found:  # other facts already show in their atoms' ranges
            self._add(fact)
        for fact in found:
            for _, atom in fact.terms.values():
                for other in (*self._follows(atom), *self._without(fact, atom)):
                    self._add(other)

    def _add(self, fact: Sum) -> None:
        g = gcd(*(c for c, _ in fact.terms.values()))
        terms = {key: (c // g, atom) for key, (c, atom) in fact.terms.items()}
        whole = Sum(-(-fact.const // g), terms)
        for key, (c, atom) in terms.items():
            rest = whole.plus(of(atom), -c)
            bound = (True, c, rest.times(-1)) if c > 0 else (False, -c, rest)
            self._bounds.setdefault(key, []).append(bound)
        self._added.append(list(terms))
        self._limits.clear()

    def _follows(self, atom: Atom) -> Iterator[Sum]:
        itself = of(atom)
        if atom.kind == "div" and atom.inner is not None:
            yield atom.inner.plus(itself, -atom.c).plus(Sum(1 - atom.c))
            yield itself.times(atom.c).plus(atom.inner, -1)
        elif atom.kind == "rem" and atom.inner is not None:
            parts = itself.plus(div(atom.inner, atom.c), atom.c)
            yield parts.plus(atom.inner, -1)
            yield atom.inner.plus(parts, -1)
        elif atom.arms:
            # the arm that it equals, if that is known
            for arm, other in (atom.arms, atom.arms[::-1]):
                if atom.kind == "max" and self.low(itself) > self.high(other):
                    yield itself.plus(arm, -1)
                elif atom.kind == "min" and self.high(itself) < self.low(other):
                    yield arm.plus(itself, -1)

    def _without(self, fact: Sum, atom: Atom) -> Iterator[Sum]:
        """The fact for the least of one atom, where more then divides the rest: all are whole."""
        c = fact.terms[atom.key][0]
        rest = fact.plus(of(atom), -c)
        if gcd(*(n for n, _ in rest.terms.values())) > gcd(*(n for n, _ in fact.terms.values())):
            low, high = self._limit(atom)
            yield rest.plus(Sum(c * (low if c > 0 else high)))

    def high(self, total: Sum, enough: int | None = None) -> int:
        """A number that `total` does not exceed; looks no further for one of at most `enough`."""
        best = self._most(total)
        if enough is not None and best <= enough:
            return best
        for n, (scale, reduced) in enumerate(self._reductions(total)):
            best = min(best, self._most(reduced) // scale)
            self._fuel -= 1
            if n > _TRIES or self._fuel < 0 or (enough is not None and best <= enough):
                break
        return best

    def low(self, total: Sum, enough: int | None = None) -> int:
        """A number that `total` does not fall below."""
        return -self.high(total.times(-1), None if enough is None else -enough)

    def within(self, total: Sum, low: int, high: int) -> bool:
        """True if low <= total <= high is certain."""
        return self.low(total, low) >= low and self.high(total, high) <= high

    def _most(self, total: Sum) -> int:
        high = total.const
        for c, atom in total.terms.values():
            low, top = self._limit(atom)
            high += c * (top if c > 0 else low)
        return high

    def _limit(self, atom: Atom) -> Range:
        """The range of one atom under the facts: of whole numbers, so it is tighter than what sums
        of fractions give."""
        found = self._limits.get(atom.key)
        return found if found is not None else self._tighten(atom)

    def _known(self, atom: Atom) -> tuple[Bound, ...]:
        return (*atom.bounds, *self._bounds.get(atom.key, [])[: -_KEPT - 1 : -1])

    def _tighten(self, atom: Atom) -> Range:
        """Finds the limits of an atom and of all that its bounds lead to, each from the others'
        in a few rounds."""
        fresh, todo = [], [atom]
        while todo and self._fuel > 0:
            one = todo.pop()
            if one.key not in self._limits:
                self._limits[one.key] = one.low, one.high
                known = self._known(one)
                fresh.append((one, known))
                parts = [*one.arms, *(other for _, _, other in known)]
                todo += [a for part in parts for _, a in part.terms.values()]
            self._fuel -= 1
        for _ in range(_ROUNDS):
            before = [self._limits[one.key] for one, _ in fresh]
            for one, known in fresh:
                low, high = self._limits[one.key]
                for upper, k, other in known:
                    if upper:
                        high = min(high, self._most(other) // k)
                    else:
                        low = max(low, -(self._most(other.times(-1)) // k))
                if one.kind == "min":
                    low = max(low, min(-self._most(arm.times(-1)) for arm in one.arms))
                elif one.kind == "max":
                    high = min(high, max(self._most(arm) for arm in one.arms))
                self._limits[one.key] = low, high
            if before == [self._limits[one.key] for one, _ in fresh]:
                break
        return self._limits.get(atom.key, (atom.low, atom.high))

    def _reductions(self, total: Sum) -> Iterator[tuple[int, Sum]]:
        """(m, T) with m * total <= T: atoms put in terms of their bounds, one after the other, the
        shortest ways first."""
        level: list[tuple[int, Sum, tuple[int, ...]]] = [(1, total, ())]
        for _ in range(_DEPTH):
            following = []
            for scale, one, used in level:
                for m, reduced, by in self._reduced(one, used):
                    yield scale * m, reduced
                    following.append((scale * m, reduced, (*used, by)))
            level = following

    def _reduced(self, total: Sum, used: tuple[int, ...]) -> Iterator[tuple[int, Sum, int]]:
        for c, atom in total.terms.values():
            for upper, k, other in self._known(atom):
                if upper == (c > 0) and id(other) not in used:
                    g = gcd(c, k)
                    rest = total.plus(of(atom), -c).times(k // g)
                    yield k // g, rest.plus(other, c // g), id(other)
