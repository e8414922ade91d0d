"""Functions for machines without the instructions: integer division, square roots, rounding.

They are slow and exact, with one bit of the result per iteration. LLVM calls them by these names.
"""

from __future__ import annotations

from weft.backends.cpu.native import NativeFunction, NativeValue

SIGN, NAN, INFINITY = 1 << 31, 0x7FC00000, 0x7F800000  # of a float's bits
_FRACTION, _IMPLICIT = (1 << 23) - 1, 1 << 23
_WHOLE = (127 + 23) << 23  # 2^23: a float of at least this size is an integer


def functions(prefix: str) -> list[NativeFunction]:
    """All of them; LLVM puts the prefix before names of its own."""
    made = [_rounded(name) for name in ("rintf", "truncf", "floorf", "ceilf")]
    for bits, letter in ((32, "s"), (64, "d")):
        for what in ("div", "mod"):
            made.append(_unsigned(f"{prefix}u{what}{letter}i3", what, bits))
            made.append(_signed(f"{prefix}{what}{letter}i3", f"{prefix}u{what}{letter}i3", bits))
    return [*made, _sqrtf(f"{prefix}sqrtf")]


def bits_of(f: NativeFunction, name: str) -> NativeValue:
    """The bits of a float argument."""
    return f.let("i32", f"bitcast {f[name]} to i32")


def as_float(f: NativeFunction, bits: NativeValue) -> NativeValue:
    return f.let("float", f"bitcast {bits} to float")


def parts(f: NativeFunction, size: NativeValue) -> tuple[NativeValue, NativeValue]:
    """m and e >= 0 of a finite float's bits without sign: its value is m * 2^(e - 149)."""
    exponent, fraction = size >> 23, size & _FRACTION
    normal = exponent > 0
    return f.choose(normal, fraction | _IMPLICIT, fraction), f.choose(
        normal, exponent - 1, exponent
    )


def _rounded(name: str) -> NativeFunction:
    """The integer toward zero, down, up, or the nearest; signs are kept."""
    f = NativeFunction(name, "float x", "float", local=False)
    bits = bits_of(f, "x")
    size, sign = bits & (SIGN - 1), bits & -SIGN
    with f.when(size >= _WHOLE):
        f.give(f["x"])
    if name == "rintf":
        far = as_float(f, f.const("i32", _WHOLE) | 0)
        sum_ = f.let("float", f"fadd {as_float(f, size)}, {far.text}")
        whole = f.let("float", f"fsub {sum_}, {far.text}")
    else:
        number = f.let("i32", f"fptosi {f['x']} to i32")
        whole = f.let("float", f"sitofp {number} to float")
    if name in ("floorf", "ceilf"):
        order, op = ("ogt", "fsub") if name == "floorf" else ("olt", "fadd")
        beyond = f.let("i1", f"fcmp {order} {whole}, {f['x'].text}")
        whole = f.choose(beyond, f.let("float", f"{op} {whole}, 1.0"), whole)
    kept = f.let("i32", f"bitcast {whole} to i32") & (SIGN - 1)
    f.give(as_float(f, kept | sign))
    return f


def _unsigned(name: str, what: str, bits: int) -> NativeFunction:
    """Long division. The rest may have a bit more than fits: then the divisor is in it."""
    word = f"i{bits}"
    f = NativeFunction(name, f"{word} a, {word} b", word, local=False)
    left, rest, quotient = f.variable(word, f["a"]), f.variable(word), f.variable(word)
    with f.count(f.const("i64", bits)):
        old, digits = rest.get(), left.get()
        new = (old << 1) | (digits >> (bits - 1))
        left.set(digits << 1)
        inside = (old < 0) | f.let("i1", f"icmp uge {new}, {f['b'].text}")
        rest.set(f.choose(inside, new - f["b"], new))
        quotient.set((quotient.get() << 1) | f.let(word, f"zext {inside} to {word}"))
    f.give((quotient if what == "div" else rest).get())
    return f


def _signed(name: str, unsigned: str, bits: int) -> NativeFunction:
    """Divides signed numbers by the unsigned division; a remainder has the sign of the dividend."""
    word = f"i{bits}"
    f = NativeFunction(name, f"{word} a, {word} b", word, local=False)
    a, b = (f[x].half(bits - 1) for x in "ab")  # 0, or -1 where it is negative
    sizes = [f.let(word, f"xor {f[x]}, {s.text}") - s for x, s in (("a", a), ("b", b))]
    found = f.call(unsigned, word, *sizes)
    sign = f.let(word, f"xor {a}, {b.text}") if "div" in unsigned else a
    f.give(f.let(word, f"xor {found}, {sign.text}") - sign)
    return f


def _sqrtf(name: str) -> NativeFunction:
    """The root of an integer of up to 50 bits has one bit more than a float: it rounds (a root is
    never half-way)."""
    f = NativeFunction(name, "float x", "float", local=False)
    bits = bits_of(f, "x")
    with f.when((bits & (SIGN - 1)).same(0) | bits.same(INFINITY)):
        f.give(f["x"])
    with f.when((bits < 0) | (bits > INFINITY)):
        f.give(as_float(f, f.const("i32", NAN) | 0))
    m, e = (f.variable("i32", part) for part in parts(f, bits))
    with f.loop() as normal:
        normal.leave(m.get() >= _IMPLICIT)
        m.set(m.get() << 1)
        e.set(e.get() - 1)
    # x = m 2^t 4^h with t 1 or 2; the root of m 2^t 2^24 has 25 bits.
    power = e.get() - 149
    t = f.const("i32", 2) - (power & 1)
    square = (m.get().to("i64") << 24) * (f.const("i64", 1) << t.to("i64"))
    root, step = f.variable("i64"), f.variable("i64", 1 << 24)
    with f.loop() as digits:
        digits.leave(step.get().same(0))
        tried = root.get() | step.get()
        root.set(f.choose(tried * tried <= square, tried, root.get()))
        step.set(step.get() >> 1)
    whole = (root.get() + 1) >> 1
    exponent = ((power - t).half(1) - 11 + 127) << 23
    value = f.let("float", f"uitofp {whole} to float")
    f.give(f.let("float", f"fmul {value}, {as_float(f, exponent).text}"))
    return f
