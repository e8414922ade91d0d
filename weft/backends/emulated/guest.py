"""The guest program of the emulated machine: the loop that runs steps, and the few C functions that
LLVM calls.

It is written in LLVM IR, so that LLVM compiles it for each machine. The guest is one static
program. Orders come to its standard input, each of four i64 in the machine's own byte order. The
first is (number of the memory's open file, its bytes, 0, 0), which the guest maps at BASE. All
others hold the address of a table of steps, their number, and the addresses of the scalars and the
scratch memory; the guest calls each step's function in turn. Before each order the guest writes a
byte.
"""

from __future__ import annotations

from weft.backends.cpu.native import NativeFunction, NativeValue
from weft.backends.emulated.machines import Machine

BASE = 1 << 28  # low, so that 31 bits reach all code and its constants
STEP = 48  # bytes of a step: function, arguments, gx, gy, gz, groups (i64 each)
ORDER = 32  # bytes
_ALL, _SHARED_FIXED = 7, 0x11  # mmap: read, write and run; shared, at that address


def program(machine: Machine) -> str:
    """The module of the guest's own code, `_start`."""
    words = ", ".join(f"i32 {word}" for word in machine.syscall)
    shape = f"[{len(machine.syscall)} x i32]"
    stub = f'@syscall = internal constant {shape} [{words}], section ".text.syscall", align 16\n'
    return stub + _start(machine).text() + "attributes #0 = { nounwind }\n"


def _start(machine: Machine) -> NativeFunction:
    f, word = NativeFunction("_start", "", local=False), f"i{8 * machine.pointer}"
    read, write, leave, mmap = machine.numbers

    def system(call: int, *arguments: NativeValue | int) -> NativeValue:
        given = [
            x if isinstance(x, NativeValue) else f.const(word, x) for x in (*arguments, *[0] * 6)
        ]
        return f.call(NativeValue(f, "ptr", "@syscall"), word, *given[:6], f.const(word, call))

    def number(value: NativeValue) -> NativeValue:
        return value if word == "i64" else value.to(word)

    def pointer(place: int) -> NativeValue:
        return f.let("ptr", f"inttoptr {order.at('i64', place).get()} to ptr")

    def play(step: NativeValue, scalars: NativeValue, scratch: NativeValue) -> None:
        function, args = (
            f.let("ptr", f"inttoptr {step.at('i64', at).get()} to ptr") for at in (0, 8)
        )
        grid = [step.at("i64", at).get().to("i32") for at in (16, 24, 32)]
        groups = step.at("i64", 40).get()
        f.call(function, "void", args, scalars, *grid, f.const("i64", 0), groups, scratch)

    order = f.let("ptr", f"alloca [{ORDER} x i8], align 16")
    at = f.let(word, f"ptrtoint {order} to {word}")
    running = f.let("ptr", f"inttoptr i64 {BASE} to ptr").at("i64")
    system(write, 1, at, 1)
    system(read, 0, at, ORDER)
    file, size = (number(order.at("i64", 8 * i).get()) for i in (0, 1))
    system(mmap, BASE, size, _ALL, _SHARED_FIXED, file)
    with f.loop() as orders:
        system(write, 1, at, 1)
        orders.leave(system(read, 0, at, ORDER).differs(ORDER))
        table, scalars, scratch = pointer(0), pointer(16), pointer(24)
        with f.count(order.at("i64", 8).get()) as i:
            running.set(i)
            play(table.at("i64", i, STEP).address, scalars, scratch)
    system(leave)
    return f
