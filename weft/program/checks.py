"""The conditions on every Program that must hold before a device may run it."""

from __future__ import annotations

import math
from typing import get_args

from weft.core.errors import DeviceError, FileFormatError
from weft.kernel.ir import Kernel
from weft.program.gemm import check_gemm
from weft.program.program import (
    BufferRef,
    BufferRole,
    BufferSpec,
    Copy,
    Dispatch,
    Library,
    Program,
    Step,
)

ROLES = get_args(BufferRole)
WRITABLE = ("output", "state", "arena")
MAX_NBYTES = 1 << 46


def check_program_data(program: Program) -> None:
    """Raises FileFormatError, naming the buffer or step, at the first value that is out of place:
    sizes, offsets, counts, roles, dtypes, writes to what is read-only, overlapping arguments."""
    _want(isinstance(program.name, str), "the program's name is not text")
    names = set()
    for b in program.buffers:
        _check_buffer(b)
        _want(b.name not in names or b.role in ("output", "arena"), f"two buffers {b.name!r}")
        names.add(b.name)
    for number in (*program.inputs, *program.outputs):
        _want(_index(number, len(program.buffers)), f"no buffer {number!r}")
    roles = [b.role for b in program.buffers]
    _want(all(roles[i] == "input" for i in program.inputs), "an input is not an input buffer")
    _want(all(roles[i] == "output" for i in program.outputs), "an output is not an output buffer")
    _want(len(set(program.inputs)) == roles.count("input"), "inputs are missing or repeated")
    _want(all(isinstance(s, str) for s in program.scalars), "a scalar's name is not text")
    _want(len(set(program.scalars)) == len(program.scalars), "a scalar is named twice")
    rows = program.meta.get("rows", {})
    known = {program.buffers[i].name: program.buffers[i].shape for i in program.inputs}
    for name, scalar in rows.items():
        _want(bool(known.get(name)) and scalar in program.scalars, f"row bound of {name!r}")
    _check_recipes(program)
    _check_formulas(program)
    for number, step in enumerate(program.steps):
        _check_step(program, step, f"step {number}")


def _check_recipes(program: Program) -> None:
    weights = {b.name: b for b in program.buffers if b.role == "weight"}
    for name, made in program.recipes.items():
        b = weights.get(name)
        sound = isinstance(made.whole, str) and made.whole not in program.recipes
        sound = (
            sound
            and all(_index(n, MAX_NBYTES) for n in made[1:])
            and min(made.lanes, made.item) > 0
        )
        fits = sound and b is not None and made.sound(b.shape)
        _want(bool(fits), f"{name!r} is not a part of weight {made.whole!r}")


def _check_formulas(program: Program) -> None:
    weights = {b.name: b for b in program.buffers if b.role == "weight"}
    for name, made in program.formulas.items():
        b = weights.get(name)
        wrong = "no weight of this name" if b is None else made.check(b.shape, b.dtype)
        _want(wrong is None, f"the formula of {name!r}: {wrong}")


def _want(holds: bool, message: str) -> None:
    if not holds:
        raise FileFormatError(f"the program is inconsistent: {message}")


def _index(value: object, count: int) -> bool:
    return type(value) is int and 0 <= value < count


def _check_buffer(b: BufferSpec) -> None:
    what = f"buffer {b.name!r}"
    _want(isinstance(b.name, str) and b.role in ROLES, f"{what} has role {b.role!r}")
    _want(all(_index(d, MAX_NBYTES) for d in b.shape), f"{what} has shape {b.shape!r}")
    _want(_index(b.nbytes, MAX_NBYTES), f"{what} has {b.nbytes!r} bytes")
    _want(b.nbytes == math.prod(b.shape) * b.dtype.itemsize, f"{what}: shape and bytes differ")
    if b.role == "const":
        fits = b.value is not None and b.value.shape == b.shape
        _want(fits and b.value.dtype == b.dtype.numpy, f"{what} has no fitting value")  # type: ignore[union-attr]


def _check_ref(program: Program, ref: BufferRef, writes: bool, what: str) -> None:
    _want(_index(ref.buffer, len(program.buffers)), f"{what} names buffer {ref.buffer!r}")
    b = program.buffers[ref.buffer]
    fits = _index(ref.offset, MAX_NBYTES) and _index(ref.nbytes, MAX_NBYTES)
    _want(fits and ref.offset + ref.nbytes <= b.nbytes, f"{what} leaves buffer {b.name!r}")
    _want(not writes or b.role in WRITABLE, f"{what} writes to {b.role} {b.name!r}")


def _check_step(program: Program, step: Step, what: str) -> None:
    if isinstance(step, Dispatch):
        _want(_index(step.kernel, len(program.kernels)), f"{what} runs kernel {step.kernel!r}")
        kernel = program.kernels[step.kernel]
        _check_args(program, step, kernel, what)
        if isinstance(step, Library):
            check_gemm(step.gemm, kernel.buffers, lambda ok, why: _want(ok, f"{what} {why}"))
    elif isinstance(step, Copy):
        _check_ref(program, step.src, False, what)
        _check_ref(program, step.dst, True, what)
        _want(step.src.nbytes == step.dst.nbytes, f"{what} copies between different sizes")
        _want(not _overlap(step.src, step.dst), f"{what} copies onto itself")
    else:
        _check_ref(program, step.dst, True, what)
        _want(_index(step.byte, 256), f"{what} fills with {step.byte!r}")


def _check_args(program: Program, step: Dispatch, kernel: Kernel, what: str) -> None:
    wanted = len(kernel.buffers)
    _want(len(step.args) == wanted, f"{what} gives {len(step.args)} of {wanted} buffers")
    for ref, b in zip(step.args, kernel.buffers):
        _check_ref(program, ref, b.access != "r", what)
        _want(ref.nbytes == b.size * b.dtype.itemsize, f"{what} gives {b.name} another size")
        _want(ref.offset % b.dtype.itemsize == 0, f"{what} gives {b.name} an odd offset")
    for i, (ref, b) in enumerate(zip(step.args, kernel.buffers)):
        if b.access != "r":
            others = (a for j, a in enumerate(step.args) if j != i)
            _want(not any(_overlap(ref, a) for a in others), f"{what} writes what it also passes")


def _overlap(a: BufferRef, b: BufferRef) -> bool:
    """True if two ranges share a byte."""
    same = a.buffer == b.buffer and a.nbytes > 0 and b.nbytes > 0
    return same and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def check_args(kernel: Kernel, step: Dispatch) -> None:
    """Raises DeviceError for a step whose arguments do not fit its kernel's buffers."""
    if len(step.args) != len(kernel.buffers):
        raise DeviceError(
            f"kernel {kernel.name}: {len(step.args)} arguments for {len(kernel.buffers)} buffers"
        )
    for buffer, ref in zip(kernel.buffers, step.args):
        if buffer.size * buffer.dtype.itemsize > ref.nbytes:
            raise DeviceError(
                f"kernel {kernel.name}: buffer {buffer.name} has {buffer.size} {buffer.dtype} "
                f"elements, its argument {ref.nbytes} bytes"
            )
