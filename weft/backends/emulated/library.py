"""The functions that kernels of a machine without a C library may call, in LLVM IR.

LLVM calls a few for every machine (moving memory, the float remainder). Where an instruction is
missing it calls others, which are here under the names that LLVM gives them.
"""

from __future__ import annotations

from weft.backends.cpu.native import INTRINSICS, NativeFunction, NativeValue
from weft.backends.emulated import soft
from weft.backends.emulated.machines import Machine
from weft.backends.emulated.soft import INFINITY, NAN, SIGN, as_float, bits_of, parts

# Without it LLVM would find memset in the loop of memset, and call it.
_ATTRIBUTES = 'attributes #0 = { nounwind "no-builtins" }\n'


def source(machine: Machine) -> str:
    """The module of all of them for a machine. `weft_copy` and `weft_fill` are called as kernels
    are: their arguments are (to, from, bytes) and (to, byte, bytes)."""
    word = f"i{8 * machine.pointer}"
    made = [_memset(word), _memmove(word, "memcpy"), _memmove(word, "memmove"), _fmodf()]
    made += [_step("weft_copy", word), _step("weft_fill", word)]
    if machine.target.outer:
        made += _streaming(word)
    if machine.soft:
        made += soft.functions(machine.soft)
        name = "memcpy_likely_aligned_min32bytes_mult8bytes"
        made.append(_memmove(word, machine.soft + name))
    return INTRINSICS + "".join(f.text() for f in made) + _ATTRIBUTES


def _memset(word: str, name: str = "memset") -> NativeFunction:
    f = NativeFunction(name, f"ptr to, i32 byte, {word} bytes", "ptr", local=False)
    byte = f["byte"].to("i8")
    with f.count(_wide(f["bytes"])) as i:
        f["to"].at("i8", i).set(byte)
    f.give(f["to"])
    return f


def _memmove(word: str, name: str) -> NativeFunction:
    """Builds memmove, which also serves as memcpy: it copies downwards where the target is behind
    the source."""
    f = NativeFunction(name, f"ptr to, ptr from, {word} bytes", "ptr", local=False)
    size = _wide(f["bytes"])
    behind = f.let("i1", f"icmp ugt {f['to']}, {f['from'].text}")
    with f.count(size) as i:
        at = f.choose(behind, size - i - 1, i)
        f["to"].at("i8", at).set(f["from"].at("i8", at).get())
    f.give(f["to"])
    return f


def _streaming(word: str) -> list[NativeFunction]:
    """Returns the functions that LLVM calls in and around a processor's streaming mode. Kernels
    never call each other, so no sums have to be saved."""
    save = NativeFunction("__arm_tpidr2_save", "", local=False)
    moved = [_memmove(word, f"__arm_sc_{name}") for name in ("memcpy", "memmove")]
    return [save, *moved, _memset(word, "__arm_sc_memset")]


def _step(name: str, word: str) -> NativeFunction:
    """A step that no kernel does."""
    rest = "ptr scalars, i32 gx, i32 gy, i32 gz, i64 begin, i64 end, ptr scratch"
    f = NativeFunction(name, f"ptr bufs, {rest}", local=False)
    size = int(word[1:]) // 8
    to, what, count = (f["bufs"].at("ptr", i, size).get() for i in range(3))
    bytes_ = f.let(word, f"ptrtoint {count} to {word}")
    if name == "weft_copy":
        f.call("memmove", "ptr", to, what, bytes_)
    else:
        byte = f.let("i32", f"ptrtoint {what} to i32")
        f.call("memset", "ptr", to, byte, bytes_)
    return f


def _wide(value: NativeValue) -> NativeValue:
    return value if value.type == "i64" else value.to("i64")


# -- floats ---------------------------------------------------------------------------------------


def _fmodf() -> NativeFunction:
    """x - trunc(x / y) y, exactly: the remainder of integers, one bit of the quotient a turn."""
    f = NativeFunction("fmodf", "float x, float y", "float", local=False)
    sign = bits_of(f, "x") & -SIGN
    x, y = (bits_of(f, name) & (SIGN - 1) for name in "xy")
    nan = x >= INFINITY
    with f.when(nan | y.same(0) | (y > INFINITY)):
        f.give(as_float(f, f.const("i32", NAN) | 0))
    with f.when(x < y):
        f.give(f["x"])
    (mx, ex), (my, ey) = parts(f, x), parts(f, y)
    rest = f.variable("i32", f.let("i32", f"urem {mx}, {my.text}"))
    with f.count((ex - ey).to("i64")):
        twice = rest.get() << 1
        rest.set(f.choose(twice >= my, twice - my, twice))
    unit = f.choose(ey > 22, (ey - 22) << 23, f.const("i32", 1) << ey)
    whole = f.let("float", f"uitofp {rest.get()} to float")
    product = f.let("float", f"fmul {whole}, {as_float(f, unit).text}")
    f.give(as_float(f, f.let("i32", f"bitcast {product} to i32") | sign))
    return f
