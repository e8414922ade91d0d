"""Reference results of each kernel of a page's Programs, for inputs that both sides can make: the
references of ?selftest, computed by the interpreter.

A kernel runs once, alone, on a few of its groups, so a model's size matters little. Elements of its
buffers follow from their place (`filled`). int32 inputs are those of a short prompt, int32
constants the Program's, other int32 buffers zeros. Floats are multiples of 1/128 below 1: exact in
each dtype, none denormal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from weft.core.caps import Caps
from weft.core.dtypes import DType, int32
from weft.core.errors import KernelError
from weft.core.tolerance import tolerance
from weft.kernel import interp, ir
from weft.kernel.expr import const
from weft.kernel.grid import groups
from weft.program.program import BufferSpec, Dispatch, Program
from weft.web.programs import shared_arguments

GROUPS = (32, 4, 4)  # most groups per axis
LARGEST = 1 << 26  # bytes of a kernel's buffers; those with more are not tested
KNOWN = ("input", "const")  # roles whose integers are the model's own
SAMPLES = 5  # elements of each result that are compared, besides its sums

Inputs = Mapping[str, np.ndarray]


def references(
    programs: Mapping[str, Program], caps: Caps, inputs: Mapping[str, Inputs]
) -> dict[str, Any]:
    """{"inputs": kind -> name -> [values, what follows them], "scalars": kind -> values,
    "kernels": [[kind, step, grid, results, least]], "untested": names}. A result is [argument,
    tolerance, largest magnitude, sum, sum of magnitudes, [[index, value]...]]: the sum is of all
    elements, the magnitudes are those of elements that the kernel changed."""
    kernels, untested, seen = [], [], set()
    heads: dict[str, Any] = {}
    counts: dict[str, list[int]] = {}
    for kind, program in programs.items():
        given = inputs.get(kind, {})
        scalars = counts[kind] = [_rows(program, name, given) for name in program.scalars]
        known = [b for b in program.buffers if b.role in KNOWN and b.dtype is int32]
        full = {b.name: _padded(b, given) for b in known}
        heads[kind] = {name: _short(v) for name, v in full.items()}
        for number, step in enumerate(program.steps):
            if not isinstance(step, Dispatch):
                continue
            kernel = program.kernels[step.kernel]
            code = kernel.name, shared_arguments(kernel, step)
            if code in seen:
                continue
            seen.add(code)
            made = _result(program, step, full, scalars, caps)
            if made is None:
                untested.append(kernel.name)
            else:
                kernels.append([kind, number, *made])
    return {"inputs": heads, "scalars": counts, "kernels": kernels, "untested": untested}


def _rows(program: Program, scalar: str, given: Inputs) -> int:
    """A runtime scalar: how many rows of the inputs count."""
    bound = [n for n, s in program.meta.get("rows", {}).items() if s == scalar]
    return len(given[bound[0]]) if bound and bound[0] in given else 1


def _padded(b: BufferSpec, given: Inputs) -> np.ndarray:
    if b.value is not None:
        return b.value.reshape(-1)
    values = np.zeros(b.nbytes // b.dtype.itemsize, b.dtype.numpy)
    if b.name in given:
        values[: given[b.name].size] = given[b.name].reshape(-1)
    return values


def _short(values: np.ndarray) -> list[Any]:
    """The values up to those that are the last one, and that one."""
    other = np.flatnonzero(values != values[-1])
    return [values[: other[-1] + 1 if other.size else 0].tolist(), int(values[-1])]


def _result(
    program: Program, step: Dispatch, given: Inputs, scalars: list[int], caps: Caps
) -> tuple[list[int], list[Any], int] | None:
    """The groups that run, what they write, the least input in 128ths; None: not testable so."""
    kernel = program.kernels[step.kernel]
    if sum(ref.nbytes for ref in step.args) > LARGEST:
        return None
    grid = [min(n, most) for n, most in zip(groups(kernel, scalars), GROUPS, strict=True)]
    for least in (-128, 1):  # some take the root of what they are given
        results = _run(program, step, given, scalars, caps, grid, least)
        if results is not None and np.isfinite([r[2:5] for r in results]).all():
            return grid, results, least
    return None


def _run(
    program: Program, step: Dispatch, given: Inputs, scalars: list[int], caps: Caps,
    grid: list[int], least: int,
) -> list[Any] | None:  # fmt: skip
    kernel = program.kernels[step.kernel]
    before = []
    for n, (ref, b) in enumerate(zip(step.args, kernel.buffers, strict=True)):
        spec = program.buffers[ref.buffer]
        if b.access == "w" or (b.dtype is int32 and spec.name not in given):
            before.append(np.zeros(b.size, b.dtype.numpy))
        elif b.dtype is int32:
            at = ref.offset // b.dtype.itemsize
            before.append(given[spec.name][at : at + b.size])
        else:
            before.append(filled(b.size, n, b.dtype, least))
    # the kernel may be a LazyKernel
    heads = {f.name: getattr(kernel, f.name) for f in fields(ir.Kernel)}
    cut = ir.Kernel(**heads | {"grid": tuple(const(n) for n in grid)})
    after = [array.copy() for array in before]
    try:
        interp.run(cut, after, scalars, caps=caps, check=False)
    except KernelError:  # the kernel does not take these inputs
        return None
    return [
        [n, *_summary(before[n], after[n], b.dtype)]
        for n, b in enumerate(kernel.buffers)
        if b.access != "r"
    ]


def filled(size: int, number: int, dtype: DType, least: int) -> np.ndarray:
    """The elements of a kernel's argument of this number (js/selftest.js makes the same); floats
    from least / 128 to below 1."""
    at = np.arange(size, dtype=np.uint32) + np.uint32(number * 977 + 1)
    bits = at * np.uint32(0x9E3779B1)
    bits ^= bits >> np.uint32(15)
    bits *= np.uint32(0x85EBCA6B)
    high = (bits >> np.uint32(24)).astype(np.int32)
    if dtype.is_float:
        return ((least + high % (128 - least)) / 128).astype(dtype.numpy)
    if dtype.name == "bool":
        return high >= 128
    return bits if dtype.name == "uint32" else high.astype(np.uint8).view(dtype.numpy)


def _summary(before: np.ndarray, after: np.ndarray, dtype: DType) -> list[Any]:
    changed = np.flatnonzero(before != after)
    values = after.astype(np.float64)
    sizes = np.abs(values[changed])
    allowed = tolerance("dot", dtype).atol if dtype.is_float else int(dtype.itemsize == 1)
    spread = np.linspace(0, max(changed.size - 1, 0), min(SAMPLES, changed.size)).astype(int)
    samples = [[int(i), _number(values[i])] for i in changed[spread]]
    most = _number(sizes.max(initial=0))
    return [allowed, most, _number(values.sum()), _number(sizes.sum()), samples]


def _number(value: float) -> float:
    return float(f"{value:.7g}")
