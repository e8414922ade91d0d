"""Affine index algebra: sums of integer multiples of bounded symbols, with exact div and mod.

Movement ops become arithmetic on these values. So reshape(transpose(reshape(x))) turns back into
plain strides wherever the ranges allow it. Lanes are a symbol like any other; they tell if a load
is uniform, contiguous or scattered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from weft.core.records import dataclass
from weft.kernel.ir import Expr


@dataclass(frozen=True, slots=True)
class Sym:
    """A non-negative integer below `extent` and always a multiple of `step`.

    `kind`: "var" (an expression of the kernel), "lane" (0, 1, 2, ... across vector lanes), "div"
    or "mod" (`src // d`, `src % d`). Symbols are equal when their names are.
    """

    name: str
    kind: str = field(compare=False)
    extent: int = field(compare=False)
    step: int = field(compare=False, default=1)
    expr: Expr | None = field(compare=False, default=None)
    src: Affine | None = field(compare=False, default=None)
    d: int = field(compare=False, default=1)
    # The number of lanes of the value; 1 when all are the same. Cached, since many read it.
    lanes: int = field(init=False, compare=False, repr=False)

    def __hash__(self) -> int:  # by far the most frequent call of a template
        return hash(self.name)

    def __post_init__(self) -> None:
        lanes = self.expr.type.lanes if self.expr is not None else 1
        lanes = lanes if self.src is None else self.src.lanes
        object.__setattr__(self, "lanes", self.extent if self.kind == "lane" else lanes)


@dataclass(frozen=True, slots=True)
class Affine:
    """const + sum of coefficient * symbol; `terms` are sorted by symbol name."""

    const: int = 0
    terms: tuple[tuple[Sym, int], ...] = ()

    def __repr__(self) -> str:
        parts = [f"{c}*{s.name}" if c != 1 else s.name for s, c in self.terms]
        return "+".join([*parts, str(self.const)] if self.const or not parts else parts)

    @property
    def lanes(self) -> int:
        return max((s.lanes for s, _ in self.terms), default=1)

    @property
    def low(self) -> int:
        """The least value the ranges of the symbols allow."""
        return self.const + sum(c * (s.extent - 1) for s, c in self.terms if c < 0)

    @property
    def high(self) -> int:
        """The greatest value the ranges of the symbols allow."""
        return self.const + sum(c * (s.extent - 1) for s, c in self.terms if c > 0)

    @property
    def reach(self) -> int:
        """No sum of some of the terms is as large as this, on either side of zero."""
        up = sum(c * (s.extent - 1) for s, c in self.terms if c > 0)
        down = -sum(c * (s.extent - 1) for s, c in self.terms if c < 0)
        return max(up, down, up + self.const, down - self.const) + 1

    def within(self, limit: int) -> bool:
        return self.low >= 0 and self.high < limit

    def multiple_of(self, n: int) -> bool:
        """True if every value is a multiple of n."""
        return self.const % n == 0 and all(c * s.step % n == 0 for s, c in self.terms)

    def aligned(self, lanes: int) -> bool:
        """True if the lanes are consecutive, starting at a multiple of `lanes`."""
        rest = [(s, c) for s, c in self.terms if s.kind != "lane"]
        step = sum(c for s, c in self.terms if s.kind == "lane")
        return step == 1 and Affine(self.const, tuple(rest)).multiple_of(lanes)

    def coefficient(self, sym: Sym) -> int:
        return next((c for s, c in self.terms if s == sym), 0)

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.terms)
        return combine(((self, 1), (other, 1)))

    def __sub__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const - other, self.terms)
        return combine(((self, 1), (other, -1)))

    def __mul__(self, n: int) -> Affine:
        if n == 0:
            return ZERO
        return Affine(self.const * n, tuple((s, c * n) for s, c in self.terms))


ZERO = Affine()


def number(n: int) -> Affine:
    return Affine(n)


def symbol(sym: Sym) -> Affine:
    """The value of a symbol; one that can only be 0 is 0."""
    return Affine(0, ((sym, 1),)) if sym.extent > 1 else ZERO


def combine(parts: Iterable[tuple[Affine, int]]) -> Affine:
    """The sum of multiples, with q * d + r folded back to the value that q and r came from."""
    const = 0
    terms: dict[Sym, int] = {}
    for aff, n in parts:
        const += aff.const * n
        for s, c in aff.terms:
            terms[s] = terms.get(s, 0) + c * n
    changed = any(s.kind == "mod" for s in terms)
    while changed:
        changed = False
        for s, c in list(terms.items()):
            if s.kind == "mod" and c and _fold_back(terms, s, c):
                assert s.src is not None
                const += s.src.const * c
                changed = True
                break
    return _make(const, terms)


def _fold_back(terms: dict[Sym, int], mod: Sym, c: int) -> bool:
    """Replaces c * (x % d) + c * d * (x // d) by the terms of c * x; the constant is the
    caller's."""
    assert mod.src is not None
    quotient, _ = divide(mod.src, mod.d)
    scaled = [(s, k * c * mod.d) for s, k in quotient.terms]
    if quotient.const or not scaled or any(terms.get(s) != k for s, k in scaled):
        return False
    for s, _ in scaled:
        del terms[s]
    del terms[mod]
    for s, k in mod.src.terms:
        terms[s] = terms.get(s, 0) + k * c
    return True


def _make(const: int, terms: Mapping[Sym, int]) -> Affine:
    kept = [(s, c) for s, c in terms.items() if c]
    return Affine(const, tuple(sorted(kept, key=lambda t: t[0].name)))


def divide(x: Affine, d: int) -> tuple[Affine, Affine]:
    """(x // d, x % d) for x >= 0 and d > 0, as exactly as the ranges allow."""
    if d == 1:
        return x, ZERO
    if x.within(d):
        return ZERO, x
    whole = {s: c // d for s, c in x.terms if c % d == 0}
    part = [(s, c) for s, c in x.terms if c % d]
    quotient, rest = _make(x.const // d, whole), Affine(x.const % d, tuple(part))
    if rest.low < 0:  # kernels divide by truncation: keep the dividend non-negative
        borrow = -(rest.low // d)
        quotient, rest = quotient - borrow, rest + borrow * d
    if rest.within(d):
        return quotient, rest
    q, r = _split_small(rest, d) or _opaque(rest, d)
    return quotient + q, r


def _split_small(x: Affine, d: int) -> tuple[Affine, Affine] | None:
    """Separates terms too small to carry: (g*a + s) // d = (g*a) // d when 0 <= s < g and g | d."""
    terms = sorted(x.terms, key=lambda t: abs(t[1] * t[0].step))
    for k in range(len(terms), 0, -1):
        small, big = terms[:k], terms[k:]
        g = math.gcd(d, *(c * s.step for s, c in big)) if big else 0
        if g <= 1:
            continue
        low = _make(x.const % g, dict(small))
        if low.within(g):
            q, r = divide(_make(x.const - x.const % g, dict(big)), d)
            return q, r + low
    return None


def _opaque(x: Affine, d: int) -> tuple[Affine, Affine]:
    g = math.gcd(d, x.const, *(c for _, c in x.terms))
    if g > 1:
        scaled = Affine(x.const // g, tuple((s, c // g) for s, c in x.terms))
        q, r = divide(scaled, d // g)
        return q, r * g
    high = max(x.high, 0)
    inner = x.terms[0][0] if len(x.terms) == 1 and x.terms[0][1] == 1 and not x.const else None
    if inner is not None and inner.kind == "div" and inner.src is not None:
        quotient = _sym("div", inner.src, inner.d * d, high // d + 1)
    else:
        quotient = _sym("div", x, d, high // d + 1)
    if x.multiple_of(d):
        return symbol(quotient), ZERO
    return symbol(quotient), symbol(_sym("mod", x, d, min(d, high + 1)))


def _sym(kind: str, src: Affine, d: int, extent: int) -> Sym:
    mark = "//" if kind == "div" else "%"
    step = math.gcd(d, src.const, *(c * s.step for s, c in src.terms)) if kind == "mod" else 1
    return Sym(f"(({src}){mark}{d})", kind, extent, step, src=src, d=d)


def flatten(index: Sequence[Affine], strides: Sequence[int], offset: int = 0) -> Affine:
    """The element offset that an index has under `strides` (in elements)."""
    return combine([(number(offset), 1), *zip(index, strides)])


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, n = [], 1
    for d in reversed(shape):
        strides.append(n)
        n *= d
    return tuple(reversed(strides))


def unflatten(linear: Affine, shape: Sequence[int]) -> tuple[Affine, ...]:
    """The index of element number `linear` of a row-major array."""
    out: list[Affine] = []
    for d in reversed(shape[1:]):
        linear, r = divide(linear, d) if d > 0 else (ZERO, ZERO)
        out.append(r)
    if shape:
        out.append(linear)
    return tuple(reversed(out))


def reshape_index(
    index: Sequence[Affine], shape: Sequence[int], source: Sequence[int]
) -> tuple[Affine, ...]:
    """The index in an array of shape `source` of the element at `index` of its reshape to
    `shape` (equal sizes). Runs of axes with equal products are treated apart."""
    out: list[Affine] = []
    i, j = 0, 0
    while i < len(shape) or j < len(source):
        i2, j2 = min(i + 1, len(shape)), min(j + 1, len(source))
        a, b = math.prod(shape[i:i2]), math.prod(source[j:j2])
        while a != b and (i2 < len(shape) or j2 < len(source)):
            if (a < b and i2 < len(shape)) or j2 == len(source):
                a, i2 = a * shape[i2], i2 + 1
            else:
                b, j2 = b * source[j2], j2 + 1
        if i2 - i == 1 and j2 - j == 1:
            out.append(index[i])
        else:
            linear = flatten(index[i:i2], contiguous(shape[i:i2]))
            out.extend(unflatten(linear, source[j:j2]))
        i, j = i2, j2
    return tuple(out)
