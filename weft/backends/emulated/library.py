"""The functions that kernels of a machine without a C library may call, in LLVM IR.

LLVM calls a few for every machine (moving memory, the float remainder). Where an instruction is
missing it calls others, which are here under the names that LLVM gives them.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.cpu.native import INTRINSICS, Function, Value

# Without it LLVM would find memset in the loop of memset, and call it.
_ATTRIBUTES = 'attributes #0 = { nounwind "no-builtins" }\n'


def source(pointer: int) -> str:
    """The module of all of them, for pointers of so many bytes. `weft_copy` and `weft_fill` are
    called as kernels are: their arguments are (to, from, bytes) and (to, byte, bytes)."""
    word = f"i{8 * pointer}"
    made = [_memset(word), _memmove(word, "memcpy"), _memmove(word, "memmove"), _fmodf()]
    made += [_step("weft_copy", word), _step("weft_fill", word)]
    return INTRINSICS + "".join(f.text() for f in made) + _ATTRIBUTES


def _memset(word: str) -> Function:
    f = Function("memset", f"ptr to, i32 byte, {word} bytes", "ptr", local=False)
    byte = f["byte"].to("i8")
    with f.count(_wide(f["bytes"])) as i:
        f["to"].at("i8", i).set(byte)
    f.give(f["to"])
    return f


def _memmove(word: str, name: str) -> Function:
    """Also memcpy: downwards where the target lies behind."""
    f = Function(name, f"ptr to, ptr from, {word} bytes", "ptr", local=False)
    size = _wide(f["bytes"])
    behind = f.let("i1", f"icmp ugt {f['to']}, {f['from'].text}")
    with f.count(size) as i:
        at = f.choose(behind, size - i - 1, i)
        f["to"].at("i8", at).set(f["from"].at("i8", at).get())
    f.give(f["to"])
    return f


def _step(name: str, word: str) -> Function:
    """A step that no kernel does."""
    rest = "ptr scalars, i32 gx, i32 gy, i32 gz, i64 begin, i64 end, ptr scratch"
    f = Function(name, f"ptr bufs, {rest}", local=False)
    size = int(word[1:]) // 8
    to, what, count = (f["bufs"].at("ptr", i, size).get() for i in range(3))
    bytes_ = f.let(word, f"ptrtoint {count} to {word}")
    if name == "weft_copy":
        f.call("memmove", "ptr", to, what, bytes_)
    else:
        byte = f.let("i32", f"ptrtoint {what} to i32")
        f.call("memset", "ptr", to, byte, bytes_)
    return f


def _wide(value: Value) -> Value:
    return value if value.type == "i64" else value.to("i64")


# -- floats ---------------------------------------------------------------------------------------

_SIGN, _NAN, _INFINITY = 1 << 31, 0x7FC00000, 0x7F800000


def _bits(f: Function, name: str) -> Value:
    return f.let("i32", f"bitcast {f[name]} to i32")


def _float(f: Function, bits: Value) -> Value:
    return f.let("float", f"bitcast {bits} to float")


def _parts(f: Function, size: Value) -> tuple[Value, Value]:
    """m and e >= 0 of a finite float's bits without sign: its value is m * 2^(e - 149)."""
    exponent, fraction = size >> 23, size & 0x7FFFFF
    normal = exponent > 0
    m = f.choose(normal, fraction | 0x800000, fraction)
    return m, f.choose(normal, exponent - 1, exponent)


def _fmodf() -> Function:
    """x - trunc(x / y) y, exactly: the remainder of integers, one bit of the quotient a turn."""
    f = Function("fmodf", "float x, float y", "float", local=False)
    sign = _bits(f, "x") & -_SIGN
    x, y = (_bits(f, name) & (_SIGN - 1) for name in "xy")
    nan = x >= _INFINITY
    with f.when(nan | y.same(0) | (y > _INFINITY)):
        f.give(_float(f, f.const("i32", _NAN) | 0))
    with f.when(x < y):
        f.give(f["x"])
    (mx, ex), (my, ey) = _parts(f, x), _parts(f, y)
    rest = f.variable("i32", f.let("i32", f"urem {mx}, {my.text}"))
    with f.count((ex - ey).to("i64")):
        twice = rest.get() << 1
        rest.set(f.choose(twice >= my, twice - my, twice))
    unit = f.choose(ey > 22, (ey - 22) << 23, f.const("i32", 1) << ey)
    whole = f.let("float", f"uitofp {rest.get()} to float")
    product = f.let("float", f"fmul {whole}, {_float(f, unit).text}")
    f.give(_float(f, f.let("i32", f"bitcast {product} to i32") | sign))
    return f
